"""Maintenance of a data directory without a running node, to the end and at full speed.

A directory written by a node is opened with its broker but without servers: topics define the
settings of their logs, and partitions know open transactions. A directory written by an embedded
store has no metadata and is opened as a store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from millstream.broker.broker import Broker
from millstream.config.schema import StoreConfig
from millstream.errors import MillstreamError, StorageFailed, UnknownTopic
from millstream.storage.compaction.plan import plan_compaction, rewritable_segments
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.names import METADATA_FILE, LogName
from millstream.storage.log import Log
from millstream.storage.segment.segment import GrowingSegment
from millstream.storage.store import Store

UNHURRIED = StoreConfig(upkeep_interval_ms=0, cleaning_bytes_per_second_max=0)
"""No background work, and no rate limit."""


class OfflineResult(NamedTuple):
    """Result of maintaining one log."""

    name: LogName
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    segments_before: int
    segments_after: int


class OfflinePlan(NamedTuple):
    """What maintenance would delete from or rewrite in one log."""

    name: LogName
    evicted_segments: int = 0
    evicted_records: int = 0
    evicted_bytes: int = 0
    reasons: tuple[str, ...] = ()
    """Reason of the eviction: age, bytes or records."""
    deleted_records: int = 0
    reclaimable_bytes: int = 0
    uncompacted_bytes: int = 0


class OfflineRun:
    """One run over the logs of a directory or of one topic.

    A failure of one log is recorded in `failures`; the others are still processed.
    """

    def __init__(
        self, data: str, topic: str | None, *, progress: Callable[[int, int], None]
    ) -> None:
        self._data = data
        self._topic = topic
        self._progress = progress
        self._bytes_done = 0
        self._bytes_total = 0
        self.log_count = 0
        self.failures: list[tuple[LogName, MillstreamError]] = []

    async def run(self) -> list[OfflineResult]:
        """Maintain the logs and return what changed."""
        done = []
        async with _opened(self._data) as store:
            async for name, log in self._logs(store):
                before, failures = _holding(log), log.counters.cleaning_failures
                try:
                    await self._look_after(log, store)
                    if log.counters.cleaning_failures > failures:
                        raise StorageFailed("cleaning failed; see the log line")
                except MillstreamError as error:
                    self.failures.append((name, error))
                if (after := _holding(log)) != before:
                    pairs = zip(before, after, strict=True)
                    done.append(OfflineResult(name, *(number for pair in pairs for number in pair)))
        return done

    async def plan(self) -> list[OfflinePlan]:
        """Return what a run would change, without changing anything."""
        planned = []
        async with _opened(self._data) as store:
            async for name, log in self._logs(store):
                plan = _plan(name, log, store.now_ms())
                if plan != OfflinePlan(name):
                    planned.append(plan)
        return planned

    async def _logs(self, store: Store) -> AsyncIterator[tuple[LogName, Log]]:
        """Iterate over the selected logs; raises `UnknownTopic` if there are none."""
        config_of, topic = store.maintenance.config_of, self._topic
        names = [name for name in store.names() if topic in (None, name.topic)]
        if topic is not None and not names:
            raise UnknownTopic(f"{self._data} has no logs of topic {topic!r}")
        for name in names:
            if config_of(name) is None:
                continue  # Of no topic, and beyond what the node may have: left alone.
            self.log_count += 1
            try:
                log = await store.maintenance.opener(name)
                if log.offline is not None:
                    raise log.offline
            except MillstreamError as error:
                self.failures.append((name, error))
                continue
            self._bytes_total += log.size_bytes
            yield name, log

    async def _look_after(self, log: Log, store: Store) -> None:
        if (plan := log.plan_eviction()) is not None:
            await log.evict_before(plan.before_offset, plan.gap_reason)
        is_growing = bool(log.segments) and isinstance(log.segments[-1], GrowingSegment)
        if is_growing and (log.config.is_compacted or log.deleted_records):
            await log.roll()  # Only closed segments are rewritten.
        await store.maintenance.clean(log, is_forced=True, throttle=_Counting(self._note))

    def _note(self, size: int) -> None:
        """Count bytes read or written. Called in the worker thread."""
        self._bytes_done += size
        self._bytes_total = max(self._bytes_total, self._bytes_done)
        self._progress(self._bytes_done, self._bytes_total)


class _Counting(IoThrottle):
    """A throttle that only counts bytes."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._on_bytes = on_bytes

    def pause(self, size: int, *, unless: Callable[[], bool] = lambda: False) -> None:
        self._on_bytes(size)
        super().pause(size, unless=unless)


@asynccontextmanager
async def _opened(data: str) -> AsyncIterator[Store]:
    if METADATA_FILE not in OsFilesystem().list(data):
        async with Store(data, config=UNHURRIED) as store:
            yield store
        return
    broker = await Broker.open(data, store_config=UNHURRIED)
    try:
        yield broker.store
    finally:
        await broker.close()


def _holding(log: Log) -> tuple[int, int, int]:
    """Return bytes, records and segments of a log."""
    return log.size_bytes, log.record_count, len(log.segments)


def _plan(name: LogName, log: Log, now_ms: int) -> OfflinePlan:
    planned = OfflinePlan(
        name, deleted_records=log.deleted_records, reclaimable_bytes=log.reclaimable_bytes
    )
    if (plan := log.plan_eviction()) is not None:
        planned = planned._replace(
            evicted_segments=plan.segments,
            evicted_records=plan.records,
            evicted_bytes=plan.bytes,
            reasons=plan.reasons,
        )
    if not log.config.is_compacted:
        return planned
    end = log.end_offset if log.removal_hooks is None else log.removal_hooks.stable_offset()
    compaction = plan_compaction(
        rewritable_segments(log.segments, start=log.start_offset, end=end),
        cleaned_offset=log.partition.cleaned_offset,
        config=log.config,
        now_ms=now_ms,
        is_forced=True,
    )
    if compaction is None:
        return planned
    return planned._replace(uncompacted_bytes=sum(segment.size for segment in compaction.dirty))

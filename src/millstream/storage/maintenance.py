"""Maintenance: periodic work on all logs of a store.

    every interval   seal growing segments that are too old   one log at a time,
                     evict expired segments                    open or not
                     save the retention clock, keep the ballast file

    concurrently     clean: compact, reclaim deleted records   one log at a time

Eviction never waits for cleaning, which may take hours: a full disk has to be cleared now.
Failures of one log are logged and counted, and the others are maintained all the same.

A log that is not open is judged by what recovery found, and opened only if there is work to do.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from millstream.clock import Timer, Timers
from millstream.config.schema import LogConfig
from millstream.errors import Busy, LogClosed, MillstreamError, NotLeader, Stopping
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.compaction.plan import (
    RECLAIM_MS_MAX,
    RECLAIM_RATIO_MIN,
    is_carried_out,
    plan_compaction,
    rewritable_segments,
)
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.log import Log
from millstream.storage.retention.eviction import Eviction, is_roll_due, plan_eviction
from millstream.storage.segment.segment import GrowingSegment, Segment

if TYPE_CHECKING:
    from millstream.storage.files.names import LogName
    from millstream.storage.store import Store

logger = logging.getLogger(__name__)

LOGS_PER_TURN = 100
"""Number of logs that are checked before the event loop gets a turn: about a millisecond."""


@dataclass(slots=True)
class MaintenanceCounters:
    """Running totals since the store was opened."""

    runs: int = 0
    """Number of rounds over all logs."""
    failures: int = 0
    """Number of failures of single logs."""


class MaintenanceView(NamedTuple):
    """State of a log that maintenance needs, open or not."""

    segments: Sequence[Segment]
    start: int
    """The stored start offset."""
    committed: int
    config: LogConfig
    partition: PartitionMetadata
    is_open: bool
    is_replica: bool = False
    """Whether the leader of the log decides what is rolled, evicted and cleaned."""
    needed_offset: int | None = None
    """The first offset that must stay. If the log is not open, evicting from it finds out."""


class Maintenance:
    """Maintains the logs of one store. Belongs to its event loop."""

    def __init__(
        self,
        store: Store,
        *,
        background: Executor,
        monotonic: Callable[[], float],
        random_seed: Callable[[], int] = lambda: secrets.randbits(63),
    ) -> None:
        self._store = store
        self._background = background
        self._throttle = IoThrottle(store.config.cleaning_bytes_per_second_max, monotonic=monotonic)
        self._random_seed = random_seed
        self.counters = MaintenanceCounters()
        self.opener: Callable[[LogName], Awaitable[Log]] = store.borrow
        """Opens a log. The broker, which knows its settings and its hooks, sets its own."""
        self.config_of: Callable[[LogName], LogConfig | None] = store.config_of
        """Returns the settings of a log that is not open; `None` if it must be left alone."""
        self._tasks = BackgroundTasks()
        self._trimming = asyncio.Lock()
        self._cleaning = asyncio.Lock()
        self._timers: Timers | None = None
        self._timer: Timer | None = None
        self._is_stopping = False

    # Schedule.

    def start(self, timers: Timers) -> None:
        """Start periodic runs, unless the store is configured without."""
        if self.interval_seconds and self._timers is None:
            self._timers = timers
            self._set_timer()

    @property
    def interval_seconds(self) -> float:
        """Time between two runs; 0 means never."""
        return self._store.config.upkeep_interval_ms / 1000

    def _set_timer(self) -> None:
        assert self._timers is not None
        self._timer = self._timers.call_later(self.interval_seconds, self._begin)

    def _begin(self) -> None:
        """Start the work that is not still in progress from the last interval."""
        self._set_timer()
        if not self._trimming.locked():
            self._tasks.start(self._trim_all())
        if not self._cleaning.locked():
            self._tasks.start(self._clean_all(is_forced=False))

    def trim_now(self) -> None:
        """Start to seal and evict without waiting for the interval, if periodic runs are on."""
        if self._timers is not None and not self._is_stopping and not self._trimming.locked():
            self._tasks.start(self._trim_all())

    async def run_once(self, *, is_forced: bool = False) -> None:
        """Maintain all logs once, and return when that is done.

        `is_forced` cleans whatever can be cleaned, worthwhile or not.
        """
        if self._is_stopping:
            raise LogClosed(f"{self._store.path} is closed")
        await asyncio.shield(self._tasks.start(self._run(is_forced=is_forced)))

    async def _run(self, *, is_forced: bool) -> None:
        await self._trim_all()
        await self._clean_all(is_forced=is_forced)

    async def stop(self) -> None:
        """Start nothing more, interrupt what can be interrupted, and wait for the other tasks."""
        self._is_stopping = True
        self._throttle.stop()
        if self._timer is not None:
            self._timer.cancel()
        while not self._tasks.is_idle:
            await self._tasks.changed()

    # Work on all logs.

    def plan_evictions(self) -> list[tuple[LogName, Eviction]]:
        """Return what a run would evict now, without a change."""
        plans = ((name, self._plan(self._view(name))) for name in self._store.names())
        return [(name, plan) for name, plan in plans if plan is not None]

    async def _trim_all(self) -> None:
        """Seal old segments and evict expired ones, in all logs."""
        async with self._trimming:
            async for name in self._names():
                view = self._view(name)
                if view is not None and self._is_due_to_roll(view):
                    await self._attempt(name, Log.roll)
                    view = self._view(name)
                log = self._store.find(name)
                if log is not None and (mark := log.next_age_mark()) is not None:
                    await self._attempt(name, partial(Log.add_age_mark, mark=mark))
                if (plan := self._plan(view)) is not None:
                    evict = partial(
                        Log.evict_before, offset=plan.before_offset, reason=plan.gap_reason
                    )
                    await self._attempt(name, evict)
            await self._store.run_housekeeping()
            self.counters.runs += 1

    async def _clean_all(self, *, is_forced: bool) -> None:
        """Clean all logs that need it."""
        async with self._cleaning:
            async for name in self._names():
                if self._may_need_cleaning(name, is_forced=is_forced):
                    await self._attempt(name, partial(self.clean, is_forced=is_forced))

    async def _names(self) -> AsyncIterator[LogName]:
        """Yield the names of all logs, and give the event loop a turn now and then."""
        for number, name in enumerate(self._store.unsorted_names(), start=1):
            if self._is_stopping:
                return
            yield name
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _attempt(self, name: LogName, work: Callable[[Log], Awaitable[object]]) -> None:
        """Run work on a log; failures are logged and counted."""
        try:
            await work(await self.opener(name))
        except (Stopping, LogClosed, Busy, NotLeader):
            pass  # It is closing, another run cleans it already, or it is another node's.
        except MillstreamError as error:
            self.counters.failures += 1
            logger.warning("maintenance of %s: %s", name, error)
        except Exception:  # A failure of one log must not stop the eviction of others.
            self.counters.failures += 1
            logger.exception("maintenance of %s failed", name)

    # One log.

    def _view(self, name: LogName) -> MaintenanceView | None:
        """Return the state of a log; `None` if it is unusable or not writable."""
        if (log := self._store.find(name)) is not None:
            if log.offline is not None:
                return None
            state = (log.segments, log.partition.start_offset, log.end_offset)
            return MaintenanceView(
                *state,
                log.config,
                log.partition,
                is_open=True,
                is_replica=log.replication.is_replica,
                needed_offset=log.needed_offset,
            )
        recovered, config = self._store.recovered_log(name), self.config_of(name)
        if recovered is None or recovered.offline is not None or config is None:
            return None
        segments, start = recovered.segments, recovered.partition.start_offset
        end = segments[-1].next_offset if segments else start
        return MaintenanceView(
            segments, start, max(start, end), config, recovered.partition, is_open=False
        )

    def _is_due_to_roll(self, view: MaintenanceView) -> bool:
        if view.is_replica:
            return False
        now_ms = self._store.now_ms()
        return is_roll_due(view.segments, config=view.config, now_ms=now_ms)

    def _plan(self, view: MaintenanceView | None) -> Eviction | None:
        if view is None or view.is_replica:
            return None
        return plan_eviction(
            view.segments,
            start=view.start,
            committed=view.committed,
            config=view.config,
            now_ms=self._store.now_ms(),
            needed_offset=view.needed_offset,
            age_marks=view.partition.age_marks,
        )

    def _may_need_cleaning(self, name: LogName, *, is_forced: bool) -> bool:
        """Whether a log may have something to clean, so that opening it for that is worthwhile."""
        if (view := self._view(name)) is None:
            return False
        if not is_carried_out(view.partition):
            return True
        is_deleted = view.start > view.partition.eviction_floor
        is_cut = is_deleted and any(
            s.base_offset < view.start < s.next_offset for s in view.segments
        )
        if is_forced or is_cut or view.partition.deletions:
            return True
        if not view.config.is_compacted or view.is_replica:
            return False
        if view.is_open:
            return True
        segments = rewritable_segments(view.segments, start=view.start, end=view.committed)
        plan = plan_compaction(
            segments,
            cleaned_offset=view.partition.cleaned_offset,
            config=view.config,
            now_ms=self._store.now_ms(),
            tombstones_due_ms=view.partition.tombstones_due_ms or None,
        )
        return plan is not None

    async def clean(
        self, log: Log, *, is_forced: bool = False, throttle: IoThrottle | None = None
    ) -> CleanerResult | None:
        """Clean one open log, and return the result; see `LogCleaner.clean`.

        Its I/O is limited by `throttle`, by default the one that all logs share.
        """
        config = self._store.config
        if self._has_masked_growing(log, is_forced=is_forced):
            await log.roll()  # Only sealed segments are rewritten.
        return await log.clean(
            background=self._background,
            throttle=throttle or self._throttle,
            memory_bytes_max=config.cleaning_memory_bytes_max,
            seed=self._random_seed(),
            is_forced=is_forced,
        )

    def _has_masked_growing(self, log: Log, *, is_forced: bool) -> bool:
        """Whether enough was deleted by key from the growing segment to seal it."""
        last = log.segments[-1] if log.segments else None
        if log.replication.is_replica:
            return False  # Its leader decides where segments end.
        if not isinstance(last, GrowingSegment) or last.base_offset not in log.masks:
            return False
        return (
            is_forced
            or log.masks[last.base_offset].bytes >= RECLAIM_RATIO_MIN * last.size
            or self._store.now_ms() - last.stats.created_ms >= RECLAIM_MS_MAX
        )

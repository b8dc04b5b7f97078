"""Scrub: reads all sealed segments of a store, slowly, and compares them with their seals.

Readers find the damage that they meet. What nobody reads for months would be found when it is
needed, or when another copy has been lost too. So every `scrub_interval_ms` a pass goes over all
logs in the order of their names:

    due? ─► next sealed segment ─► read and check, in a thread of idle disk priority, rate limited
                 ▲                     │ damaged: open the log, check again, report
                 └── save progress ◄───┘

Damage is reported as that of a reader is: to health and metrics, and in a cluster to the repair,
which fetches the segment from another replica. Progress survives a restart. Growing segments are
not read: they were written recently, and their bytes are checked when the log is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from millstream.clock import Timer, Timers
from millstream.config.schema import Durability
from millstream.errors import MillstreamError, Stopping
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.names import LogName
from millstream.storage.files.scrub_file import (
    ScrubPosition,
    ScrubProgress,
    read_scrub_progress,
    write_scrub_progress,
)
from millstream.storage.log import Log
from millstream.storage.log_check import check_in_log
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.segment import SealedSegment
from millstream.storage.segment.segment_check import SegmentCheck, check_segment

if TYPE_CHECKING:
    from millstream.storage.store import Store

logger = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""How often to look whether a pass is due, and for how long a start is left alone."""

SAVE_MS = 60_000
"""How often the progress of a pass is saved: this much may be read twice after a crash."""


# Decisions.


def is_pass_due(progress: ScrubProgress, *, now_ms: int, interval_ms: int) -> bool:
    """Return whether a pass has to be begun, or continued."""
    if interval_ms == 0:
        return False
    if progress.is_running or progress.begun_ms is None:
        return True
    return now_ms - progress.begun_ms >= interval_ms


def begin_pass(progress: ScrubProgress, *, now_ms: int) -> ScrubProgress:
    """Return the progress of a pass that begins, or goes on after a restart."""
    if progress.is_running:
        return progress
    return replace(progress, begun_ms=now_ms, is_running=True, last=None)


def end_pass(progress: ScrubProgress, *, now_ms: int) -> ScrubProgress:
    """Return the progress after a complete pass."""
    passes = progress.passes + 1
    return replace(progress, since_ms=now_ms, is_running=False, last=None, passes=passes)


def is_ahead(progress: ScrubProgress, name: LogName, base_offset: int) -> bool:
    """Return whether the pass in flight has not come to a segment yet."""
    return progress.last is None or (*name, base_offset) > progress.last


def _local(segments: Sequence[SealedSegment]) -> list[SealedSegment]:
    """Return the segments on the disk. What is in a cold store is checked whenever it is read."""
    return [segment for segment in segments if not isinstance(segment, ColdSegment)]


# Work.


@dataclass(slots=True)
class ScrubCounters:
    """Running totals since the store was opened."""

    bytes: int = 0
    """Number of bytes read."""
    segments: int = 0
    """Number of segments checked."""
    damaged_segments: int = 0
    """Number of segments that were found damaged."""
    failures: int = 0
    """Number of logs that could not be checked."""


class Scrubber:
    """Scrubs the logs of one store. Belongs to its event loop."""

    def __init__(
        self,
        store: Store,
        *,
        background: Executor,
        throttle: IoThrottle,
    ) -> None:
        """`background` has a thread of its own: a check waits for its turn there."""
        self._store = store
        self._background = background
        self._throttle = throttle
        self.counters = ScrubCounters()
        self.progress = ScrubProgress(since_ms=0)
        self._is_loaded = False
        self._saved_ms = 0
        self._tasks = BackgroundTasks()
        self._running = asyncio.Lock()
        self._timers: Timers | None = None
        self._timer: Timer | None = None
        self._is_stopping = False

    @property
    def opener(self) -> Callable[[LogName], Awaitable[Log]]:
        """Opens a log in which damage was found, as maintenance opens it."""
        return self._store.maintenance.opener

    @property
    def pass_age_seconds(self) -> float:
        """Seconds since the last complete pass; since the first one began if none is complete."""
        if not self._is_loaded:
            return 0.0
        return self._store.age_ms(self.progress.since_ms) / 1000

    # Schedule.

    def start(self, timers: Timers) -> None:
        """Scrub when it is due, unless the store is configured without."""
        if self._store.config.scrub_interval_ms and self._timers is None:
            self._timers = timers
            self._set_timer()

    def _set_timer(self) -> None:
        assert self._timers is not None
        self._timer = self._timers.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._set_timer()
        if not self._running.locked():
            self._tasks.start(self._run(is_forced=False))

    async def run_once(self) -> None:
        """Complete the pass in flight, or make a whole one, and return when that is done."""
        await asyncio.shield(self._tasks.start(self._run(is_forced=True)))

    async def stop(self) -> None:
        """Stop, and save how far the pass has come."""
        self._is_stopping = True
        self._throttle.stop()
        if self._timer is not None:
            self._timer.cancel()
        while not self._tasks.is_idle:
            await self._tasks.changed()

    # A pass.

    async def _load(self) -> None:
        if not self._is_loaded:
            read = partial(read_scrub_progress, self._store.filesystem, self._store.path)
            saved: ScrubProgress | None = await self._background.run(read)
            self.progress = saved or ScrubProgress(since_ms=self._store.now_ms())
            self._is_loaded = True

    async def _run(self, *, is_forced: bool) -> None:
        async with self._running:
            await self._load()
            interval_ms, now_ms = self._store.config.scrub_interval_ms, self._store.now_ms()
            if not is_forced and not is_pass_due(
                self.progress, now_ms=now_ms, interval_ms=interval_ms
            ):
                return
            self.progress = begin_pass(self.progress, now_ms=now_ms)
            try:
                for name in sorted(self._store.unsorted_names()):
                    await self._scrub_log(name)
                self.progress = end_pass(self.progress, now_ms=self._store.now_ms())
            except Stopping:
                pass
            await self._save()

    async def _scrub_log(self, name: LogName) -> None:
        try:
            for segment in self._segments(name):
                if is_ahead(self.progress, name, segment.base_offset):
                    await self._scrub_segment(name, segment)
        except Stopping:
            raise
        except MillstreamError as error:
            self.counters.failures += 1
            logger.warning("scrub of %s: %s", name, error)
        except Exception:  # A failure of one log must not keep others from being checked.
            self.counters.failures += 1
            logger.exception("scrub of %s failed", name)

    def _segments(self, name: LogName) -> Sequence[SealedSegment]:
        """Return the sealed segments of a log on disk, open or not."""
        log = self._store.find(name)
        if log is not None:
            return () if log.config.durability is Durability.EPHEMERAL else _local(log.sealed)
        recovered = self._store.recovered_log(name)
        return () if recovered is None else _local(recovered.sealed)

    async def _scrub_segment(self, name: LogName, segment: SealedSegment) -> None:
        if self._is_stopping:
            raise Stopping("the scrub was stopped")
        if (await self._check(segment)).damage:
            await self._confirm(name, segment)
        self.counters.segments += 1
        self.progress = replace(self.progress, last=ScrubPosition(*name, segment.base_offset))
        if self._store.now_ms() - self._saved_ms >= SAVE_MS:
            await self._save()

    async def _check(self, segment: SealedSegment) -> SegmentCheck:
        check = partial(check_segment, segment, on_read=self._count)
        result: SegmentCheck = await self._background.run(check)
        return result

    def _count(self, size: int) -> None:
        """Count bytes that were read, and wait for their time to pass; called in the thread."""
        self.counters.bytes += size
        self._throttle.pause(size)

    async def _confirm(self, name: LogName, segment: SealedSegment) -> None:
        """Check a segment that looks damaged again, with its log open, and report it.

        It may have been rewritten, evicted or cut while it was read.
        """
        log = self._store.find(name) or await self.opener(name)

        def find(_: object) -> SealedSegment | None:
            return next((s for s in _local(log.sealed) if s.path == segment.path), None)

        checked = await check_in_log(log, find, self._check)
        self.counters.damaged_segments += checked is not None and bool(checked[1].damage)

    async def _save(self) -> None:
        self._saved_ms = self._store.now_ms()
        write = partial(
            write_scrub_progress, self._store.filesystem, self._store.path, self.progress
        )
        await self._background.run(write)

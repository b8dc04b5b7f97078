"""Upkeep: what happens to the logs of a store though nobody asks for it.

    every interval   close growing segments that are too old   one log after the other,
                     evict what has to go                       open or not
                     keep the clock and the spare file

    beside that      clean: compact, reclaim what was deleted   one log after the other

Eviction never waits for cleaning, which may take hours: a full disk has to be cleared now. What
goes wrong with one log is logged and counted, and the others are looked after all the same.

A log that is not open is judged by what recovery found of it, and opened only if there is something
to do.
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
from millstream.errors import Busy, LogClosed, MillstreamError, Stopping
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.compaction.plan import (
    RECLAIM_MS_MAX,
    RECLAIM_RATIO_MIN,
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
    from millstream.storage.store import LogName, Store

logger = logging.getLogger(__name__)

LOGS_PER_TURN = 100
"""How many logs are looked at before the event loop may do something else: about a millisecond."""


@dataclass(slots=True)
class MaintenanceCounters:
    """Running totals since the store was opened."""

    runs: int = 0
    """How often all logs were looked at."""
    failures: int = 0
    """How often something went wrong with one of them."""


class MaintenanceView(NamedTuple):
    """What there is to know of a log, open or not."""

    segments: Sequence[Segment]
    start: int
    committed: int
    config: LogConfig
    partition: PartitionMetadata
    is_open: bool
    needed: int | None = None
    """The first offset that must stay. Of a log that is not open, evicting it asks for that."""


class Maintenance:
    """Looks after the logs of one store. Belongs to its event loop."""

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
        """Returns a log, opened as whoever uses it needs it: who knows its settings, or guards it,
        may set another."""
        self.config_of: Callable[[LogName], LogConfig | None] = store.config_of
        """The settings of a log that is not open; `None` where it is to be left alone."""
        self._tasks = BackgroundTasks()
        self._trimming = asyncio.Lock()
        self._cleaning = asyncio.Lock()
        self._timers: Timers | None = None
        self._timer: Timer | None = None
        self._is_stopping = False

    # When.

    def start(self, timers: Timers) -> None:
        """Look after all logs every interval from here on, unless the store is set not to."""
        if self.interval_seconds and self._timers is None:
            self._timers = timers
            self._set_timer()

    @property
    def interval_seconds(self) -> float:
        """How long from one run to the next; 0 is for ever."""
        return self._store.config.upkeep_interval_ms / 1000

    def _set_timer(self) -> None:
        assert self._timers is not None
        self._timer = self._timers.call_later(self.interval_seconds, self._begin)

    def _begin(self) -> None:
        """Begin what is not still under way from the last time."""
        self._set_timer()
        if not self._trimming.locked():
            self._tasks.start(self._trim_all())
        if not self._cleaning.locked():
            self._tasks.start(self._clean_all(is_forced=False))

    async def run_once(self, *, is_forced: bool = False) -> None:
        """Look after all logs, and return when that is done.

        `is_forced` cleans whatever can be cleaned, worth it or not.
        """
        if self._is_stopping:
            raise LogClosed(f"{self._store.path} is closed")
        await asyncio.shield(self._tasks.start(self._run(is_forced=is_forced)))

    async def _run(self, *, is_forced: bool) -> None:
        await self._trim_all()
        await self._clean_all(is_forced=is_forced)

    async def stop(self) -> None:
        """Begin nothing more, cut short what can be, and wait for the rest."""
        self._is_stopping = True
        self._throttle.stop()
        if self._timer is not None:
            self._timer.cancel()
        while not self._tasks.is_idle:
            await self._tasks.changed()

    # What.

    def plan_evictions(self) -> list[tuple[LogName, Eviction]]:
        """Say what would go if all logs were looked after now. Nothing is touched."""
        plans = ((name, self._plan(self._view(name))) for name in self._store.names())
        return [(name, plan) for name, plan in plans if plan is not None]

    async def _trim_all(self) -> None:
        """Close segments and evict, in all logs."""
        async with self._trimming:
            async for name in self._names():
                view = self._view(name)
                if view is not None and self._is_due_to_roll(view):
                    await self._attempt(name, Log.roll)
                    view = self._view(name)
                if (plan := self._plan(view)) is not None:
                    await self._attempt(name, partial(Log.evict_before, offset=plan.before_offset))
            await self._store.run_housekeeping()
            self.counters.runs += 1

    async def _clean_all(self, *, is_forced: bool) -> None:
        """Clean all logs that need it."""
        async with self._cleaning:
            async for name in self._names():
                if self._may_need_cleaning(name, is_forced=is_forced):
                    await self._attempt(name, partial(self.clean, is_forced=is_forced))

    async def _names(self) -> AsyncIterator[LogName]:
        """Go over all logs, and let others have the event loop now and then."""
        for number, name in enumerate(self._store.unsorted_names(), start=1):
            if self._is_stopping:
                return
            yield name
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _attempt(self, name: LogName, work: Callable[[Log], Awaitable[object]]) -> None:
        """Do something with a log; what goes wrong is its own trouble."""
        try:
            await work(await self.opener(name))
        except (Stopping, LogClosed, Busy):
            pass  # It closes, alone or with the whole store, or someone else cleans it just now.
        except MillstreamError as error:
            self.counters.failures += 1
            logger.warning("upkeep of %s: %s", name, error)
        except Exception:  # One log must not keep the disk from being cleared of the others.
            self.counters.failures += 1
            logger.exception("upkeep of %s failed", name)

    # One log.

    def _view(self, name: LogName) -> MaintenanceView | None:
        """Return what is known of a log; nothing where it cannot be used, or be written."""
        if (log := self._store.find(name)) is not None:
            if log.offline is not None:
                return None
            state = (log.segments, log.start_offset, log.end_offset)
            needed = log.needed_offset
            return MaintenanceView(*state, log.config, log.partition, is_open=True, needed=needed)
        found, config = self._store.recovered_log(name), self.config_of(name)
        if found is None or found.offline is not None or config is None:
            return None
        segments, start = found.segments, found.partition.start_offset
        end = segments[-1].next_offset if segments else start
        return MaintenanceView(
            segments, start, max(start, end), config, found.partition, is_open=False
        )

    def _is_due_to_roll(self, view: MaintenanceView) -> bool:
        now_ms = self._store.now_ms()
        return is_roll_due(view.segments, config=view.config, now_ms=now_ms)

    def _plan(self, view: MaintenanceView | None) -> Eviction | None:
        if view is None:
            return None
        return plan_eviction(
            view.segments,
            start=view.start,
            committed=view.committed,
            config=view.config,
            now_ms=self._store.now_ms(),
            needed=view.needed,
        )

    def _may_need_cleaning(self, name: LogName, *, is_forced: bool) -> bool:
        """Whether it is worth asking a log what there is to clean, and opening it for that."""
        if (view := self._view(name)) is None:
            return False
        is_cut = any(one.base_offset < view.start < one.next_offset for one in view.segments)
        if is_forced or is_cut or view.partition.deletions:
            return True
        if not view.config.is_compacted:
            return False
        if view.is_open:
            return True
        found = rewritable_segments(view.segments, start=view.start, end=view.committed)
        plan = plan_compaction(
            found,
            cleaned_offset=view.partition.cleaned_offset,
            config=view.config,
            now_ms=self._store.now_ms(),
            tombstones_due_ms=view.partition.tombstones_due_ms or None,
        )
        return plan is not None

    async def clean(
        self, log: Log, *, is_forced: bool = False, throttle: IoThrottle | None = None
    ) -> CleanerResult | None:
        """Clean one log that is open, and return what that did; see `Cleaning.clean`.

        It is held up by the `throttle` that is given, or else by that of all logs.
        """
        config = self._store.config
        if self._has_masked_growing(log, is_forced=is_forced):
            await log.roll()  # Only closed segments are rewritten.
        return await log.clean(
            background=self._background,
            throttle=throttle or self._throttle,
            memory_bytes_max=config.cleaning_memory_bytes_max,
            seed=self._random_seed(),
            is_forced=is_forced,
        )

    def _has_masked_growing(self, log: Log, *, is_forced: bool) -> bool:
        """Whether so much was deleted by key from the growing segment that it is to be closed."""
        last = log.segments[-1] if log.segments else None
        if not isinstance(last, GrowingSegment) or last.base_offset not in log.masks:
            return False
        return (
            is_forced
            or log.masks[last.base_offset].bytes >= RECLAIM_RATIO_MIN * last.size
            or self._store.now_ms() - last.stats.created_ms >= RECLAIM_MS_MAX
        )

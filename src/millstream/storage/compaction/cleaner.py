"""Cleaning a log: compaction, reclaim of what was deleted by key, and merging of small segments.

A run reads and writes in a thread of its own, slowly, and replaces a group of segments at a time
(`switching.py`). Rules that it keeps:

1. **Compaction compares keys up to one offset.** It takes note of the dirty segments from
   `cleaned_offset` on, in order, as far as its memory goes: up to an offset E, at the end of a
   segment, or inside the first of them if the memory does not even last for that. Then it rewrites
   all segments before E in rising order, each group durable before the next. When all are done,
   E becomes `cleaned_offset`, durably. So before `cleaned_offset` no key has two records. A run
   that ends early leaves `cleaned_offset` where it was, and the next one starts over: to drop what
   is gone already is to do nothing.

2. **No key comes back.** A tombstone goes when its time is over, and then no older record of its
   key may be left in any file. In a run it goes only if it lies before E. If it lies at or after
   the old `cleaned_offset`, its key is in the table, so every older record was dropped from a group
   before its own, durably, or from its own, with the same seal. If it lies before, no older one was
   left, by rule 1. What is left out on purpose does not break this: records that are too young for
   compaction, or beyond E, are newer than all tombstones that may go; a deleted older record is
   hidden by its rule, which stays as long as the record is in a file; one of an aborted transaction
   is not in the table, so it drops nothing, and is dropped itself.

3. **Damage is a wall.** When a segment cannot be read that is reported, and the run ends without
   replacing it or anything behind it. Later runs leave it as it is and clean all around it. It may
   hold older records of any key, so no tombstone behind it goes; and it may be repaired one day, so
   `cleaned_offset` does not pass it, though as long as the log is open it is remembered how far
   compaction came. A segment that is missing is a wall too.

4. **Transactions are settled or left alone.** Only segments before the guard's stable offset are
   compacted: there every transaction has ended. Data loses its transactional bit in a group before,
   or the same as, the one that loses the commit marker. When merging or reclaiming, transactional
   batches and markers stay as they are. Without a guard nobody knows which transactions were
   aborted, so compaction ends before the first segment that holds one.

5. **Deletions are never lost.** A run removes the records that were masked when it began, and tells
   so; masks that came since stay masks of what takes their place. A rule leaves `partition.json`
   when no record is masked any more that it could have hit.

6. **A run can be ended at any time.** It is a task of the log: closing stops it and waits for the
   chunk at hand. What was switched stays; what was being written is removed.

What is written is synced before its seal, whatever the class of the log: its inputs were sealed and
therefore durable. On a full disk what was written is removed, it is said once, and the next run
tries again. Logs in memory are cleaned the same way, and a full memory is a full disk to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from millstream.config.schema import LogConfig
from millstream.errors import Busy, LogClosed, LogOffline, MillstreamError, Stopping
from millstream.storage.compaction.cleaner_run import CleanerMemory, CleanerResult, CleanerRun
from millstream.storage.compaction.compaction_pass import CompactionPass, KeyMemoryExceeded
from millstream.storage.compaction.merge_pass import MergePass
from millstream.storage.compaction.segment_chunks import DamagedSegment
from millstream.storage.compaction.segment_swap import SegmentSwap, SwapConflict
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.segment import SealedSegment

__all__ = ["CleanerResult", "LogCleaner"]

logger = logging.getLogger(__name__)


class LogCleaner:
    """The cleaning of one log. Belongs to its event loop.

    For the writer, which makes one for each log:

    - It calls `stop` first thing when it closes the log or discards it, before it waits until all
      tasks have ended: a run is one of them. It must have ended before the directory can become
      that of another log.
    - It gives `retire`, which has it promise not to open a sealed segment again, to append to it;
      False where it has begun to. Otherwise a rewrite could take the place of a segment that has
      grown since.

    `guard` returns whoever guards the log then. `now_ms` is steady time, `monotonic` is for
    measuring how long runs take.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        removal_hooks: Callable[[], RemovalHooks | None],
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        retire: Callable[[SealedSegment], bool],
    ) -> None:
        self._context = context
        self._removal_hooks = removal_hooks
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._switching = SegmentSwap(context, retire=retire)
        self._memory = CleanerMemory()
        self._throttle: IoThrottle | None = None
        self._is_stopped = False
        self._complaint = ""

    @property
    def is_stopped(self) -> bool:
        """Whether no run does anything: the log closes, or it is in doubt which files it has."""
        return self._is_stopped or self._switching.is_uncertain

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._throttle is not None

    def stop(self) -> None:
        """End the run that is under way soon, and begin no other."""
        self._is_stopped = True
        if self._throttle is not None:
            self._throttle.wake()

    async def clean(
        self,
        config: LogConfig,
        *,
        background: Executor,
        throttle: IoThrottle,
        memory_bytes_max: int,
        seed: int,
        is_forced: bool = False,
    ) -> CleanerResult | None:
        """Do what is worth doing, and return what that was; nothing where there was nothing to do.

        The long work is done in `background`, which should not be that of the commits. `seed` is a
        random number of up to 128 bits, against keys that were chosen to be slow. `is_forced`
        compacts all that is old enough, reclaims every deleted byte and merges the small segments
        of any log. Where something fails, that is logged and counted, and the run ends; the next
        one tries again. One run at a time: another raises `Busy`.
        """
        if self.is_running:
            raise Busy(f"{self._context.name} is being cleaned")
        if self._is_stopped:
            return None
        self._throttle = throttle
        run = CleanerRun(
            self._context,
            self._switching,
            self._memory,
            config=config,
            removal_hooks=self._removal_hooks(),
            background=background,
            pace=partial(throttle.pause, unless=lambda: self._is_stopped),
            now_ms=self._now_ms,
            monotonic=self._monotonic,
            memory_bytes_max=memory_bytes_max,
            seed=seed,
            is_forced=is_forced,
        )
        return await asyncio.shield(self._context.tasks.start(self._go(run)))

    async def _go(self, run: CleanerRun) -> CleanerResult | None:
        counters, began = self._context.counters, self._monotonic()
        try:
            await self._attempt(run)
        finally:
            self._throttle = None
            run.done.seconds = self._monotonic() - began
            counters.cleaning_seconds += run.done.seconds
        if run.done.is_nothing:
            return None
        counters.cleanings += 1
        return run.done

    async def _attempt(self, run: CleanerRun) -> None:
        """Do a run. What ends it early is no reason for anyone else to stop."""
        try:
            await self._switching.settle()
            if not self.is_stopped:
                await _clean(run)
                self._complaint = ""
        except (Stopping, LogClosed, LogOffline):
            pass
        except SwapConflict as overtaken:
            logger.debug("%s: cleaning ends early: %s", self._context.name, overtaken)
        except DamagedSegment as damaged:
            if damaged.segment in self._context.state.snapshot.segments:
                self._memory.damaged.add(damaged.segment.path)
                self._fail(damaged)
        except (OSError, MillstreamError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Count a failure, and tell of it unless it is the same again."""
        self._context.counters.cleaning_failures += 1
        if self._complaint != str(error):
            self._complaint = str(error)
            logger.error("%s: cleaning failed: %s", self._context.name, error)


async def _clean(run: CleanerRun) -> None:
    """Do all that is worth it."""
    trouble: KeyMemoryExceeded | None = None
    if run.config.is_compacted:
        try:
            await CompactionPass(run).compact()
        except KeyMemoryExceeded as error:
            trouble = error  # Which must not keep from going what was deleted.
    tidying = MergePass(run)
    await tidying.tidy()
    await tidying.drop_rules()
    if trouble is not None:
        raise trouble

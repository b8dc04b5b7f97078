"""Log cleaner: compaction, reclaim of records deleted by key, and merging of small segments.

A run reads and writes in a thread of its own, throttled, and replaces one group of segments at a
time (`segment_swap.py`). It keeps these rules:

1. **Compaction compares keys up to one offset.** It adds the keys of the dirty segments from
   `cleaned_offset` on to a table, in order, as far as its memory goes: up to an offset E, at the
   end of a segment, or inside the first of them if the memory is not even enough for that. Then it
   rewrites all segments before E in ascending order, each group durable before the next. When all
   are done, E becomes `cleaned_offset`, durably. So before `cleaned_offset` no key has two records.
   A run that ends early leaves `cleaned_offset` unchanged, and the next one starts over: dropping
   records that are gone already has no effect.

2. **No key comes back.** A tombstone is removed when it has expired, and then no older record of
   its key may be left in any file. A run removes it only if it is before E. If it is at or after
   the old `cleaned_offset`, its key is in the table, so every older record was dropped from an
   earlier group, durably, or from its own, with the same seal. If it is before, no older one was
   left, by rule 1. What is left out on purpose does not break this: records that are too young for
   compaction, or beyond E, are newer than all tombstones that may be removed; a deleted older
   record is hidden by its rule, which stays as long as the record is in a file; a record of an
   aborted transaction is not in the table, so it drops nothing, and is dropped itself.

3. **Damage is a wall.** If a segment cannot be read, that is reported, and the run ends without
   replacing it or anything after it. Later runs leave it as it is and clean everything around it.
   It may hold older records of any key, so no tombstone after it is removed; and it may be repaired
   one day, so `cleaned_offset` does not pass it, though the progress of compaction beyond it is
   kept in memory while the log is open. A missing segment is a wall too.

4. **Transactions are settled or left alone.** Only segments before the stable offset of the hooks
   are compacted: there every transaction has ended. Data loses its transactional bit in a group
   before, or the same as, the one that loses the commit marker. When merging or reclaiming,
   transactional batches and markers stay as they are. Without hooks it is unknown which
   transactions were aborted, so compaction ends before the first segment that has one.

5. **Deletions are never lost.** A run removes the records that were masked when it began, and
   reports them; masks that were added since carry over to the new segment. A rule is removed from
   `partition.json` when no masked record is left that it could have matched.

6. **In a cluster the leader decides.** Compaction of a log with replicas follows a decision in the
   log: up to which offset keys are compared, and before which offset tombstones are removed. Each
   replica carries it out in its own time, completely or in parts, and has the same records in the
   end. No key beyond the decided offset counts, and no clock. Reclaiming and merging change nothing
   that readers see, so each replica does them as it likes. A replica leaves its last segment
   alone: its leader may still add to it.

7. **A run can be ended at any time.** It is a task of the log: closing stops it and waits for the
   current chunk. Groups already swapped stay; the file being written is removed.

Output is synced before its seal, whatever the durability class of the log: its inputs were sealed
and therefore durable. On a full disk the output is removed, the error is logged once, and the next
run tries again. Logs in memory are cleaned the same way; a full memory is a full disk to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from millstream.config.schema import LogConfig
from millstream.errors import Busy, LogClosed, LogOffline, MillstreamError, Stopping
from millstream.records.decision import CleaningDecision
from millstream.storage.compaction.cleaner_run import CleanerMemory, CleanerResult, CleanerRun
from millstream.storage.compaction.compaction_pass import CompactionPass, KeyMemoryExceeded
from millstream.storage.compaction.merge_pass import MergePass
from millstream.storage.compaction.plan import is_carried_out, plan_decision, rewritable_segments
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
    """The cleaner of one log. Belongs to its event loop.

    Contract with the writer, which creates one for each log:

    - It calls `stop` first when it closes or discards the log, before it waits for all tasks to
      end: a run is one of them. The run must have ended before the directory can become that of
      another log.
    - It passes `retire`, with which it promises not to reopen a sealed segment in order to append
      to it; returns False if it has begun to. Otherwise a rewrite could replace a segment that has
      grown since.

    `removal_hooks` returns the current hooks of the log. `now_ms` is the retention clock,
    `monotonic` measures how long runs take.
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
        self._swap = SegmentSwap(context, retire=retire)
        self._memory = CleanerMemory()
        self._throttle: IoThrottle | None = None
        self._is_stopped = False
        self._interruptions = 0
        self._last_error = ""

    @property
    def is_stopped(self) -> bool:
        """Whether runs do nothing: the log is closing, or it is uncertain which files it has."""
        return self._is_stopped or self._interruptions > 0 or self._swap.is_uncertain

    @property
    def is_uncertain(self) -> bool:
        """Whether it is uncertain which files the next start finds."""
        return self._swap.is_uncertain

    @contextlib.asynccontextmanager
    async def interrupted(self) -> AsyncIterator[None]:
        """End the current run, and start no other until this is left.

        No unfinished output is left, and the files of all replaced segments are removed, or cannot
        be. Not to be used inside the exclusive section of the log, in which a run may have to end.
        """
        self._interruptions += 1
        try:
            if self._throttle is not None:
                self._throttle.wake()
            while self.is_running:
                await self._context.tasks.changed()
            await self._swap.wait_for_removals()
            yield
        finally:
            self._interruptions -= 1

    @property
    def is_running(self) -> bool:
        """Whether a run is in progress."""
        return self._throttle is not None

    def stop(self) -> None:
        """End the current run soon, and start no other."""
        self._is_stopped = True
        if self._throttle is not None:
            self._throttle.wake()

    def next_decision(
        self, config: LogConfig, *, cleaned_elsewhere: int, is_forced: bool
    ) -> CleaningDecision | None:
        """Return what the leader of a replicated log should decide, if that is worthwhile now.

        All other replicas have compacted the log up to `cleaned_elsewhere`. Nothing is decided
        before the last decision was carried out here.
        """
        context, hooks = self._context, self._removal_hooks()
        partition, snapshot = context.metadata_file.partition, context.state.snapshot
        applied = partition.decisions
        if self.is_stopped or applied is None:
            return None
        if not is_carried_out(partition) and self._memory.carried_out != applied.cleaning:
            return None
        end = snapshot.committed.offset
        if hooks is not None:
            end = min(end, hooks.stable_offset())
        return plan_decision(
            rewritable_segments(snapshot.segments, start=snapshot.start, end=end),
            partition=partition,
            config=config,
            now_ms=self._now_ms(),
            cleaned_elsewhere=cleaned_elsewhere,
            is_forced=is_forced,
        )

    async def clean(
        self,
        config: LogConfig,
        *,
        background: Executor,
        throttle: IoThrottle,
        memory_bytes_max: int,
        seed: int,
        is_forced: bool = False,
        is_replica: bool = False,
    ) -> CleanerResult | None:
        """Do what is worthwhile, and return what was done; `None` if there was nothing to do.

        The long work runs in `background`, which should not be the executor of the commits. `seed`
        is a random number of up to 128 bits, against keys that were chosen to be slow. `is_forced`
        compacts everything that is old enough, reclaims every deleted byte and merges the small
        segments of any log. A failure is logged and counted and ends the run; the next one tries
        again. One run at a time: another raises `Busy`.
        """
        if self.is_running:
            raise Busy(f"{self._context.name}: a cleaner run is in progress")
        if self._is_stopped or self._interruptions:
            return None
        self._throttle = throttle
        run = CleanerRun(
            self._context,
            self._swap,
            self._memory,
            config=config,
            removal_hooks=self._removal_hooks(),
            background=background,
            throttle=partial(
                throttle.pause, unless=lambda: self._is_stopped or self._interruptions > 0
            ),
            now_ms=self._now_ms,
            monotonic=self._monotonic,
            memory_bytes_max=memory_bytes_max,
            seed=seed,
            is_forced=is_forced,
            is_replica=is_replica,
        )
        return await asyncio.shield(self._context.tasks.start(self._run(run)))

    async def _run(self, run: CleanerRun) -> CleanerResult | None:
        counters, began = self._context.counters, self._monotonic()
        try:
            await self._attempt(run)
        finally:
            self._throttle = None
            run.done.seconds = self._monotonic() - began
            counters.cleaning_seconds += run.done.seconds
        if run.done.is_empty:
            return None
        counters.cleanings += 1
        return run.done

    async def _attempt(self, run: CleanerRun) -> None:
        """Do a run. Its failures do not affect other work."""
        try:
            await self._swap.settle()
            if not self.is_stopped:
                await _clean(run)
                self._last_error = ""
        except (Stopping, LogClosed, LogOffline):
            pass
        except SwapConflict as conflict:
            logger.debug("%s: cleaner run ended early: %s", self._context.name, conflict)
        except DamagedSegment as damaged:
            if damaged.segment in self._context.state.snapshot.segments:
                self._memory.damaged.add(damaged.segment.path)
                self._fail(damaged)
        except (OSError, MillstreamError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Count a failure, and log it unless it is the same again."""
        self._context.counters.cleaning_failures += 1
        if self._last_error != str(error):
            self._last_error = str(error)
            logger.error("%s: cleaning failed: %s", self._context.name, error)


async def _clean(run: CleanerRun) -> None:
    """Do everything that is worthwhile."""
    exceeded: KeyMemoryExceeded | None = None
    if run.is_compacting:
        try:
            await CompactionPass(run).compact()
        except KeyMemoryExceeded as error:
            exceeded = error  # Deleted records must be reclaimed all the same, so raise it later.
    merge_pass = MergePass(run)
    await merge_pass.merge()
    await merge_pass.drop_rules()
    if exceeded is not None:
        raise exceeded

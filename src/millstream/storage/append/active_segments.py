"""Active segments of one log: writing pending batches, rolling and sealing.

    sealed             being sealed         growing
    +---------------+  +---------------+    +----------- - -
    |               |  |               |    |             <- batches
    +---------------+  +---------------+    +----------- - -
     may be reopened    in the background
     if it is last and
     has capacity

A segment that is full, too old or of an older epoch is sealed while the next one grows. At most two
segments have no seal, because that is what a start after a crash has to scan. A third is not
started: its batches wait.

In a replica the leader decides where segments begin and end (`replica_append.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial

from millstream.config.schema import Durability, LogConfig
from millstream.errors import MillstreamError, StorageFailed, Unavailable
from millstream.records.batch import BatchHeader
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.commit_state import CommitState
from millstream.storage.append.replica_append import (
    ReplicaAppend,
    ReplicaTail,
    gather_slices,
    record_slices,
    write_slices,
)
from millstream.storage.append.segment_write import gather_batches, record_written, write_appends
from millstream.storage.disk.errors import is_disk_full, transient_error
from millstream.storage.disk.filesystem import File
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import Seal, SegmentStats, stats_from_seal
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.retention.eviction import segment_age_ms_max
from millstream.storage.retention.log_start import LogStart
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.lifecycle import (
    SegmentSyncFailed,
    remove_checkpoint,
    seal_segment,
    unseal_segment,
)
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import LogPosition
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment

logger = logging.getLogger(__name__)


class ActiveSegments:
    """The unsealed segments of one log.

    `retention_now_ms` is the clock by which data ages. `go_offline` is called when it is not known
    what is on the disk, `on_open` when a file was opened for writing, and `on_disk_full` when the
    disk had no space for a write.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        config: LogConfig,
        recovered: RecoveredLog,
        queue: AppendQueue,
        commit: CommitState,
        log_start: LogStart,
        retention_now_ms: Callable[[], int],
        go_offline: Callable[[Exception], None],
        on_open: Callable[[], None],
        on_disk_full: Callable[[], None],
    ) -> None:
        self._context = context
        self._queue = queue
        self._commit = commit
        self._log_start = log_start
        self._retention_now_ms = retention_now_ms
        self._go_offline = go_offline
        self._on_open = on_open
        self._on_disk_full = on_disk_full
        self.growing = None if recovered.offline else recovered.growing
        self.sealing: GrowingSegment | None = None
        self.seal_error: OSError | None = None
        """Why sealing failed, until it is tried again. On a full disk that can take a while."""
        self.disk_full: Unavailable | None = None
        """The error of the last write, if the disk had no space for it."""
        self.is_paused = False
        """Whether writing waits for the work of `pause_until`."""
        self.is_replica = False
        """Whether the leader of the log decides where segments begin and end."""
        self._is_learning_epoch = False
        self._can_reopen = not recovered.damage
        self._reopening = -1
        self._retired = -1
        """Sealed segments up to this base offset are not reopened, whatever capacity they have."""
        self._log_directory = context.log_directory
        self._config = config
        self._age_ms_max = segment_age_ms_max(config)

    def apply_config(self, config: LogConfig) -> None:
        """Use other settings from the next batch on."""
        self._config = config
        self._age_ms_max = segment_age_ms_max(config)
        self._log_directory = replace(
            self._log_directory, index_interval_bytes=config.index_interval_bytes
        )

    @property
    def unsealed(self) -> list[GrowingSegment]:
        """The segments without a seal, in the order of the log."""
        return [segment for segment in (self.sealing, self.growing) if segment]

    @property
    def is_stalled(self) -> bool:
        """Whether no further segment can be started now."""
        return self.sealing is not None and self.growing is not None

    @property
    def is_sealing(self) -> bool:
        """Whether a segment is being sealed, and that has not failed."""
        return self.sealing is not None and self.seal_error is None

    @property
    def is_open(self) -> bool:
        """Whether a file is open for writing."""
        return self.growing is not None and self.growing.file is not None

    @property
    def written_position(self) -> LogPosition:
        """How far the log is written."""
        last = self.growing or self.sealing
        assert last is not None, "what was written is in a segment without a seal"
        return LogPosition(last.next_offset, last.base_offset, last.size)

    # Writing.

    def flush(self) -> None:
        """Write all pending batches, as far as there is a segment for them."""
        pending = self._queue.pending
        while pending and not self.is_paused:
            first = pending[0]
            if self.is_replica:
                assert isinstance(first, ReplicaAppend), "a replica has no other appends"
                segment = self._segment_for_slice(first)
            else:
                segment = self._segment_for(first.header, first.offset)
            if segment is None:
                break  # Flushed again when a segment was sealed or reopened.
            if self.is_replica:
                self._write_slices(segment)
            else:
                self._write(segment)
        self._context.tasks.notify()

    def _write(self, segment: GrowingSegment) -> None:
        """Write the pending batches that fit into `segment` at once."""
        pending = self._queue.pending
        appends = gather_batches(pending, segment, self._config)
        try:
            pieces = write_appends(self.open_file(segment), segment, appends)
        except OSError as error:
            self._undo_write(segment, error)
            return
        record_written(segment, appends, pieces, self._context.counters, self._commit.totals)
        self.disk_full = None
        for _ in appends:
            pending.popleft()
        self._commit.add(segment, appends)

    def _write_slices(self, segment: GrowingSegment) -> None:
        """Write the pending slices of `segment` at once, and finish it if that is its end."""
        pending = self._queue.pending
        appends = gather_slices(pending, segment)
        try:
            write_slices(self.open_file(segment), segment, appends)
        except OSError as error:
            self._undo_write(segment, error)
            return
        record_slices(segment, appends, self._context.counters, self._commit.totals)
        self.disk_full = None
        for _ in appends:
            pending.popleft()
        self._commit.add(segment, list(appends))
        last = appends[-1].source
        if last.is_last_of_segment:
            self._finish(segment, self._retention_now_ms() - last.sealed_age_ms)

    def _undo_write(self, segment: GrowingSegment, error: OSError) -> None:
        """Cut off what a failed write may have left, and refuse the pending batches."""
        try:
            if segment.file is not None:
                segment.file.truncate(segment.size)
        except OSError as worse:
            self._go_offline(worse)
            return
        segment.forget_reserve()
        self._refuse_pending(error)

    def _refuse_pending(self, error: OSError) -> None:
        """Refuse everything that is not written, and take back its offsets.

        An error that is not transient takes the log offline instead.
        """
        context, queue = self._context, self._queue
        refusal = transient_error(context.name, error)
        if refusal is None:
            self._go_offline(error)
            return
        count = len(queue.pending)
        context.counters.refusals["full"] += count
        if is_disk_full(error):
            self.disk_full = refusal
            self._on_disk_full()
        if count and self._config.durability is Durability.MEMORY:
            logger.error("%s: %d acknowledged batches lost", context.name, count)
        if count:
            queue.rewind(queue.pending[0].offset)
        queue.refuse_waiting(refusal)
        queue.refuse_pending(refusal)
        context.tasks.notify()

    def open_file(self, segment: GrowingSegment) -> File:
        """Return the file of a segment, open for writing."""
        is_open = segment.file is not None
        file = segment.open()
        if not is_open:
            self._on_open()
        return file

    def close_idle(self) -> bool:
        """Close the files if the log is idle; the next write opens them again."""
        growing = self.growing
        is_busy = self._queue.pending or self._commit.has_unsynced or self.sealing
        if growing is None or growing.file is None or is_busy:
            return False
        growing.file = None
        self._commit.checkpoint = None
        return True

    def pause_until(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `work`, and write nothing until it is done."""
        self.is_paused = True
        return self._context.tasks.start(self._pause(work))

    async def _pause(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self.is_paused = False
            self._queue.schedule_flush()

    async def wait_until_resumed(self) -> None:
        """Wait until nothing pauses writing; raise if the log goes offline or closes meanwhile."""
        while self.is_paused:
            await self._context.tasks.changed()
            self._queue.check_writable()

    # The segment for the next batch.

    def _segment_for(self, header: BatchHeader, offset: int) -> GrowingSegment | None:
        """Return the segment for a batch; None if it has to wait for one."""
        growing = self.growing
        if growing is None and (sealed := self._reopenable(header)):
            self._reopening = sealed.base_offset
            self.pause_until(self._reopen(sealed))
            return None
        if growing and growing.size == 0:
            # An empty segment has no batch of an older epoch, so it can take the current one.
            growing.stats.leader_epoch = self._context.metadata_file.partition.leader_epoch
        if growing and growing.sealed_ms is None and self._fits(growing.stats, header):
            return growing
        return self._begin(offset)

    def _fits(self, stats: SegmentStats, header: BatchHeader) -> bool:
        """Return whether a batch may be written to a segment."""
        if stats.leader_epoch != self._context.metadata_file.partition.leader_epoch:
            return False
        if stats.size == 0:
            return True
        config = self._config
        return (
            stats.size + header.size <= config.segment_bytes_max
            and stats.record_count + header.record_count <= config.segment_records_max
            and self._retention_now_ms() - stats.created_ms <= self._age_ms_max
        )

    def _begin(self, base_offset: int, created_ms: int | None = None) -> GrowingSegment | None:
        """Start a segment, and seal the one before it in the background."""
        if self.is_stalled:
            self.seal_again()
            return None
        context = self._context
        try:
            file = self._log_directory.filesystem.create(
                self._log_directory.path(base_offset, "log")
            )
        except OSError as error:
            self._refuse_pending(error)
            return None
        self._commit.is_directory_dirty = True
        epoch = context.metadata_file.partition.leader_epoch
        if created_ms is None:
            created_ms = self._retention_now_ms()
        stats = SegmentStats(base_offset, leader_epoch=epoch, created_ms=created_ms)
        full, self.growing = (
            self.growing,
            GrowingSegment(self._log_directory, stats, SegmentIndex(), file),
        )
        context.state.replace_segments([*context.state.snapshot.segments, self.growing])
        context.counters.rolls += 1
        self._on_open()
        if full:
            self._start_sealing(full)
        return self.growing

    # The segment for the next slice of a replica.

    @property
    def replica_tail(self) -> ReplicaTail:
        """Where the next slice of a replica belongs."""
        segments = self._context.state.snapshot.segments
        last = self.growing or (segments[-1] if segments else None)
        assert last is None or isinstance(last, GrowingSegment | SealedSegment)
        return ReplicaTail(self._queue.next_offset, self._queue.pending, last)

    def _segment_for_slice(self, append: ReplicaAppend) -> GrowingSegment | None:
        """Return the segment for a slice; None if it has to wait for one."""
        growing, base_offset = self.growing, append.segment
        if growing and growing.base_offset == base_offset:
            return growing
        segments = self._context.state.snapshot.segments
        last = segments[-1] if segments else None
        if growing is None and isinstance(last, SealedSegment) and last.base_offset == base_offset:
            self._reopening = base_offset
            self.pause_until(self._reopen(last))
            return None
        if append.source.leader_epoch != self._context.metadata_file.partition.leader_epoch:
            self._learn_epoch(append.source.leader_epoch, base_offset)
            return None
        created_ms = self._retention_now_ms() - append.source.created_age_ms
        begun = self._begin(base_offset, created_ms)
        if begun is not None:
            begun.origin = append.origin
        return begun

    def _learn_epoch(self, number: int, start_offset: int) -> None:
        """Record the epoch of the next slice; it is durable before a batch has it."""
        if not self._is_learning_epoch:
            self._is_learning_epoch = True
            self._context.tasks.start(self._store_epoch(number, start_offset))

    async def _store_epoch(self, number: int, start_offset: int) -> None:
        metadata_file = self._context.metadata_file

        async def write() -> None:
            await metadata_file.write(metadata_file.partition.with_epoch(number, start_offset))

        try:
            await metadata_file.run_exclusive(write())
        except MillstreamError:
            pass  # The log is offline or closed: what was pending is refused.
        except OSError as error:
            # The file may have either epoch now: no batch may be written until that is known.
            self._go_offline(error)
        finally:
            self._is_learning_epoch = False
            self._queue.schedule_flush()

    def finish_replica_segment(self, sealed_age_ms: int) -> None:
        """Finish the last segment of a replica, all of which was written before.

        An empty one, left by a write that was refused, is forgotten; its file is used again.
        """
        growing, state = self.growing, self._context.state
        if growing is not None and growing.size > 0:
            self._finish(growing, self._retention_now_ms() - sealed_age_ms)
        elif growing is not None:
            self.growing = None
            state.replace_segments([s for s in state.snapshot.segments if s is not growing])

    def _finish(self, segment: GrowingSegment, sealed_ms: int) -> None:
        """Add no more to the growing segment, and seal it unless another is being sealed."""
        segment.sealed_ms = sealed_ms
        if self.sealing is None:
            self.growing = None
            self._start_sealing(segment)

    def is_finished(self, segment: Segment) -> bool:
        """Return whether a segment takes no more batches, as far as its leader decides that."""
        segments = self._context.state.snapshot.segments
        if not segments or segment.base_offset < segments[-1].base_offset:
            return True
        segment = segments[-1]  # It may have been sealed or reopened since.
        if segment.leader_epoch < self._context.metadata_file.partition.leader_epoch:
            return True
        if isinstance(segment, GrowingSegment):
            return segment.sealed_ms is not None
        assert isinstance(segment, SealedSegment)
        return segment.generation > 0 or segment.base_offset <= self._retired

    # Rolling and sealing.

    async def roll(self) -> None:
        """Seal the growing segment, if it has a record, and wait for that; raise if it failed."""
        context = self._context
        await context.metadata_file.run_exclusive(self._roll())
        while self.is_sealing and not self._commit.is_stopped:
            await context.tasks.changed()
        if (error := self.seal_error) and not self._commit.is_stopped:
            failed = StorageFailed(f"{context.name}: a segment could not be sealed: {error}")
            raise transient_error(context.name, error) or failed from error

    def roll_soon(self) -> None:
        """Seal the growing segment in the background."""
        self._context.tasks.start(self._try_roll())

    async def _try_roll(self) -> None:
        try:
            await self._context.metadata_file.run_exclusive(self._roll())
        except MillstreamError as error:
            logger.warning("%s: no segment was sealed: %s", self._context.name, error)

    async def _roll(self) -> None:
        self.seal_again()
        while self.is_paused or self.is_sealing:
            await self._context.tasks.changed()
            self._queue.check_writable()
        await self.pause_until(self._commit_and_detach())

    async def _commit_and_detach(self) -> None:
        await self._commit.wait_until_committed()
        if not self._commit.is_stopped:
            self._detach()

    def _detach(self) -> None:
        """Seal the growing segment, so that the next batch starts another.

        All of it must be committed. Does nothing if it is empty or another is being sealed.
        """
        growing = self.growing
        last = self._context.state.snapshot.segments[-1:]
        if growing is None:
            self._retired = max([self._retired, *(segment.base_offset for segment in last)])
        elif growing.size > 0 and self.sealing is None:
            self._retired = growing.base_offset
            self.growing = None
            self._start_sealing(growing)

    def retire(self, segment: SealedSegment) -> bool:
        """Promise not to reopen a sealed segment; return False if that has already started."""
        if segment.base_offset == self._reopening:
            return False
        self._retired = max(self._retired, segment.base_offset)
        return True

    def seal_again(self) -> None:
        """Retry to seal a segment, if that failed."""
        if self.sealing and self.seal_error:
            self._start_sealing(self.sealing)

    def _start_sealing(self, segment: GrowingSegment) -> None:
        if segment.sealed_ms is None:
            segment.sealed_ms = self._retention_now_ms()
        self.sealing = segment
        self.seal_error = None
        self._context.tasks.start(self._seal(segment))

    async def _seal(self, segment: GrowingSegment) -> None:
        assert segment.sealed_ms is not None, "a segment is finished before it is sealed"
        await self._commit.leave_to_seal(segment)
        if self._commit.is_stopped:
            return
        work = partial(seal_segment, segment, now_ms=segment.sealed_ms)
        try:
            seal = await self._context.background.run(work)
        except SegmentSyncFailed as failed:
            self._go_offline(failed.cause)
            return
        except OSError as error:
            # The bytes are synced, only the seal is missing. The next append that needs a new
            # segment tries again.
            self.seal_error = error
            self._refuse_pending(error)
            return
        self._publish(segment, seal)
        self.sealing = None
        self._commit.discard(segment)
        if (growing := self.growing) and growing.sealed_ms is not None:
            self._finish(growing, growing.sealed_ms)
        self._log_start.remove_dead_segments()
        self._queue.schedule_flush()
        self._queue.admit_waiting()

    def _publish(self, segment: GrowingSegment, seal: Seal) -> None:
        """Replace a segment by its sealed form, for readers."""
        state = self._context.state
        sealed = SealedSegment(self._log_directory, seal)
        state.replace_segments([sealed if s is segment else s for s in state.snapshot.segments])
        segment.file = None
        self._context.counters.seals += 1

    # Reopening.

    def _reopenable(self, header: BatchHeader) -> SealedSegment | None:
        """Return the last segment if it is sealed, undamaged, and has capacity for a batch.

        A rewritten segment is never written again: its seal is what makes it part of the log.
        """
        segments = self._context.state.snapshot.segments
        last = segments[-1] if segments else None
        if not self._can_reopen or not isinstance(last, SealedSegment):
            return None
        if isinstance(last, ColdSegment):
            return None
        if self._context.state.damage:
            return None  # Its seal tells where it ends if its last batches are lost.
        if last.generation > 0 or last.base_offset <= self._retired:
            return None
        return last if self._fits(stats_from_seal(last.seal), header) else None

    async def _reopen(self, sealed: SealedSegment) -> None:
        context = self._context
        try:
            file, index, self._commit.checkpoint = await context.background.run(
                partial(unseal_segment, self._log_directory, sealed)
            )
        except OSError as error:
            self._refuse_pending(error)
            return
        except Exception as error:  # noqa: BLE001 - else the same is tried again forever.
            self._go_offline(error)
            return
        finally:
            self._reopening = -1
        sealed.forget()
        self.growing = GrowingSegment(
            self._log_directory, stats_from_seal(sealed.seal), index, file
        )
        segments = context.state.snapshot.segments
        context.state.replace_segments([*segments[:-1], self.growing])
        self._on_open()

    # Closing.

    def release(self) -> list[GrowingSegment]:
        """Stop writing, and return the segments without a seal."""
        unsealed = self.unsealed
        self.growing = self.sealing = self._commit.checkpoint = None
        return unsealed

    def restart(self) -> None:
        """Begin again after a truncation: every segment that is left has a seal."""
        self.growing = self.sealing = self._commit.checkpoint = None
        self.seal_error = None
        self._retired = -1

    async def seal_remaining(self, unsealed: list[GrowingSegment]) -> None:
        """Seal the remaining segments, so that the next start has nothing to scan."""
        background = self._context.background
        for segment in unsealed:
            if segment.size == 0:
                self._log_directory.filesystem.remove(segment.path)
                continue
            work = partial(seal_segment, segment, now_ms=self._retention_now_ms())
            self._publish(segment, await background.run(work))
        await background.run(partial(remove_checkpoint, self._log_directory))

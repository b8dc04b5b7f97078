"""The one writer of a log: from an admitted batch to an acknowledged one.

    append -> waiting -> pending ----------> written -------------> acknowledged
              no room    gathered in one     one sync for all
              yet        turn of the loop,   that was written
                         one vectored write  before it began

Rules that everything here keeps:

1. An offset is given when a batch is admitted, and taken back only if no byte of it was kept.
2. Readers see a batch when the durability class of the log is met, and not before.
3. A batch in a segment counts only when all before it is durable too: a commit syncs every
   segment with unsynced bytes, and the directory if a name in it is new.
4. After a failed sync nothing more is acknowledged. The log is offline until it is opened anew.
5. At most two segments have no seal (see `rolling.py`). Appenders wait for a third.
6. What `partition.json` says is durable before anything rests on it: an epoch before a batch bears
   it, a first offset before a segment below it goes. The last segment with a committed batch stays,
   deleted or not, so the end of the log is in a file for as long as there is one.

All of it runs on one event loop; only the work handed to `Executor` runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial

from millstream.clock import Clock
from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    InvalidConfig,
    LogClosed,
    LogFull,
    LogOffline,
    MillstreamError,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.append.active_segments import ActiveSegments
from millstream.storage.append.admission import Admission
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.commit_state import CommitState
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.append.pending_append import PendingAppend, total_size
from millstream.storage.append.segment_write import gather_batches, record_written, write_appends
from millstream.storage.compaction.cleaner import LogCleaner
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.errors import is_disk_full, transient_error
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import File
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.retention.key_deletions import KeyDeletions
from millstream.storage.retention.log_start import LogStart
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.retention.size_limit import SizeLimit, has_size_limit
from millstream.storage.segment.counters import LogCounters
from millstream.storage.segment.lifecycle import SegmentSyncFailed, sync_all
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import LogPosition, LogState
from millstream.storage.segment.metadata_file import MetadataFile
from millstream.storage.segment.segment import GrowingSegment, LogDirectory

logger = logging.getLogger(__name__)


class LogWriter:
    """Writes one log."""

    def __init__(
        self,
        *,
        name: str,
        place: LogDirectory,
        config: LogConfig,
        clock: Clock,
        background: Executor,
        committer: GroupCommitter,
        budget: ByteBudget,
        contents: LogState,
        recovered: RecoveredLog,
        steady: Callable[[], int],
        deletions_max: int,
        guard: Callable[[], RemovalHooks | None],
        on_change: Callable[[], None],
        on_open: Callable[[], None],
        on_trouble: Callable[[], None],
    ) -> None:
        self._name = name
        self._place = place
        self._config = config
        self._background = background
        self._contents = contents
        self._on_change = on_change
        self._on_trouble = on_trouble
        self.counters = LogCounters(recovered_bytes=recovered.scanned_bytes)
        self._totals = committer.totals
        self.note_open = on_open
        self.offline: MillstreamError | None = None
        self.full: Unavailable | None = None
        """That the disk had no room for what was to be written last."""
        self.on_rewind: Callable[[int], None] | None = None
        self._admission = Admission(
            unflushed_bytes_max=config.unflushed_bytes_max,
            budget=budget,
            admit=self._admit,
            why_stalled=self._why_stalled,
            counters=self.counters,
        )
        self.intake = AppendQueue(
            self._admission,
            batch_size_max=config.batch_size_max,
            counters=self.counters,
            check=self._refuse_if_unwritable,
        )
        self._room = SizeLimit(name, contents, config) if has_size_limit(config) else None

        # Batches, by how far they are; offsets rise from `_written` to `_pending`.
        self._next = contents.end_offset
        self._pending: deque[PendingAppend] = deque()
        self._written: deque[PendingAppend] = deque()

        self._tasks = BackgroundTasks()
        self._unsynced = CommitState(
            name=name,
            place=place,
            clock=clock,
            committer=committer,
            counters=self.counters,
            mark=self._mark,
            on_end=self._end_sync,
        )
        self._description = MetadataFile(
            recovered.partition,
            place=place,
            background=background,
            tasks=self._tasks,
            check=self._refuse_if_unwritable,
        )
        parts = LogContext(
            name=name,
            place=place,
            background=background,
            tasks=self._tasks,
            contents=contents,
            description=self._description,
            counters=self.counters,
            on_change=on_change,
        )
        self._rolling = ActiveSegments(
            parts,
            self,
            config=config,
            steady=steady,
            unsynced=self._unsynced,
            recovered=recovered,
        )
        self.front = LogStart(parts, guard=guard)
        self._deletions = KeyDeletions(
            parts, now_ms=steady, deletions_max=deletions_max, roll=self._roll_soon
        )
        self.cleaning = LogCleaner(
            parts,
            guard=guard,
            now_ms=steady,
            monotonic=clock.monotonic,
            retire=self._rolling.retire,
        )

        self._is_flush_scheduled = False
        self._is_held = False
        self._is_closing = False
        if recovered.offline:
            self.go_offline(recovered.offline)

    # Admission.

    @property
    def partition(self) -> PartitionMetadata:
        """What `partition.json` says."""
        return self._description.partition

    @property
    def next_offset(self) -> int:
        """The offset that the next admitted batch gets."""
        return self._next

    def _refuse_if_unwritable(self) -> None:
        if self._is_closing:
            raise LogClosed(f"{self._name} is closed")
        if self.offline:
            raise self.offline

    def _why_stalled(self) -> str | None:
        if self._pending and self._rolling.is_stalled:
            return "two segments wait to be sealed"
        return None

    def _admit(self, append: PendingAppend) -> bool:
        """Give a batch its offset; returns whether it has one.

        It has none where the log is full, or where its appender refuses that.
        """
        try:
            # A full log still takes the ends of transactions, or its readers would wait for ever.
            if self._room is not None and not append.header.is_control:
                self._room.check(
                    unflushed=self._admission.unflushed,
                    next_offset=self._next,
                    size=append.size,
                    records=append.header.record_count,
                )
            if append.on_admit is not None:
                append.on_admit(self._next)
        except Exception as error:  # noqa: BLE001 - handed to the appender, whose own it is.
            self.counters.refusals_limit += isinstance(error, LogFull)
            append.refuse(error)
            return False
        append.offset = self._next
        append.next_offset = self._next = self._next + append.header.last_offset_delta + 1
        self._pending.append(append)
        if self._config.durability is Durability.MEMORY:
            append.batch = bytes(append.batch)  # The caller may have its own back from now on.
            append.acknowledge()
        self._schedule_flush()
        return True

    # Writing.

    def _schedule_flush(self) -> None:
        """Write at the end of this turn of the loop, together with what else it brings."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        while self._pending and not self._is_held:
            first = self._pending[0]
            segment = self._rolling.segment_for(first.header, first.offset)
            if segment is None:
                break
            self._write(segment)
        self._tasks.notify()

    def _write(self, segment: GrowingSegment) -> None:
        appends = gather_batches(self._pending, segment, self._config)
        try:
            pieces = write_appends(self._open(segment), segment, appends)
        except OSError as error:
            self._undo_write(segment, error)
            return
        record_written(segment, appends, pieces, self.counters, self._totals)
        self.full = None
        for _ in appends:
            self._pending.popleft()
        self._after_write(segment, appends)

    def _undo_write(self, segment: GrowingSegment, error: OSError) -> None:
        """Take back what part of a write may have been kept, and refuse its batches."""
        try:
            if segment.file is not None:
                segment.file.truncate(segment.size)
        except OSError as worse:
            self.go_offline(worse)
            return
        segment.forget_reserve()
        self.refuse_pending(error)

    def _after_write(self, segment: GrowingSegment, appends: list[PendingAppend]) -> None:
        self._written.extend(appends)
        if self._config.durability is not Durability.FSYNC:
            self._commit(LogPosition(segment.next_offset, segment.base_offset, segment.size))
            return
        is_anyone_told = False
        for append in appends:
            if append.is_early:
                append.acknowledge()
                is_anyone_told = True
        if is_anyone_told:  # What they answer goes out before the disk is asked for anything.
            asyncio.get_running_loop().call_soon(self._unsynced.add, segment)
        else:
            self._unsynced.add(segment)

    def _open(self, segment: GrowingSegment) -> File:
        is_open = segment.file is not None
        file = segment.open()
        if not is_open:
            self.note_open()
        return file

    def park(self) -> bool:
        """Give the descriptors back if the log is idle; the next write opens the files again."""
        growing = self._rolling.growing
        if not self.is_open or self._pending or self._written or self._rolling.sealing:
            return False
        assert growing is not None
        growing.file = None
        self._unsynced.checkpoint = None
        return True

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were admitted and wait for the disk."""
        return self._admission.unflushed

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held for writing."""
        growing = self._rolling.growing
        return growing is not None and growing.file is not None

    # Segments.

    async def roll(self) -> None:
        """Seal the growing segment, if it holds anything; the next batch begins another."""
        await self._description.change(self._roll())
        while self._rolling.is_sealing and not self.offline:
            await self._tasks.change()
        if self.offline:
            raise self.offline
        if error := self._rolling.seal_error:
            failed = StorageFailed(f"{self._name}: a segment was not sealed: {error}")
            raise transient_error(self._name, error) or failed from error

    def _roll_soon(self) -> None:
        self._tasks.start(self._try_roll())

    async def _try_roll(self) -> None:
        try:
            await self._description.change(self._roll())
        except MillstreamError as error:
            logger.warning("%s: no segment was sealed: %s", self._name, error)

    async def _roll(self) -> None:
        self._rolling.seal_again()
        while self._is_held or self._rolling.is_sealing:
            await self._tasks.change()
            self._refuse_if_unwritable()
        await self.hold_until(self._detach())

    async def _detach(self) -> None:
        await self._commit_written()
        if not self.offline:
            self._rolling.detach()

    def note_sealed(self) -> None:
        """Go on, after a segment was sealed."""
        self.front.drop_dead()
        self._schedule_flush()
        self._admission.admit_waiting()

    # Committing.

    def _mark(self) -> LogPosition:
        growing = self._rolling.growing
        assert growing is not None, "what was written is in a growing segment"
        return LogPosition(growing.next_offset, growing.base_offset, growing.size)

    def _end_sync(self, mark: LogPosition, error: Exception | None) -> None:
        """Acknowledge what was synced, or go offline."""
        self._tasks.notify()
        if self.offline:
            return
        if error is not None:
            self.go_offline(error)
            return
        self._commit(mark)

    def _commit(self, mark: LogPosition) -> None:
        """Publish and acknowledge everything before `mark`."""
        self._contents.commit(mark)
        flushed = 0
        while self._written and self._written[0].offset < mark.offset:
            append = self._written.popleft()
            flushed += append.size
            append.acknowledge()
        if self.front.has_dead:
            self.front.drop_dead()
        if flushed:
            self._on_change()
        self._admission.leave(flushed)

    # Failing.

    def refuse_pending(self, error: OSError) -> None:
        """Refuse what is not written yet, and take back the offsets that it would have had."""
        refusal = transient_error(self._name, error)
        if refusal is None:
            self.go_offline(error)
            return
        self.counters.refusals_full += len(self._pending)
        if is_disk_full(error):
            self.full = refusal
            self._on_trouble()
        if self._pending and self._config.durability is Durability.MEMORY:
            logger.error("%s: %d acknowledged batches lost", self._name, len(self._pending))
        if self._pending:
            self._rewind(self._pending[0].offset)
        self._admission.refuse_waiting(refusal)
        self._refuse_all(self._pending, refusal)
        self._tasks.notify()

    def _rewind(self, offset: int) -> None:
        """Take back the offsets from `offset` on, where any were given."""
        if self._next > offset:
            self._next = offset
            if self.on_rewind is not None:
                self.on_rewind(offset)

    def go_offline(self, cause: Exception) -> None:
        """Take nothing more, because it is in doubt what is on the disk."""
        if self.offline:
            return
        logger.error("%s is offline: %s", self._name, cause)
        offline = LogOffline(f"{self._name} is offline until it is opened again: {cause}")
        offline.__cause__ = cause
        self.counters.offline = 1
        self._end_with(offline)
        self._on_trouble()

    def _end_with(self, error: MillstreamError) -> None:
        """Take no more, and refuse everything that is not committed."""
        self.offline = error
        self._unsynced.stop()
        self._rewind(self._contents.end_offset)
        self._admission.refuse_waiting(error)
        self._refuse_all(self._written, error)
        self._refuse_all(self._pending, error)
        self._on_change()
        self._tasks.notify()

    def _refuse_all(self, appends: deque[PendingAppend], error: MillstreamError) -> None:
        doomed = list(appends)
        appends.clear()
        for append in doomed:
            append.refuse(error)
        if doomed:
            self._admission.leave(total_size(doomed))

    # What `partition.json` says: epochs, the first offset, the durability class.

    async def begin_epoch(self, number: int) -> None:
        """Have every batch from now on bear a newer leader epoch. Durable when this returns."""
        await self._description.change(self._begin_epoch(number))

    async def _begin_epoch(self, number: int) -> None:
        current = self.partition.leader_epoch
        if number <= current:
            raise RequestError(f"epoch is {number}, must be greater than {current}")
        self._flush()  # At once, or a busy log would never be found with nothing to write.
        while self._pending or self._is_held:
            await self._tasks.change()
            self._refuse_if_unwritable()
            self._flush()
        # What is admitted from here on is held until the epoch is durable, and then bears it.
        await self.hold_until(self._write_epoch(self.partition.with_epoch(number, self._next)))
        if self.offline:
            raise self.offline

    async def _write_epoch(self, partition: PartitionMetadata) -> None:
        try:
            await self._description.write(partition)
        except OSError as error:
            # The file may hold either epoch now: no batch may be written until that is known.
            self.go_offline(error)

    async def delete_keys(self, match: KeyMatch, *, before: int | None) -> int:
        """Hide all records that match and lie before `before`; returns how many it hid.

        Where that is not given, all count that were admitted by now: whoever was told of one, by
        whatever class, must not find it again.
        """
        self._refuse_if_unwritable()
        admitted = self._next
        while before is None and self._contents.end_offset < min(admitted, self._next):
            await self._tasks.change()
            self._refuse_if_unwritable()
        end = min(admitted, self._next)
        return await self._deletions.delete(match, before=end if before is None else before)

    async def reconfigure(self, config: LogConfig) -> None:
        """Go by other settings from here on. A change of the durability class is durable first."""
        await self._description.change(self._reconfigure(config))

    async def _reconfigure(self, config: LogConfig) -> None:
        before, after = self._config.durability, config.durability
        if before is after:
            self._go_by(config)
            return
        if Durability.EPHEMERAL in (before, after):
            raise InvalidConfig(
                f"{self._name} is {before.value}, and cannot become {after.value} while it is open"
            )
        while self._is_held:
            await self._tasks.change()
            self._refuse_if_unwritable()
        await self.hold_until(self._change_durability(config))
        if self.offline:
            raise self.offline

    async def _change_durability(self, config: LogConfig) -> None:
        """Change the class between two batches: each is acknowledged by the one it was taken for.

        What a weaker class wrote is synced before the log is of class `fsync`: an acknowledgement
        of that class, and its first offset, attest all before them.
        """
        await self._commit_written()
        if self.offline:
            return
        partition = replace(self.partition, durability=config.durability)
        try:
            if config.durability is Durability.FSYNC:
                files = [self._open(segment) for segment in self._rolling.unsealed]
                await self._background.run(partial(sync_all, self._place, files))
                self._unsynced.is_directory_dirty = False
            await self._description.write(partition)
        except SegmentSyncFailed as failed:
            self.go_offline(failed.cause)
        except OSError as error:
            if refusal := transient_error(self._name, error):
                raise refusal from error
            self.go_offline(error)
        else:
            self._go_by(config)

    async def _commit_written(self) -> None:
        """Wait until nothing that was written is without a commit. To be called while held."""
        while (self._written or self._unsynced.is_under_way) and not self.offline:
            await self._tasks.change()

    def _go_by(self, config: LogConfig) -> None:
        self._config = config
        self._place = replace(self._place, index_interval_bytes=config.index_interval_bytes)
        self._rolling.go_by(config, self._place)
        self._room = (
            SizeLimit(self._name, self._contents, config) if has_size_limit(config) else None
        )
        self.intake.batch_size_max = config.batch_size_max
        self._admission.unflushed_bytes_max = config.unflushed_bytes_max
        self._admission.admit_waiting()

    # Closing.

    async def close(self) -> None:
        """Write and commit what was admitted, seal the last segment, give the files back."""
        if self._is_closing:
            return
        self._is_closing = True
        self.cleaning.stop()
        self._admission.refuse_waiting(LogClosed(f"{self._name} is closed"))
        while (self._pending or self._written) and not self.offline:
            await self._tasks.change()
        while self._unsynced.is_under_way or not self._tasks.is_idle:
            await self._tasks.change()
        unsealed = self._rolling.let_go()
        if self.offline or self._config.durability is Durability.EPHEMERAL:
            return
        try:
            await self._rolling.seal_rest(unsealed)
        except (OSError, SegmentSyncFailed) as error:
            self.go_offline(error)
            raise StorageFailed(f"{self._name} was not closed cleanly: {error}") from error

    async def discard(self) -> None:
        """Stop without a commit or a seal, because the files are about to go."""
        self._is_closing = True
        self.cleaning.stop()
        if not self.offline:
            self._end_with(LogClosed(f"{self._name} is closed"))
        while self._unsynced.is_under_way or not self._tasks.is_idle:
            await self._tasks.change()
        self._rolling.let_go()

    # Holding.

    def hold_until(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Write nothing until `work` is done."""
        self._is_held = True
        return self._tasks.start(self._hold(work))

    async def _hold(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self._is_held = False
            self._schedule_flush()

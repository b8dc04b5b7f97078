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
5. At most two segments have no seal. A third is not begun; appenders wait.

All of it runs on one event loop; only the work handed to `Background` runs in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice

from millstream.clock import Clock
from millstream.config import Durability, LogConfig
from millstream.errors import (
    DiskFull,
    LogClosed,
    LogOffline,
    MillstreamError,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.batch import HEADER_SIZE, PREFIX_SIZE, BatchHeader, Bytes, stamped_prefix
from millstream.storage.admission import Admission
from millstream.storage.append import Append, Appended, inspect, total_size
from millstream.storage.background import Background
from millstream.storage.budget import Budget
from millstream.storage.checkpoint import Checkpoint, Synced
from millstream.storage.commit import Committer
from millstream.storage.contents import Contents, Mark
from millstream.storage.counters import Counters
from millstream.storage.filesystem import File, write_all
from millstream.storage.index import Index
from millstream.storage.partition import Partition, write_partition
from millstream.storage.reader import Address
from millstream.storage.recovery import Recovered
from millstream.storage.seal import Seal, Tally, tally_of
from millstream.storage.sealing import (
    SyncFailed,
    open_checkpoint,
    remove_checkpoint,
    seal_segment,
    unseal_segment,
)
from millstream.storage.segment import GrowingSegment, Place, SealedSegment

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_REST_OF_HEADER = HEADER_SIZE - PREFIX_SIZE


class Writer:
    """Writes one log."""

    def __init__(
        self,
        *,
        name: str,
        place: Place,
        config: LogConfig,
        clock: Clock,
        background: Background,
        committer: Committer,
        budget: Budget,
        contents: Contents,
        recovered: Recovered,
        on_commit: Callable[[], None],
        on_open: Callable[[], None],
    ) -> None:
        self._name = name
        self._place = place
        self._config = config
        self._clock = clock
        self._background = background
        self._committer = committer
        self._contents = contents
        self._on_commit = on_commit
        self._on_open = on_open
        self.counters = Counters(recovered_bytes=recovered.scanned_bytes)
        self.partition = recovered.partition
        self.offline: LogOffline | None = None
        self._admission = Admission(
            unflushed_bytes_max=config.unflushed_bytes_max,
            budget=budget,
            admit=self._admit,
            why_stalled=self._why_stalled,
        )

        # Batches, by how far they are; offsets rise from `_written` to `_pending`.
        self._next = contents.end_offset
        self._pending: deque[Append] = deque()
        self._written: deque[Append] = deque()

        # Segments without a seal.
        self._growing = None if recovered.offline else recovered.growing
        self._sealing: GrowingSegment | None = None
        self._has_seal_failed = False
        self._can_reopen = not recovered.damage

        # The commit that is under way, and what the next one has to sync.
        self._syncing: Mark | None = None
        self._sync_started = 0.0
        self._sync_count = 0
        self._unsynced: list[GrowingSegment] = []
        self._is_directory_dirty = False
        self._checkpoint: Checkpoint | None = None

        self._is_flush_scheduled = False
        self._is_held = False
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] | None = None
        if recovered.offline:
            self._go_offline(recovered.offline)

    # Admission.

    def submit(self, batch: Bytes, *, is_checked: bool) -> asyncio.Future[Appended]:
        """Take a batch in, now or when there is room; the future ends with its commit."""
        append = self._inspect(batch, is_checked=is_checked)
        self._admission.enter(append)
        return append.future

    def submit_now(self, batch: Bytes, *, is_checked: bool) -> asyncio.Future[Appended]:
        """Take a batch in now, or raise `WouldBlock`."""
        append = self._inspect(batch, is_checked=is_checked)
        try:
            self._admission.enter_now(append)
        except Unavailable:
            self.counters.refusals_busy += 1
            raise
        return append.future

    def give_up_waiting(self, future: asyncio.Future[Appended], seconds: float) -> None:
        """Refuse the batch of `future` if it still has not been admitted after `seconds`."""
        self._admission.give_up(future, seconds)
        self.counters.refusals_busy += future.done()

    def _inspect(self, batch: Bytes, *, is_checked: bool) -> Append:
        self._refuse_if_unwritable()
        header = inspect(batch, size_max=self._config.batch_size_max, is_checked=is_checked)
        return Append(header, batch, asyncio.get_running_loop().create_future())

    def _refuse_if_unwritable(self) -> None:
        if self._is_closing:
            raise LogClosed(f"{self._name} is closed")
        if self.offline:
            raise self.offline

    def _why_stalled(self) -> str | None:
        if self._sealing and self._pending:
            return "two segments wait to be sealed"
        return None

    def _admit(self, append: Append) -> None:
        append.offset = self._next
        append.next_offset = self._next = self._next + append.header.last_offset_delta + 1
        self._pending.append(append)
        if self._config.durability is Durability.MEMORY:
            append.acknowledge()
        self._schedule_flush()

    # Writing.

    def _schedule_flush(self) -> None:
        """Write at the end of this turn of the loop, together with what else it brings."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        while self._pending and not self._is_held:
            segment = self._segment_for(self._pending[0])
            if segment is None:
                break
            self._write(segment)
        self._notify()

    def _segment_for(self, append: Append) -> GrowingSegment | None:
        """Return the segment that takes `append`; nothing where it has to wait for one."""
        growing = self._growing
        if growing is None and (sealed := self._reopenable(append.header)):
            self._hold_until(self._reopen(sealed))
            return None
        if growing and growing.size == 0:
            growing.tally.leader_epoch = self.partition.leader_epoch
        if growing and self._fits(growing.tally, append.header):
            return growing
        return self._roll(append.offset)

    def _fits(self, tally: Tally, header: BatchHeader) -> bool:
        """Whether a batch may go into a segment."""
        if tally.leader_epoch != self.partition.leader_epoch:
            return False
        if tally.size == 0:
            return True
        config = self._config
        return (
            tally.size + header.size <= config.segment_bytes_max
            and tally.record_count + header.record_count <= config.segment_records_max
            and self._clock.wall_ms() - tally.created_ms <= config.segment_age_ms_max
        )

    def _write(self, segment: GrowingSegment) -> None:
        appends = self._gather(segment)
        epoch = segment.leader_epoch
        pieces: list[Bytes] = []
        for append in appends:
            pieces += (
                stamped_prefix(append.header, base_offset=append.offset, leader_epoch=epoch),
                memoryview(append.batch)[PREFIX_SIZE:],
            )
        try:
            self._open(segment)
            segment.reserve(segment.size + total_size(appends))
            write_all(segment.open(), segment.size, pieces)
        except OSError as error:
            self._undo_write(segment, error)
            return
        self._count(segment, appends, pieces)
        self._after_write(segment, appends)

    def _gather(self, segment: GrowingSegment) -> list[Append]:
        """Return the pending batches that go into `segment` in one write; at least one."""
        appends = [self._pending[0]]
        room = self._config.segment_bytes_max - segment.size - appends[0].size
        slots = self._config.segment_records_max - segment.tally.record_count
        slots -= appends[0].header.record_count
        for append in islice(self._pending, 1, None):
            room -= append.size
            slots -= append.header.record_count
            if room < 0 or slots < 0:
                break
            appends.append(append)
        return appends

    def _count(self, segment: GrowingSegment, appends: list[Append], pieces: list[Bytes]) -> None:
        """Take note of what was written; `pieces` are two for each batch."""
        counters = self.counters
        base_offset, records = segment.base_offset, segment.tally.record_count
        size = segment.size
        for append, prefix, rest in zip(appends, pieces[::2], pieces[1::2], strict=True):
            self._pending.popleft()
            append.address = Address(base_offset, segment.tally.size)
            segment.add(append.header, append.size, b"".join((prefix, rest[:_REST_OF_HEADER])))
        counters.writes += 1
        counters.appends += len(appends)
        counters.records += segment.tally.record_count - records
        counters.bytes += segment.size - size

    def _undo_write(self, segment: GrowingSegment, error: OSError) -> None:
        """Take back what part of a write may have been kept, and refuse its batches."""
        try:
            if segment.file is not None:
                segment.file.truncate(segment.size)
        except OSError as worse:
            self._go_offline(worse)
            return
        segment.forget_reserve()
        self._refuse_pending(error)

    def _after_write(self, segment: GrowingSegment, appends: list[Append]) -> None:
        self._written.extend(appends)
        if self._config.durability is not Durability.FSYNC:
            self._commit(Mark(segment.next_offset, segment.base_offset, segment.size))
            return
        if segment not in self._unsynced:
            self._unsynced.append(segment)
        self._request_sync()

    def _open(self, segment: GrowingSegment) -> None:
        if segment.file is None:
            segment.open()
            self._on_open()

    def park(self) -> bool:
        """Give the descriptors back if the log is idle; the next write opens the files again."""
        if not self.is_open or self._pending or self._written or self._sealing:
            return False
        assert self._growing is not None
        self._growing.file = None
        self._checkpoint = None
        return True

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were admitted and wait for the disk."""
        return self._admission.unflushed

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held for writing."""
        return self._growing is not None and self._growing.file is not None

    # Segments: begin one, seal it, open it again.

    def _roll(self, base_offset: int) -> GrowingSegment | None:
        """Begin a segment, and have the one before sealed in the background."""
        if self._sealing:
            if self._has_seal_failed:
                self._start_sealing(self._sealing)
            return None
        try:
            file = self._place.filesystem.create(self._place.path(base_offset, "log"))
        except OSError as error:
            self._refuse_pending(error)
            return None
        self._is_directory_dirty = True
        epoch, now_ms = self.partition.leader_epoch, self._clock.wall_ms()
        tally = Tally(base_offset, leader_epoch=epoch, created_ms=now_ms)
        full, self._growing = self._growing, GrowingSegment(self._place, tally, Index(), file)
        self._contents.replace_segments([*self._contents.state.segments, self._growing])
        self.counters.rolls += 1
        self._on_open()
        if full:
            self._start_sealing(full)
        return self._growing

    def _start_sealing(self, segment: GrowingSegment) -> None:
        self._sealing = segment
        self._has_seal_failed = False
        self._start(self._seal(segment))

    async def _seal(self, segment: GrowingSegment) -> None:
        work = partial(seal_segment, segment, now_ms=self._clock.wall_ms())
        try:
            seal = await self._background.run(work)
        except SyncFailed as failed:
            self._go_offline(failed.cause)
            return
        except OSError as error:
            # On a full disk this can wait: the next append that needs it tries again.
            self._has_seal_failed = True
            self._refuse_pending(error)
            return
        if segment in self._unsynced:
            self._unsynced.remove(segment)
        self._publish_sealed(segment, seal)
        self._sealing = None
        self._schedule_flush()
        self._admission.admit_waiting()

    def _publish_sealed(self, segment: GrowingSegment, seal: Seal) -> None:
        sealed = SealedSegment(self._place, seal)
        segments = self._contents.state.segments
        self._contents.replace_segments([sealed if s is segment else s for s in segments])
        segment.file = None
        self.counters.seals += 1

    def _reopenable(self, header: BatchHeader) -> SealedSegment | None:
        """Return the last segment if it is sealed, whole, and has room for a batch."""
        segments = self._contents.state.segments
        last = segments[-1] if segments else None
        if not self._can_reopen or not isinstance(last, SealedSegment):
            return None
        return last if self._fits(tally_of(last.seal), header) else None

    async def _reopen(self, sealed: SealedSegment) -> None:
        try:
            file, index, self._checkpoint = await self._background.run(
                partial(unseal_segment, self._place, sealed)
            )
        except OSError as error:
            self._refuse_pending(error)
            return
        except MillstreamError as error:
            self._go_offline(error)
            return
        sealed.forget()
        self._growing = GrowingSegment(self._place, tally_of(sealed.seal), index, file)
        segments = self._contents.state.segments
        self._contents.replace_segments([*segments[:-1], self._growing])
        self._on_open()

    # Committing.

    def _request_sync(self) -> None:
        if self._syncing is None and not self.offline:
            self._syncing = self._mark()
            self._committer.request(self)

    def _mark(self) -> Mark:
        growing = self._growing
        assert growing is not None, "what was written is in a growing segment"
        return Mark(growing.next_offset, growing.base_offset, growing.size)

    @property
    def is_plain(self) -> bool:
        """Whether the next commit only has to sync files."""
        return not self._is_directory_dirty and self._checkpoint is not None

    def begin_plain_sync(self) -> list[File]:
        """Begin a commit of what was written up to now, and return the files to sync."""
        self._syncing = self._mark()
        self._sync_started = self._clock.monotonic()
        files = [segment.open() for segment in self._unsynced]
        self._unsynced = []
        self._sync_count = len(files)
        return files

    def begin_sync(self) -> Callable[[], None]:
        """Begin a commit of what was written up to now, and return all of its blocking work."""
        files = self.begin_plain_sync()
        is_directory_dirty, self._is_directory_dirty = self._is_directory_dirty, False

        def work() -> None:
            for file in files:
                file.sync()
            if self._ensure_checkpoint() or is_directory_dirty:
                self._place.filesystem.sync_directory(self._place.directory)

        return work

    def end_sync(self, error: Exception | None) -> None:
        """Acknowledge what was synced, or go offline."""
        mark, self._syncing = self._syncing, None
        self._notify()
        if self.offline:
            return
        if error is not None:
            self._go_offline(error)
            return
        assert mark is not None, "a commit that ended was begun"
        self.counters.syncs += self._sync_count
        self.counters.sync_seconds += self._clock.monotonic() - self._sync_started
        if mark.position > 0:  # An empty segment may go again; nothing must rest on it.
            self._note_synced(Synced(mark.segment, mark.position))
        self._commit(mark)
        if self._unsynced:
            self._request_sync()

    def _commit(self, mark: Mark) -> None:
        """Publish and acknowledge everything before `mark`."""
        self._contents.commit(mark)
        flushed = 0
        while self._written and self._written[0].offset < mark.offset:
            append = self._written.popleft()
            flushed += append.size
            append.acknowledge()
        self._on_commit()
        self._admission.leave(flushed)

    def _ensure_checkpoint(self) -> bool:
        """Have a checkpoint file; returns whether its name is new, and has to be made durable."""
        is_new = False
        try:
            if self._checkpoint is None:
                self._checkpoint, is_new = open_checkpoint(self._place)
        except OSError as error:
            logger.warning("%s: no checkpoint: %s", self._name, error)
        return is_new

    def _note_synced(self, synced: Synced) -> None:
        """Write the checkpoint. It only sharpens what recovery can tell, so it may fail."""
        try:
            if self._checkpoint is not None:
                self._checkpoint.write(synced)
        except OSError as error:
            logger.warning("%s: checkpoint not written: %s", self._name, error)
            self._checkpoint = None

    # Failing.

    def _refuse_pending(self, error: OSError) -> None:
        """Refuse what is not written yet, and take back the offsets that it would have had."""
        if error.errno in _FULL:
            refusal: MillstreamError = DiskFull(f"{self._name}: the disk is full: {error}")
        elif error.errno in _PASSING:
            refusal = Unavailable(f"{self._name}: {error}")
        else:
            self._go_offline(error)
            return
        self.counters.refusals_full += len(self._pending)
        if self._pending and self._config.durability is Durability.MEMORY:
            logger.error("%s: %d acknowledged batches lost", self._name, len(self._pending))
        if self._pending:
            self._next = self._pending[0].offset
        self._admission.refuse_waiting(refusal)
        self._refuse_all(self._pending, refusal)
        self._notify()

    def _go_offline(self, cause: Exception) -> None:
        if self.offline:
            return
        logger.error("%s is offline: %s", self._name, cause)
        self.offline = LogOffline(f"{self._name} is offline until it is opened again: {cause}")
        self.offline.__cause__ = cause
        self.counters.offline = 1
        self._admission.refuse_waiting(self.offline)
        self._refuse_all(self._written, self.offline)
        self._refuse_all(self._pending, self.offline)
        self._on_commit()
        self._notify()

    def _refuse_all(self, appends: deque[Append], error: MillstreamError) -> None:
        doomed = list(appends)
        appends.clear()
        for append in doomed:
            append.refuse(error)
        if doomed:
            self._admission.leave(total_size(doomed))

    # Epochs.

    async def begin_epoch(self, number: int) -> None:
        """Have every batch from now on bear a newer leader epoch. Durable when this returns."""
        self._refuse_if_unwritable()
        current = self.partition.leader_epoch
        if number <= current:
            raise RequestError(f"epoch is {number}, must be greater than {current}")
        while self._pending or self._is_held:
            await self._change()
            self._refuse_if_unwritable()
        # What is admitted from here on is held until the epoch is durable, and then bears it.
        await self._hold_until(self._begin_epoch(self.partition.with_epoch(number, self._next)))
        if self.offline:
            raise self.offline

    async def _begin_epoch(self, partition: Partition) -> None:
        filesystem, directory = self._place.filesystem, self._place.directory
        try:
            await self._background.run(partial(write_partition, filesystem, directory, partition))
        except OSError as error:
            # The file may hold either epoch now: no batch may be written until that is known.
            self._go_offline(error)
            return
        self.partition = partition

    # Closing.

    async def close(self) -> None:
        """Write and commit what was admitted, seal the last segment, give the files back."""
        if self._is_closing:
            return
        self._is_closing = True
        self._admission.refuse_waiting(LogClosed(f"{self._name} is closed"))
        while (self._pending or self._written) and not self.offline:
            await self._change()
        while self._syncing or self._tasks:
            await self._change()
        unsealed = [segment for segment in (self._sealing, self._growing) if segment]
        self._growing = self._sealing = self._checkpoint = None
        if not self.offline and self._config.durability is not Durability.EPHEMERAL:
            await self._seal_rest(unsealed)

    async def _seal_rest(self, unsealed: list[GrowingSegment]) -> None:
        """Seal what has no seal: with that, the next start has nothing to scan."""
        try:
            for segment in unsealed:
                if segment.size == 0:
                    self._place.filesystem.remove(segment.path)
                    continue
                work = partial(seal_segment, segment, now_ms=self._clock.wall_ms())
                self._publish_sealed(segment, await self._background.run(work))
            await self._background.run(partial(remove_checkpoint, self._place))
        except (OSError, SyncFailed) as error:
            self._go_offline(error)
            raise StorageFailed(f"{self._name} was not closed cleanly: {error}") from error

    # The writer's own tasks, and waiting for its state to change.

    def _hold_until(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Write nothing until `work` is done."""
        self._is_held = True
        return self._start(self._hold(work))

    async def _hold(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self._is_held = False
            self._schedule_flush()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._notify()

    def _change(self) -> asyncio.Future[None]:
        """Return what ends with the next change of the writer's state, for one of many to await."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._changed)

    def _notify(self) -> None:
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)

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
6. What `partition.json` says is durable before anything rests on it: an epoch before a batch bears
   it, a first offset before a segment below it goes. The last segment with a committed batch stays,
   deleted or not, so the end of the log is in a file for as long as there is one.

All of it runs on one event loop; only the work handed to `Background` runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import islice

from millstream.clock import Clock
from millstream.config import Durability, LogConfig
from millstream.errors import (
    InvalidConfig,
    LogClosed,
    LogOffline,
    MillstreamError,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.batch import HEADER_SIZE, PREFIX_SIZE, BatchHeader, Bytes, stamped_prefix
from millstream.storage.admission import Admission
from millstream.storage.append import Append, Appended, OnAdmit, Waiter, inspect, total_size
from millstream.storage.background import Background
from millstream.storage.budget import Budget
from millstream.storage.commit import Committer
from millstream.storage.contents import Contents, Mark
from millstream.storage.counters import Counters
from millstream.storage.description import Description
from millstream.storage.failure import passing_error
from millstream.storage.filesystem import File, write_all
from millstream.storage.front import Front
from millstream.storage.index import Index
from millstream.storage.partition import Partition
from millstream.storage.reader import Address
from millstream.storage.recovery import Recovered
from millstream.storage.seal import Seal, Tally, tally_of
from millstream.storage.sealing import (
    SyncFailed,
    remove_checkpoint,
    seal_segment,
    sync_all,
    unseal_segment,
)
from millstream.storage.segment import GrowingSegment, Place, SealedSegment
from millstream.storage.tasks import Tasks
from millstream.storage.unsynced import Unsynced

logger = logging.getLogger(__name__)

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
        on_change: Callable[[], None],
        on_open: Callable[[], None],
    ) -> None:
        self._name = name
        self._place = place
        self._config = config
        self._clock = clock
        self._background = background
        self._contents = contents
        self._on_change = on_change
        self._on_open = on_open
        self.counters = Counters(recovered_bytes=recovered.scanned_bytes)
        self.offline: MillstreamError | None = None
        self.on_rewind: Callable[[int], None] | None = None
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

        self._tasks = Tasks()
        self._unsynced = Unsynced(
            name=name,
            place=place,
            clock=clock,
            committer=committer,
            counters=self.counters,
            mark=self._mark,
            on_end=self._end_sync,
        )
        self._description = Description(
            recovered.partition,
            place=place,
            background=background,
            tasks=self._tasks,
            check=self._refuse_if_unwritable,
        )
        self._front = Front(
            name=name,
            place=place,
            background=background,
            tasks=self._tasks,
            contents=contents,
            description=self._description,
            on_change=on_change,
        )

        self._is_flush_scheduled = False
        self._is_held = False
        self._is_closing = False
        if recovered.offline:
            self._go_offline(recovered.offline)

    # Admission.

    @property
    def partition(self) -> Partition:
        """What `partition.json` says."""
        return self._description.partition

    @property
    def next_offset(self) -> int:
        """The offset that the next admitted batch gets."""
        return self._next

    def submit(
        self,
        batch: Bytes,
        *,
        is_checked: bool,
        on_admit: OnAdmit | None = None,
        timeout: float | None = None,
        is_early: bool = False,
        header: BatchHeader | None = None,
    ) -> asyncio.Future[Appended]:
        """Take a batch in, now or when there is room; the future ends with its commit.

        Where `is_early`, it ends when the batch is written, if that comes first. A caller that
        gives the `header` has checked the batch as `inspect` would.
        """
        self._refuse_if_unwritable()
        if header is None:
            header = self._inspect(batch, is_checked=is_checked)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        append = Append(header, batch, future, on_admit, is_early=is_early)
        self._admission.enter(append)
        if (alarm := self._alarm(append, timeout)) is not None:
            future.add_done_callback(lambda _: alarm.cancel())
        return future

    def submit_for(
        self,
        waiter: Waiter,
        batch: Bytes,
        header: BatchHeader,
        *,
        timeout: float | None,
        is_early: bool,
    ) -> None:
        """Take in a batch that was checked as `inspect` would, and tell `waiter` of its commit."""
        self._refuse_if_unwritable()
        append = Append(header, batch, waiter, is_early=is_early)
        self._admission.enter(append)
        if append.offset < 0:
            self._alarm(append, timeout)

    def submit_now(self, batch: Bytes, *, is_checked: bool) -> asyncio.Future[Appended]:
        """Take a batch in now, or raise `WouldBlock`."""
        self._refuse_if_unwritable()
        header = self._inspect(batch, is_checked=is_checked)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._admission.enter_now(Append(header, batch, future))
        except Unavailable:
            self.counters.refusals_busy += 1
            raise
        return future

    def _alarm(self, append: Append, timeout: float | None) -> asyncio.TimerHandle | None:
        """Have a batch refused that still has not been admitted after `timeout` seconds."""
        if timeout is None or append.offset >= 0 or append.waiter.done():
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(timeout, self._give_up_waiting, append, timeout)

    def _give_up_waiting(self, append: Append, seconds: float) -> None:
        if append.offset < 0 and not append.waiter.done():
            self._admission.give_up(append.waiter, seconds)
            self.counters.refusals_busy += append.waiter.done()

    def _inspect(self, batch: Bytes, *, is_checked: bool) -> BatchHeader:
        return inspect(batch, size_max=self._config.batch_size_max, is_checked=is_checked)

    def _refuse_if_unwritable(self) -> None:
        if self._is_closing:
            raise LogClosed(f"{self._name} is closed")
        if self.offline:
            raise self.offline

    def _why_stalled(self) -> str | None:
        if self._sealing and self._pending:
            return "two segments wait to be sealed"
        return None

    def _admit(self, append: Append) -> bool:
        """Give a batch its offset, unless its appender refuses that; returns whether it has one."""
        if append.on_admit is not None:
            try:
                append.on_admit(self._next)
            except Exception as error:  # noqa: BLE001 - handed to the appender, whose own it is.
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
            segment = self._segment_for(self._pending[0])
            if segment is None:
                break
            self._write(segment)
        self._tasks.notify()

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
            file = self._open(segment)
            segment.reserve(segment.size + total_size(appends))
            write_all(file, segment.size, pieces)
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
            self._on_open()
        return file

    def park(self) -> bool:
        """Give the descriptors back if the log is idle; the next write opens the files again."""
        if not self.is_open or self._pending or self._written or self._sealing:
            return False
        assert self._growing is not None
        self._growing.file = None
        self._unsynced.checkpoint = None
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
        self._unsynced.is_directory_dirty = True
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
        self._tasks.start(self._seal(segment))

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
        self._unsynced.discard(segment)
        self._publish_sealed(segment, seal)
        self._sealing = None
        self._front.drop_dead()
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
            file, index, self._unsynced.checkpoint = await self._background.run(
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

    def _mark(self) -> Mark:
        growing = self._growing
        assert growing is not None, "what was written is in a growing segment"
        return Mark(growing.next_offset, growing.base_offset, growing.size)

    def _end_sync(self, mark: Mark, error: Exception | None) -> None:
        """Acknowledge what was synced, or go offline."""
        self._tasks.notify()
        if self.offline:
            return
        if error is not None:
            self._go_offline(error)
            return
        self._commit(mark)

    def _commit(self, mark: Mark) -> None:
        """Publish and acknowledge everything before `mark`."""
        self._contents.commit(mark)
        flushed = 0
        while self._written and self._written[0].offset < mark.offset:
            append = self._written.popleft()
            flushed += append.size
            append.acknowledge()
        if self._front.has_dead:
            self._front.drop_dead()
        if flushed:
            self._on_change()
        self._admission.leave(flushed)

    # Failing.

    def _refuse_pending(self, error: OSError) -> None:
        """Refuse what is not written yet, and take back the offsets that it would have had."""
        refusal = passing_error(self._name, error)
        if refusal is None:
            self._go_offline(error)
            return
        self.counters.refusals_full += len(self._pending)
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

    def _go_offline(self, cause: Exception) -> None:
        if self.offline:
            return
        logger.error("%s is offline: %s", self._name, cause)
        offline = LogOffline(f"{self._name} is offline until it is opened again: {cause}")
        offline.__cause__ = cause
        self.counters.offline = 1
        self._end_with(offline)

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

    def _refuse_all(self, appends: deque[Append], error: MillstreamError) -> None:
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
        await self._hold_until(self._write_epoch(self.partition.with_epoch(number, self._next)))
        if self.offline:
            raise self.offline

    async def _write_epoch(self, partition: Partition) -> None:
        try:
            await self._description.write(partition)
        except OSError as error:
            # The file may hold either epoch now: no batch may be written until that is known.
            self._go_offline(error)

    async def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`. Durable when this returns; files go afterwards."""
        await self._front.delete_before(offset)

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
        await self._hold_until(self._change_durability(config))
        if self.offline:
            raise self.offline

    async def _change_durability(self, config: LogConfig) -> None:
        """Change the class between two batches: each is acknowledged by the one it was taken for.

        What a weaker class wrote is synced before the log is of class `fsync`: an acknowledgement
        of that class, and its first offset, attest all before them.
        """
        while (self._written or self._unsynced.is_under_way) and not self.offline:
            await self._tasks.change()
        if self.offline:
            return
        partition = replace(self.partition, durability=config.durability)
        try:
            if config.durability is Durability.FSYNC:
                files = [self._open(s) for s in (self._sealing, self._growing) if s]
                await self._background.run(partial(sync_all, self._place, files))
                self._unsynced.is_directory_dirty = False
            await self._description.write(partition)
        except SyncFailed as failed:
            self._go_offline(failed.cause)
        except OSError as error:
            if refusal := passing_error(self._name, error):
                raise refusal from error
            self._go_offline(error)
        else:
            self._go_by(config)

    def _go_by(self, config: LogConfig) -> None:
        self._config = config
        self._place = replace(self._place, index_interval_bytes=config.index_interval_bytes)
        self._admission.unflushed_bytes_max = config.unflushed_bytes_max
        self._admission.admit_waiting()

    # Closing.

    async def close(self) -> None:
        """Write and commit what was admitted, seal the last segment, give the files back."""
        if self._is_closing:
            return
        self._is_closing = True
        self._admission.refuse_waiting(LogClosed(f"{self._name} is closed"))
        while (self._pending or self._written) and not self.offline:
            await self._tasks.change()
        while self._unsynced.is_under_way or not self._tasks.is_idle:
            await self._tasks.change()
        unsealed = [segment for segment in (self._sealing, self._growing) if segment]
        self._growing = self._sealing = self._unsynced.checkpoint = None
        if not self.offline and self._config.durability is not Durability.EPHEMERAL:
            await self._seal_rest(unsealed)

    async def discard(self) -> None:
        """Stop without a commit or a seal, because the files are about to go."""
        self._is_closing = True
        if not self.offline:
            self._end_with(LogClosed(f"{self._name} is closed"))
        while self._unsynced.is_under_way or not self._tasks.is_idle:
            await self._tasks.change()
        self._growing = self._sealing = self._unsynced.checkpoint = None

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

    # Holding.

    def _hold_until(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Write nothing until `work` is done."""
        self._is_held = True
        return self._tasks.start(self._hold(work))

    async def _hold(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self._is_held = False
            self._schedule_flush()

"""A log: batches in, batches out, and a way to wait for the next.

One event loop owns a log and does all appending. Reading needs no loop and no lock: `read` and
its kin may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

from millstream.clock import Clock
from millstream.config.schema import LogConfig
from millstream.errors import LogClosed, MillstreamError, OffsetOutOfRange, Unavailable
from millstream.records.batch import BatchHeader, Bytes, split
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.append.log_writer import LogWriter
from millstream.storage.append.pending_append import Appended, AppendWaiter, OnAdmit
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.retention.eviction import Eviction, plan_eviction, record_count
from millstream.storage.retention.key_deletions import (
    DELETIONS_MAX,
    match_for,
    resolve_deleted_offsets,
)
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.segment.counters import LogCounters
from millstream.storage.segment.log_state import DeletedOffsets, LogPosition, LogSnapshot, LogState
from millstream.storage.segment.reader import Address, Slice, TimestampedOffset
from millstream.storage.segment.segment import LogDirectory, SealedSegment, Segment

logger = logging.getLogger(__name__)

READ_SIZE_MAX = 1024 * 1024
"""What a read returns at the most unless told otherwise; Kafka's consumers ask for as much."""


class Log:
    """The log of one partition.

    Made in a thread, because that can take a while: where deletions by key wait to be reclaimed,
    it is looked up what they hit.
    """

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
        recovered: RecoveredLog,
        steady: Callable[[], int] | None = None,
        deletions_max: int = DELETIONS_MAX,
        on_open: Callable[[Log], None] = lambda _: None,
        on_trouble: Callable[[Log], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.place = place
        """Where its files lie; others may keep theirs beside them."""
        self.config = config
        self.recovered = recovered
        self.guard: RemovalHooks | None = None
        """Whoever knows which records belong together; set once, by who opens the log."""
        self._clock = clock
        self._steady = steady or clock.wall_ms
        """The time by which data ages."""
        self._arrival: asyncio.Future[None] | None = None
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_closed = False
        partition, end = recovered.partition, _end_of(recovered)
        self._contents = LogState(
            place.directory,
            recovered.segments,
            end,
            start_offset=partition.start_offset,
            eviction_floor=partition.eviction_floor,
            masks=resolve_deleted_offsets(recovered.segments, partition, end.offset),
        )
        self._contents.lost = recovered.offline
        self._writer = LogWriter(
            name=name,
            place=place,
            config=config,
            clock=clock,
            background=background,
            committer=committer,
            budget=budget,
            contents=self._contents,
            recovered=recovered,
            steady=self._steady,
            deletions_max=deletions_max,
            guard=lambda: self.guard,
            on_change=self._tell,
            on_open=lambda: on_open(self),
            on_trouble=lambda: on_trouble(self),
        )
        self._intake = self._writer.intake

    # What it is.

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._contents.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last committed record: what a reader will see next."""
        return self._contents.end_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next admitted batch gets: at or after `end_offset`."""
        return self._writer.next_offset

    @property
    def eviction_floor(self) -> int:
        """All before this offset went without anyone asking for that; at most `start_offset`."""
        return self._contents.eviction_floor

    def gap_at(self, offset: int) -> Gap | None:
        """Return what a reader misses who comes to `offset`, where records were evicted there."""
        return _gap(offset, self._contents.state)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._contents.state.segments

    @property
    def sealed(self) -> list[SealedSegment]:
        """The segments that no one writes any more, oldest first."""
        return [segment for segment in self.segments if isinstance(segment, SealedSegment)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, with what was deleted in them and is not reclaimed yet."""
        return sum(segment.size for segment in self.segments)

    @property
    def record_count(self) -> int:
        """Records in all segments, with those that were deleted and are not reclaimed yet."""
        return sum(map(record_count, self.segments))

    @property
    def masks(self) -> Mapping[int, DeletedOffsets]:
        """What was deleted by key and is not reclaimed yet, by base offset of the segment."""
        return self._contents.state.masks

    @property
    def reclaimable_bytes(self) -> int:
        """About how many bytes rewriting would give back of what was deleted by key."""
        return sum(mask.bytes for mask in self.masks.values())

    @property
    def deleted_records(self) -> int:
        """Records that were deleted by key and are not reclaimed yet."""
        return sum(len(mask.offsets) for mask in self.masks.values())

    @property
    def counters(self) -> LogCounters:
        """Running totals."""
        return self._writer.counters

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were admitted and wait for the disk."""
        return self._writer.unflushed_bytes

    @property
    def offline(self) -> MillstreamError | None:
        """Why the log takes no appends, if it does not."""
        return self._writer.offline

    @property
    def full(self) -> Unavailable | None:
        """That the disk had no room for what was to be written last, until something is again."""
        return self._writer.full

    def note_room(self) -> None:
        """Take the disk for one that has room: whoever looked after all logs found some."""
        self._writer.full = None

    @property
    def partition(self) -> PartitionMetadata:
        """What `partition.json` says: its leader epochs, its floors, its deletions."""
        return self._writer.partition

    @property
    def on_rewind(self) -> Callable[[int], None] | None:
        """Called with an offset when those from it on, which had been given, are taken back.

        That is when a write is refused, when the log goes offline and when it is deleted; once
        each time, before the appenders are told. It must not raise.
        """
        return self._writer.on_rewind

    @on_rewind.setter
    def on_rewind(self, callback: Callable[[int], None] | None) -> None:
        self._writer.on_rewind = callback

    # Appending.

    async def append(
        self, batch: Bytes, *, is_checked: bool = False, timeout: float | None = None
    ) -> Appended:
        """Append one batch, and return once the durability class of the log is met.

        Where too much waits for the disk already, this waits for its turn, at most `timeout`
        seconds; `DeadlineExceeded` then means that nothing was written. A batch that was admitted
        runs to its end. `batch` must not change before this returns. Its checksum is verified
        unless `is_checked` says that the caller did.
        """
        return await self._intake.submit(batch, is_checked=is_checked, timeout=timeout)

    def submit(
        self,
        batch: Bytes,
        *,
        is_checked: bool = False,
        on_admit: OnAdmit | None = None,
        timeout: float | None = None,
        is_early: bool = False,
        header: BatchHeader | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one batch, as `append` does, and return what ends with its acknowledgement.

        `on_admit` is called with the batch's offset at the moment that it gets it, in the order of
        offsets, and may refuse it: the batch then takes no offset, and the future fails with what
        was raised. It must not append or wait. Cancelling the future withdraws a batch that waits
        for admission; one that was admitted runs to its end. `is_early` has a batch acknowledged
        once it is written, though the class of the log asks for more: it survives the death of the
        process then, and readers see it no earlier than they would. Who passes the batch's own
        `header` vouches for the whole of it: its sum, its size and its count.
        """
        return self._intake.submit(
            batch,
            is_checked=is_checked,
            on_admit=on_admit,
            timeout=timeout,
            is_early=is_early,
            header=header,
        )

    def submit_for(
        self,
        waiter: AppendWaiter,
        batch: Bytes,
        header: BatchHeader,
        *,
        timeout: float | None = None,
        is_early: bool = False,
    ) -> None:
        """Append one batch as `submit` does with its `header`, and tell `waiter` instead.

        It is told at once, where a future takes a turn of the loop.
        """
        self._intake.submit_for(waiter, batch, header, timeout=timeout, is_early=is_early)

    def try_append(self, batch: Bytes, *, is_checked: bool = False) -> asyncio.Future[Appended]:
        """Append one batch if it can be admitted now; else raise `WouldBlock` with the reason.

        The future ends when the durability class of the log is met.
        """
        return self._intake.submit_now(batch, is_checked=is_checked)

    async def append_records(
        self,
        records: Sequence[Record],
        *,
        codec: Codec = Codec.NONE,
        timeout: float | None = None,
    ) -> Appended:
        """Append records as one batch: all of them, or none. Undated ones get the present."""
        batch = build_batch(records, now_ms=self._clock.wall_ms(), codec=codec)
        return await self.append(batch, is_checked=True, timeout=timeout)

    async def begin_epoch(self, number: int) -> None:
        """Have every batch from now on bear a newer leader epoch. Durable when this returns."""
        await self._writer.begin_epoch(number)

    async def delete_before(self, offset: int) -> None:
        """Delete all records before `offset`. Durable when this returns.

        Never past `end_offset`, which raises `OffsetOutOfRange`, and never back, which does
        nothing. Files of which nothing is left are removed afterwards, save the last that holds a
        record, which goes when another follows it. Slices that were read stay valid. Readers go on
        at the first offset that is left: nobody is told of a gap.
        """
        await self._writer.front.delete_before(offset)

    async def evict_before(self, offset: int) -> None:
        """Let all records before `offset` go, though nobody asked for that. Durable on return.

        As `delete_before`, save that readers who come to an offset below are told of a gap. The
        guard of the log is asked first.
        """
        await self._writer.front.evict_before(offset)

    def plan_eviction(self) -> Eviction | None:
        """Return what has to go now by the settings of the log; nothing goes by this."""
        state = self._contents.state
        return plan_eviction(
            state.segments,
            start=state.start,
            committed=state.committed.offset,
            config=self.config,
            now_ms=self._steady(),
            needed=self.needed_offset,
        )

    @property
    def needed_offset(self) -> int | None:
        """The first offset that whoever guards the log still needs, if anyone does."""
        return None if self.guard is None else self.guard.needed_offset()

    async def delete_keys(
        self,
        *,
        key: bytes | None = None,
        prefix: bytes | None = None,
        before: int | None = None,
    ) -> int:
        """Delete all records with this key, or with a key that begins so; returns how many.

        Only those before the offset `before`, or all that were admitted when this was called.
        Durable and invisible when this returns; the bytes are reclaimed later, and slices that
        were read stay valid. The key may be appended again at once. `Unavailable` says that too
        many deletions wait to be reclaimed. After `StorageFailed` it is not known whether they are
        deleted, until the log is opened again or they are deleted once more; so it is after
        `DiskFull`.
        """
        return await self._writer.delete_keys(match_for(key=key, prefix=prefix), before=before)

    async def roll(self) -> None:
        """Seal the growing segment, if it holds anything. The next append begins another."""
        await self._writer.roll()

    async def clean(
        self,
        *,
        background: Executor,
        throttle: IoThrottle,
        memory_bytes_max: int,
        seed: int,
        is_forced: bool = False,
    ) -> CleanerResult | None:
        """Compact, reclaim and merge what is worth it; see `Cleaning.clean`."""
        return await self._writer.cleaning.clean(
            self.config,
            background=background,
            throttle=throttle,
            memory_bytes_max=memory_bytes_max,
            seed=seed,
            is_forced=is_forced,
        )

    async def reconfigure(self, config: LogConfig) -> None:
        """Go by other settings from here on; batches that were admitted may still go by the old.

        The durability class may change among `memory`, `disk` and `fsync`, and that is durable
        when this returns. The first acknowledgement of class `fsync` promises that all before it
        is on the disk too.
        """
        await self._writer.reconfigure(config)
        self.config = config

    # Reading.

    def read(
        self,
        offset: int,
        *,
        size_max: int = READ_SIZE_MAX,
        records_max: int | None = None,
        is_checked: bool = True,
    ) -> Slice:
        """Return committed batches from the one that holds `offset` on, out of one segment.

        At least one batch comes back, whatever its size; none at the end of the log. Checksums
        are verified unless `is_checked` is off, for callers whose readers verify them.
        """
        return self._contents.read(
            offset, size_max=size_max, records_max=records_max, is_checked=is_checked
        )

    def read_at(self, address: Address) -> Slice:
        """Return the batch at a physical address, without an index."""
        return self._contents.read_at(address)

    def records(
        self, offset: int | None = None, *, until: int | None = None
    ) -> Iterator[StoredRecord | Gap]:
        """Go over the committed records from `offset` on, or from the first, up to `until`.

        It ends where the log ended when it got there; markers of transactions are left out. Where
        records were evicted that it had not come to, a `Gap` says which; what was deleted is left
        out without a word.
        """
        position = self.start_offset if offset is None else offset
        end = self.end_offset if until is None else until
        while position < end:
            try:
                found = self.read(position)
            except OffsetOutOfRange:
                gap, position = self.overtaken(position)
                if gap is not None:
                    yield gap._replace(to_offset=min(gap.to_offset, end - 1))
                continue
            if not found.data:
                return
            for record in read_all(found.data):
                if position <= record.offset < end:
                    yield record
            position = found.next_offset

    def overtaken(self, offset: int) -> tuple[Gap | None, int]:
        """Say what went before a reader came to `offset`, and where it can go on.

        To be asked when `read` raised `OffsetOutOfRange`, which this raises too where nothing was
        deleted or evicted there. Without a gap, all that went was deleted.
        """
        state = self._contents.state
        if not 0 <= offset < state.start:
            raise OffsetOutOfRange(offset, start=state.start, end=state.committed.offset)
        return _gap(offset, state), state.start

    def headers(
        self, offset: int, *, until: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Go over the committed batches from the one that holds `offset` on, up to `until`.

        Each is checked, and comes with its header. It ends where the log ended when it got there.
        """
        end = self.end_offset if until is None else until
        while offset < end:
            found = self.read(offset)
            if not found.data:
                return
            for header, batch in split(found.data):
                if header.base_offset >= end:
                    return
                yield header, batch
            offset = found.next_offset

    def find_latest(self) -> TimestampedOffset | None:
        """Return the record with the greatest timestamp; of several, the first. Exact."""
        return self._contents.find_latest()

    def find_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """Return the first record, by offset, that is as late as `timestamp_ms` or later.

        Exact per record, though timestamps may jump back and forth.
        """
        return self._contents.find_timestamp(timestamp_ms)

    def records_between(self, first_ms: int, last_ms: int) -> Iterator[StoredRecord]:
        """Go over all records with `first_ms` <= timestamp < `last_ms`, in the order of the log.

        Misses none: timestamps need not rise, so it looks at every batch that is late enough.
        """
        start = self.start_offset
        for batch in self._contents.batches_since(first_ms):
            for record in read_all(batch):
                if first_ms <= record.timestamp_ms < last_ms and record.offset >= start:
                    yield record

    # Following.

    async def wait_for(self, offset: int) -> None:
        """Return once the record at `offset` can be read. No polling: an append wakes it."""
        while self.end_offset <= offset:
            if self._is_closed:
                raise LogClosed(f"{self.name} is closed")
            if self.offline:
                raise self.offline
            if self._arrival is None:
                self._arrival = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrival)

    async def follow(self, offset: int, *, size_max: int = READ_SIZE_MAX) -> AsyncIterator[Slice]:
        """Yield batches from `offset` on, for ever, as they are committed.

        Where records go before it has come to them it ends with `OffsetOutOfRange`; `gap_at` says
        whether they were evicted.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(offset, start=self.start_offset, end=self.end_offset)
        while True:
            await self.wait_for(offset)
            found = self.read(offset, size_max=size_max)
            yield found
            offset = found.next_offset

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of what can be read. Watching twice is watching once.

        That is after a commit that moved `end_offset`, after records were deleted or evicted, when
        the log goes offline and when it is closed; on the event loop, so it should only take note
        and return.
        """
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Call `callback` no more. Harmless where it is not called anyway."""
        self._watchers.pop(callback, None)

    def _tell(self) -> None:
        """Wake all who wait for something new."""
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival.set_result(None)
        for callback in tuple(self._watchers):
            if callback in self._watchers:  # It may have been taken off by one before it.
                try:
                    callback()
                except Exception:  # The log must go on, whoever looks at it.
                    logger.exception("%s: a watcher failed", self.name)

    # Ending.

    def park(self) -> bool:
        """Give the descriptor for writing back if the log is idle."""
        return self._writer.park()

    @property
    def is_open_for_writing(self) -> bool:
        """Whether a descriptor is held for writing."""
        return self._writer.is_open

    async def close(self) -> None:
        """Commit what was admitted, seal the log and give its files back."""
        try:
            await self._writer.close()
        finally:
            self._end()

    async def discard(self) -> None:
        """Let go of the log, because its files are about to be removed.

        What is not committed is refused, and nothing is sealed.
        """
        try:
            await self._writer.discard()
        finally:
            self._contents.let_go(LogClosed(f"{self.name} is closed"))
            self._end()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._tell()


def _end_of(recovered: RecoveredLog) -> LogPosition:
    """The end of what recovery found: all of it is durable by now."""
    start = recovered.partition.start_offset
    last = recovered.segments[-1] if recovered.segments else None
    if last is None or last.next_offset < start:
        return LogPosition(start, -1, 0)
    return LogPosition(last.next_offset, last.base_offset, last.size)


def _gap(offset: int, state: LogSnapshot) -> Gap | None:
    """Return what was evicted from `offset` on."""
    if not 0 <= offset < state.eviction_floor:
        return None
    return Gap(offset, state.eviction_floor - 1, "retention")

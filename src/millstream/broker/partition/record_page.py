"""Reading a partition record by record, from a cursor.

For readers that take single records, not whole batches as Kafka's clients do. They see committed
records only: no open or aborted transactions, no markers, no deleted records. Records that
retention deleted before they were read are reported once, as a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.results import AbortedTransactionStart, FetchResult
from millstream.clock import Timers
from millstream.errors import CorruptBatch, DamagedRecords, RecordsInRepair, TierUnavailable
from millstream.records.batch import BatchHeader, split
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX, OversizedBody
from millstream.records.control import read_marker
from millstream.records.iterate import records_of
from millstream.records.record import Gap, StoredRecord

BATCHES_BYTES_MAX = 256 * 1024
"""Bytes that are read from a log at once; a single batch may be larger."""

READS_MAX = 64
"""Reads of a log for one page. A range without visible records, such as aborted ones, may be as
long as the log: the cursor moves over it in steps of about 16 MiB."""


class RecordPage(NamedTuple):
    """The next records from a cursor."""

    records: tuple[StoredRecord, ...]
    next_offset: int
    """The cursor of the next page. It may advance even if there is no record."""
    head: int
    """The high watermark of the partition."""
    gap: Gap | None = None
    """The records that retention deleted before they were read, and why."""


async def read_page(
    partition: ReadablePartition, from_offset: int, *, limit: int, size_max: int
) -> RecordPage:
    """Return the records from `from_offset` on: at most `limit` records and `size_max` bytes.

    The partition has to be open. One record is returned even if it alone is larger. If the cursor
    does not advance, there is nothing up to the end. Raises `OffsetOutOfRange` if the cursor is
    past the head, `DamagedRecords` if the records at the cursor cannot be decoded, and
    `RecordsInRepair` if they are being repaired; those before them are returned first.
    """
    gap: Gap | None = None
    page = _PageBuilder(limit=limit, size_max=size_max)
    cursor = from_offset
    for _ in range(READS_MAX):
        if cold := partition.reader.cold_ranges(cursor, size_max=BATCHES_BYTES_MAX):
            await partition.reader.prefetch(cold)
        # Retention may delete records ahead while batches are decoded: check before each read.
        if (missed := partition.reader.gap_at(cursor)) is not None:
            if page.records:
                break  # The next page starts with this gap.
            gap = missed if gap is None else missed._replace(from_offset=gap.from_offset)
            cursor = missed.to_offset + 1
        try:
            fetched = await partition.reader.fetch(cursor, size_max=BATCHES_BYTES_MAX)
            if not fetched.parts:
                break
            cursor = await partition.opener.run(fetched.parts, partial(page.take, fetched, cursor))
        except DamagedRecords as damage:
            ends = [record.offset + 1 for record in page.records[-1:]]
            cursor = max(cursor, damage.from_offset, *ends)
            if cursor == from_offset and gap is None:
                raise
            break  # The next page starts with the damage.
        except (RecordsInRepair, TierUnavailable):
            if not page.records and cursor == from_offset and gap is None:
                raise
            break  # The next page is refused until they can be read.
        if page.is_full:
            break
    return RecordPage(tuple(page.records), cursor, partition.high_watermark, gap)


class _PageBuilder:
    """Collects records until a page is full."""

    def __init__(self, *, limit: int, size_max: int) -> None:
        self.records: list[StoredRecord] = []
        self._limit = limit
        self._size_max = size_max
        self._size = 0
        self.is_full = False

    def take(self, fetched: FetchResult, cursor: int, size_max: int) -> int:
        """Add the records from `cursor` on; return the next cursor.

        Has no effect if it raises `OversizedBody` because of a batch of more than `size_max` bytes.
        """
        records, size = self.records.copy(), self._size
        next_offset, is_full = fetched.next_offset, False
        try:
            for record in committed_records(fetched, size_max=size_max):
                if record.offset < cursor:
                    continue
                size += size_of(record)
                if records and (len(records) == self._limit or size > self._size_max):
                    next_offset, is_full = max(cursor, records[-1].offset + 1), True
                    break
                records.append(record)
        except DamagedRecords:  # Those before it are returned first.
            self.records, self._size = records, size
            raise
        self.records, self._size = records, size
        self.is_full = is_full or len(records) >= self._limit or size >= self._size_max
        return next_offset


def size_of(record: StoredRecord) -> int:
    """Return the bytes of client data in a record: value, key and headers."""
    size = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size


def committed_records(fetched: FetchResult, *, size_max: int) -> Iterator[StoredRecord]:
    """Yield the records of batches that were read with `is_committed_only`, in order.

    Raises `OversizedBody` at a batch that decompresses to more than `size_max` bytes.
    """
    for header, batch, is_visible in committed_batches(fetched):
        if is_visible:
            yield from decoded_records(header, batch, size_max=size_max)


def decoded_records(
    header: BatchHeader, batch: memoryview, *, size_max: int
) -> Iterator[StoredRecord]:
    """Yield the records of a stored batch; raise `DamagedRecords` if they cannot be decoded.

    The checksum of such a batch is correct: a client sent it so. Raises `OversizedBody` if it
    decompresses to more than `size_max` bytes, and may be opened with a higher limit.
    """
    try:
        yield from records_of(header, open_body(header, batch, size_max=size_max))
    except CorruptBatch as error:
        if isinstance(error, OversizedBody) and size_max < BODY_SIZE_MAX:
            raise
        raise DamagedRecords(
            f"batch at offset {header.base_offset}",
            f"records cannot be decoded: {error}",
            from_offset=header.base_offset,
            to_offset=header.last_offset,
        ) from error


def committed_batches(fetched: FetchResult) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Yield batches that were read with `is_committed_only`, and whether their records are visible.

    An aborted transaction extends from its first offset to the next marker of its producer, as
    Kafka's own consumers see it.
    """
    aborted = sorted(fetched.aborted, key=lambda start: start.first_offset, reverse=True)
    hidden: set[int] = set()
    for part in fetched.parts:
        for header, batch in split(part):
            _note_aborted(aborted, hidden, header)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.is_commit:
                    hidden.discard(header.producer_id)
            is_hidden = header.is_transactional and header.producer_id in hidden
            yield header, batch, not (header.is_control or is_hidden)


def _note_aborted(
    aborted: list[AbortedTransactionStart], hidden: set[int], header: BatchHeader
) -> None:
    """Hide the producers of aborted transactions that start before the end of a batch."""
    while aborted and aborted[-1].first_offset <= header.last_offset:
        hidden.add(aborted.pop().producer_id)


class NewRecordsWaiter:
    """Waits for new records in partitions, or for a call of `wake`.

    It is woken in the middle of a commit, so it only takes note.
    """

    def __init__(self, partitions: Sequence[ReadablePartition], timers: Timers) -> None:
        self._partitions = partitions
        self._timers = timers
        self._woken: asyncio.Future[None] | None = None
        self._is_new = False
        for partition in partitions:
            partition.watch(self.wake)

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        self._is_new = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait until there was news since the last call, or `seconds` have passed; return which."""
        if not self._is_new:
            self._woken = asyncio.get_running_loop().create_future()
            timer = self._timers.call_later(seconds, _end(self._woken))
            try:
                await self._woken
            finally:
                timer.cancel()
                self._woken = None
        is_new, self._is_new = self._is_new, False
        return is_new

    def close(self) -> None:
        for partition in self._partitions:
            partition.unwatch(self.wake)


def _end(future: asyncio.Future[None]) -> Callable[[], None]:
    def end() -> None:
        if not future.done():
            future.set_result(None)

    return end

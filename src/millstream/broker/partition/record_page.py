"""What is new in a partition from a cursor on, as records.

For readers that take records one by one, and not in whole batches as Kafka's clients do. They see
committed records only: nothing of a transaction that is open or was aborted, no marker, nothing
that was deleted. What retention took before they came is told them, once, as a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import AbortedTransactionStart, FetchResult
from millstream.clock import Timers
from millstream.records.batch import BatchHeader, split
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.control import read_marker
from millstream.records.iterate import records_of
from millstream.records.record import Gap, StoredRecord

T = TypeVar("T")

BATCHES_BYTES_MAX = 256 * 1024
"""What is read of a log in one go; one batch may be larger."""

READS_MAX = 64
"""How often a log is read for one difference. A stretch that holds nothing to see, such as what was
aborted, may be as long as the log: the cursor moves over it in steps of some 16 MiB."""

INLINE_BYTES_MAX = 64 * 1024
"""Batches up to this size, and not packed, are opened on the loop; others in a thread."""


class RecordPage(NamedTuple):
    """What is new from a cursor on."""

    records: tuple[StoredRecord, ...]
    next_offset: int
    """The cursor to go on with. It may move though there is no record."""
    head: int
    """The offset after the last record that anybody can read."""
    gap: Gap | None = None
    """What went before it was seen."""


async def read_page(
    partition: Partition, from_offset: int, *, limit: int, size_max: int
) -> RecordPage:
    """Return what is new from `from_offset` on: `limit` records, `size_max` bytes at the most.

    The partition has to be open. One record comes back even if it alone is larger. Where the
    cursor stays where it is, there is nothing up to the end. Raises `OffsetOutOfRange` where the
    cursor lies past the head.
    """
    gap: Gap | None = None
    taking = _PageBuilder(limit=limit, size_max=size_max)
    cursor = from_offset
    for _ in range(READS_MAX):
        if cold := partition.reader.cold_ranges(cursor, size_max=BATCHES_BYTES_MAX):
            await partition.reader.prefetch(cold)
        # Retention goes on while batches are opened, so what it takes may lie ahead each time.
        if (missed := partition.reader.gap_at(cursor)) is not None:
            if taking.found:
                break  # It is told to who goes on from here.
            gap = missed if gap is None else gap._replace(to_offset=missed.to_offset)
            cursor = missed.to_offset + 1
        fetched = partition.reader.read(cursor, size_max=BATCHES_BYTES_MAX, is_committed_only=True)
        if not fetched.parts:
            break
        cursor = await inline_or_in_thread(fetched, partial(taking.take, fetched, cursor))
        if taking.is_full:
            break
    return RecordPage(tuple(taking.found), cursor, partition.high_watermark, gap)


class _PageBuilder:
    """Takes records until there are enough."""

    def __init__(self, *, limit: int, size_max: int) -> None:
        self.found: list[StoredRecord] = []
        self._limit = limit
        self._size_max = size_max
        self._size = 0
        self.is_full = False

    def take(self, fetched: FetchResult, cursor: int) -> int:
        """Take records from `cursor` on; return the cursor to go on with."""
        found = self.found
        for record in committed_records(fetched):
            if record.offset < cursor:
                continue
            self._size += size_of(record)
            if found and (len(found) == self._limit or self._size > self._size_max):
                self.is_full = True
                return max(cursor, found[-1].offset + 1)
            found.append(record)
        self.is_full = len(found) >= self._limit or self._size >= self._size_max
        return fetched.next_offset


def size_of(record: StoredRecord) -> int:
    """Return how many bytes of a client's a record holds."""
    size = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size


async def inline_or_in_thread(fetched: FetchResult, work: Callable[[], T]) -> T:
    """Open batches by `work`: on the loop where that is quick, and else in a thread."""
    if fetched.size <= INLINE_BYTES_MAX and not any(map(_is_compressed, fetched.parts)):
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


def committed_records(fetched: FetchResult) -> Iterator[StoredRecord]:
    """Yield the records of batches that were fetched as committed, in order."""
    for header, batch, is_shown in committed_batches(fetched):
        if is_shown:
            yield from records_of(header, open_body(header, batch, size_max=BODY_SIZE_MAX))


def committed_batches(fetched: FetchResult) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Yield batches that were fetched as committed, and whether their records are shown.

    A transaction that was aborted reaches from its first offset to the next marker of its
    producer, as Kafka's own consumers see it.
    """
    aborted = sorted(fetched.aborted, key=lambda one: one.first_offset, reverse=True)
    silenced: set[int] = set()
    for part in fetched.parts:
        for header, batch in split(part):
            _begin(aborted, silenced, header)
            if header.is_control and not read_marker(batch).is_commit:
                silenced.discard(header.producer_id)
            is_silenced = header.is_transactional and header.producer_id in silenced
            yield header, batch, not (header.is_control or is_silenced)


def _begin(aborted: list[AbortedTransactionStart], silenced: set[int], header: BatchHeader) -> None:
    """Take note of aborted transactions that begin up to the end of a batch."""
    while aborted and aborted[-1].first_offset <= header.last_offset:
        silenced.add(aborted.pop().producer_id)


def _is_compressed(part: memoryview) -> bool:
    return any(header.codec for header, _ in split(part))


class NewRecordsWaiter:
    """Waits for something new in partitions, or for whoever else calls `wake`.

    It is woken in the middle of a commit, so it only takes note.
    """

    def __init__(self, partitions: Sequence[Partition], timers: Timers) -> None:
        self._partitions = partitions
        self._timers = timers
        self._woken: asyncio.Future[None] | None = None
        self._is_new = False
        for partition in partitions:
            partition.watch(self.wake)

    def wake(self) -> None:
        """Have who waits look again."""
        self._is_new = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Return once there was something new since the last call, or `seconds` have passed.

        Returns whether there was.
        """
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
        """Wait no more."""
        for partition in self._partitions:
            partition.unwatch(self.wake)


def _end(future: asyncio.Future[None]) -> Callable[[], None]:
    def end() -> None:
        if not future.done():
            future.set_result(None)

    return end

"""Jobs of one partition that nobody had yet, read ahead; and others, read by their offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import committed_batches, inline_or_in_thread
from millstream.broker.partition.results import FetchResult
from millstream.config.schema import KIB, MIB
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of
from millstream.records.record import StoredRecord

READ_BYTES_MAX = 64 * KIB
"""What is read of the log in one go, and opened on the loop; one batch may be larger."""

HELD_BYTES_MAX = 4 * MIB
"""Nothing more is read for a claim once so much was: it gets fewer jobs than it asked for."""


class TakenJobs(NamedTuple):
    """Jobs that leave the stock."""

    records: list[StoredRecord]
    end: int
    """The offset after them, and after what is no job behind them."""
    removed: int
    """How many jobs before them were deleted, and are passed over."""


class _Chunk(NamedTuple):
    records: list[StoredRecord]
    removed: dict[int, int]
    """How many jobs were deleted before a record, by its place; few have an entry."""
    end: int


class ReadAhead:
    """The next jobs of one partition that nobody had yet.

    It begins at the frontier. What is deleted meanwhile makes it void.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self._hold(_Chunk([], {}, 0), 0, None)

    def _hold(self, chunk: _Chunk, position: int, shape: tuple[int, object] | None) -> None:
        self._records, self._removed, self.end = chunk
        self._at = 0
        self._position = position
        """Where the jobs begin that are left: the frontier has to be there."""
        self._shape = shape
        self._bytes = 0

    @property
    def count(self) -> int:
        """How many jobs it holds."""
        return len(self._records) - self._at

    @property
    def is_full(self) -> bool:
        """Whether it holds so much that more must wait."""
        return self.count > 0 and self._bytes >= HELD_BYTES_MAX

    def is_sound(self, frontier: int) -> bool:
        """Whether it holds what comes next, and nothing of it was deleted since it was read."""
        return self._position == frontier and _is_same(self._shape, self.partition.reader.removals)

    async def read_more(self, frontier: int) -> bool:
        """Read on, where there is anything; the partition is open. Returns whether there was.

        Afterwards it may hold no more than before, and yet reach further: there was no job on the
        way.
        """
        if not self.is_sound(frontier):
            self._hold(_Chunk([], {}, frontier), frontier, self.partition.reader.removals)
        shape, end = self._shape, self.end
        cursor = max(end, self.partition.log_start_offset)
        if cursor >= self.partition.last_stable_offset:
            return False
        fetched = self.partition.reader.read(
            cursor, size_max=READ_BYTES_MAX, is_committed_only=True
        )
        if not fetched.parts:
            return False
        chunk = await inline_or_in_thread(fetched, _batch_opener(fetched, cursor, end))
        if self.end == end and _is_same(self._shape, shape):
            self._add(chunk, fetched.size)
        return True

    def _add(self, chunk: _Chunk, size: int) -> None:
        at, left = self._at, self.count
        removed = {place - at: count for place, count in self._removed.items() if place >= at}
        for place, count in chunk.removed.items():
            removed[place + left] = removed.get(place + left, 0) + count
        self._records = self._records[at:] + chunk.records
        self._removed, self.end, self._at = removed, chunk.end, 0
        self._bytes = size if not left else self._bytes + size

    def take(self, limit: int) -> TakenJobs:
        """Take the next jobs out, `limit` at the most; all holes before them go along."""
        first, last = self._at, min(self._at + limit, len(self._records))
        self._at = last
        is_all = last == len(self._records)
        gone = 0
        if self._removed:
            passed = [place for place in self._removed if first <= place < last + is_all]
            gone = sum(map(self._removed.pop, passed))
        taken = self._records[first:last]
        self._position = self.end if is_all else taken[-1].offset + 1
        return TakenJobs(taken, self._position, gone)


def _is_same(one: tuple[int, object] | None, other: tuple[int, object] | None) -> bool:
    return one is not None and other is not None and one[0] == other[0] and one[1] is other[1]


def _batch_opener(fetched: FetchResult, cursor: int, begin: int) -> Callable[[], _Chunk]:
    return lambda: _open(fetched, cursor, begin)


def _open(fetched: FetchResult, cursor: int, begin: int) -> _Chunk:
    """Open batches from `cursor` on; what lies before it from `begin` on was deleted."""
    records: list[StoredRecord] = []
    removed: dict[int, int] = {}
    position = begin

    def pass_over(offset: int) -> None:
        nonlocal position
        if offset > position:
            removed[len(records)] = removed.get(len(records), 0) + offset - position
        position = max(position, offset)

    for header, batch, is_shown in committed_batches(fetched):
        pass_over(header.base_offset)
        if is_shown:
            found = records_of(header, open_body(header, batch, size_max=BODY_SIZE_MAX))
            is_whole = header.record_count == header.last_offset_delta + 1
            if is_whole and header.base_offset >= cursor:
                records += found
            else:
                for record in found:
                    if record.offset >= position:
                        pass_over(record.offset)
                        records.append(record)
                        position = record.offset + 1
                pass_over(header.next_offset)
        position = max(position, header.next_offset)
    pass_over(fetched.next_offset)
    return _Chunk(records, removed, max(position, cursor))


class FoundRecords(NamedTuple):
    """What became of records that were looked for."""

    records: dict[int, StoredRecord]
    missing: list[int]
    """Those that are not there any more; what is in neither was not looked at."""
    size: int = 0
    """How many bytes were read of the log."""


async def read_offsets(
    partition: Partition, offsets: Sequence[int], *, size_max: int = HELD_BYTES_MAX
) -> FoundRecords:
    """Return the records at these offsets of an open partition, as far as they are there.

    It ends once `size_max` bytes were read; at least one offset is looked at.
    """
    found = FoundRecords({}, [])
    wanted = sorted(offsets)
    at = size = 0
    while at < len(wanted) and size < size_max:
        offset = wanted[at]
        if offset < partition.log_start_offset:
            found.missing.append(offset)
            at += 1
            continue
        fetched = partition.reader.read(offset, size_max=1, is_committed_only=True)
        if not fetched.parts:
            break
        chunk = await inline_or_in_thread(fetched, _batch_opener(fetched, offset, offset))
        here = {record.offset: record for record in chunk.records}
        size += fetched.size
        end = max(fetched.next_offset, offset + 1)
        while at < len(wanted) and wanted[at] < end:
            if (record := here.get(wanted[at])) is not None:
                found.records[wanted[at]] = record
            else:
                found.missing.append(wanted[at])
            at += 1
    return found._replace(size=size)

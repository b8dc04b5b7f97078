"""New jobs of one partition, read and not delivered yet: a buffer without I/O."""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import DamagedRecords
from millstream.records.record import StoredRecord


class TakenJobs(NamedTuple):
    """The next new jobs of a partition."""

    records: list[StoredRecord]
    end: int
    """The offset after them, and after the offsets behind them that hold no job."""
    removed: int
    """How many jobs before them were deleted, and are skipped."""


class JobChunk(NamedTuple):
    """Jobs of one read."""

    records: list[StoredRecord]
    removed: dict[int, int]
    """Number of jobs deleted before a record, by the record's index; few have an entry."""
    end: int
    damage: DamagedRecords | None = None
    """Why the read ended there, if the records that follow cannot be decoded."""


class FreshJobs:
    """New jobs of one partition, read and not delivered yet."""

    __slots__ = ("_index", "_records", "_removed", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """The offset from which on they were read: the frontier has to be there."""
        self.end = start
        """The offset up to which they were read."""
        self._records: list[StoredRecord] = []
        self._removed: dict[int, int] = {}
        self._index = 0

    @property
    def count(self) -> int:
        """Number of jobs."""
        return len(self._records) - self._index

    def peek(self, limit: int) -> TakenJobs:
        """Return up to `limit` jobs, with all deleted offsets before them."""
        first, last = self._index, min(self._index + limit, len(self._records))
        is_all = last == len(self._records)
        removed = 0
        if self._removed:
            counts = self._removed.items()
            removed = sum(count for index, count in counts if first <= index < last + is_all)
        records = self._records[first:last]
        return TakenJobs(records, self.end if is_all else records[-1].offset + 1, removed)

    def drop(self, taken: TakenJobs) -> None:
        """Remove jobs that `peek` returned."""
        self._index += len(taken.records)
        self.start = taken.end
        if self.start == self.end:
            self._removed.clear()

    def add(self, chunk: JobChunk) -> None:
        """Add what was read from `end` on."""
        first, count = self._index, self.count
        removed = {index - first: n for index, n in self._removed.items() if index >= first}
        for index, n in chunk.removed.items():
            removed[index + count] = removed.get(index + count, 0) + n
        self._records = self._records[first:] + chunk.records
        self._removed, self.end, self._index = removed, chunk.end, 0

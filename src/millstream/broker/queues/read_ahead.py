"""Reading jobs: new ones ahead of the claims, and others by their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import committed_batches, decoded_records
from millstream.broker.partition.results import FetchResult
from millstream.broker.queues.fresh_jobs import FreshJobs, JobChunk
from millstream.config.schema import KIB, MIB
from millstream.errors import DamagedRecords
from millstream.records.record import StoredRecord

READ_BYTES_MAX = 64 * KIB
"""Size of one read of the log, which is decoded on the loop; a single batch may be larger."""

HELD_BYTES_MAX = 4 * MIB
"""After reading this much for a claim, no more is read: it gets fewer jobs than it wanted."""


class ReadAhead:
    """Reads the new jobs of one partition ahead, from its frontier on.

    Deleting records from the partition invalidates everything that was read.
    """

    def __init__(self, partition: ReadablePartition) -> None:
        self.partition = partition
        self.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self._start(0, None)

    def _start(self, frontier: int, removals: tuple[int, object] | None) -> None:
        self.jobs = FreshJobs(frontier)
        self._removals = removals
        """Changes whenever records of the partition are deleted."""
        self._bytes = 0
        self.damage: DamagedRecords | None = None
        """Why nothing can be read behind the jobs, if the records there cannot be decoded."""

    @property
    def is_full(self) -> bool:
        """Whether so much was read that more has to wait until jobs are delivered."""
        return self.jobs.count > 0 and self._bytes >= HELD_BYTES_MAX

    def is_current(self, frontier: int) -> bool:
        """Whether the jobs are the next ones, and none was deleted since they were read."""
        removals = self.partition.reader.removals
        return self.jobs.start == frontier and _is_same(self._removals, removals)

    async def read_more(self, frontier: int) -> bool:
        """Read more of a partition that is open; returns whether there was more.

        Afterwards `jobs` may have a higher `end` and no more jobs: there were no jobs in between.
        If `damage` is set, it has to be skipped before more can be read.
        """
        if not self.is_current(frontier):
            self._start(frontier, self.partition.reader.removals)
        jobs, end = self.jobs, self.jobs.end
        cursor = max(end, self.partition.log_start_offset)
        if cursor >= self.partition.last_stable_offset or self.damage is not None:
            return False
        try:
            fetched = await self.partition.reader.fetch(cursor, size_max=READ_BYTES_MAX)
        except DamagedRecords as damage:
            self.damage = damage
            return True
        if not fetched.parts:
            return False
        chunk = await self.partition.opener.run(fetched.parts, partial(_open, fetched, cursor, end))
        if self.jobs is jobs and jobs.end == end:  # Else it was cleared meanwhile.
            self._bytes = fetched.size if not jobs.count else self._bytes + fetched.size
            self.damage = chunk.damage
            jobs.add(chunk)
        return True


def _is_same(removals: tuple[int, object] | None, other: tuple[int, object] | None) -> bool:
    if removals is None or other is None:
        return False
    return removals[0] == other[0] and removals[1] is other[1]


def _open(fetched: FetchResult, cursor: int, begin: int, size_max: int) -> JobChunk:
    """Decode batches from `cursor` on; offsets from `begin` up to it were deleted.

    Ends before the first batch that cannot be decoded.
    """
    records: list[StoredRecord] = []
    removed: dict[int, int] = {}
    position = begin

    def skip_to(offset: int) -> None:
        nonlocal position
        if offset > position:
            removed[len(records)] = removed.get(len(records), 0) + offset - position
        position = max(position, offset)

    for header, batch, is_shown in committed_batches(fetched):
        skip_to(header.base_offset)
        if is_shown:
            try:
                stored = list(decoded_records(header, batch, size_max=size_max))
            except DamagedRecords as damage:
                return JobChunk(records, removed, max(position, cursor), damage)
            is_dense = header.record_count == header.last_offset_delta + 1
            if is_dense and header.base_offset >= cursor:
                records += stored
            else:
                for record in stored:
                    if record.offset >= position:
                        skip_to(record.offset)
                        records.append(record)
                        position = record.offset + 1
                skip_to(header.next_offset)
        position = max(position, header.next_offset)
    skip_to(fetched.next_offset)
    return JobChunk(records, removed, max(position, cursor))


class FoundRecords(NamedTuple):
    """The result of reading records by offset."""

    records: dict[int, StoredRecord]
    missing: list[int]
    """Offsets that hold no record any more. Offsets in none of the three were not looked up."""
    damaged: dict[int, DamagedRecords]
    """Offsets whose records cannot be decoded."""
    size: int
    """Bytes read of the log."""


async def read_offsets(
    partition: ReadablePartition, offsets: Sequence[int], *, size_max: int = HELD_BYTES_MAX
) -> FoundRecords:
    """Return the records at these offsets of an open partition, if they exist.

    It stops after reading `size_max` bytes; at least one offset is looked up.
    """
    records: dict[int, StoredRecord] = {}
    missing: list[int] = []
    damaged: dict[int, DamagedRecords] = {}
    wanted = sorted(offsets)
    index = size = 0
    while index < len(wanted) and size < size_max:
        offset = wanted[index]
        if offset < partition.log_start_offset:
            missing.append(offset)
            index += 1
            continue
        try:
            fetched = await partition.reader.fetch(offset, size_max=1)
            if not fetched.parts:
                break
            size += fetched.size
            work = partial(_open, fetched, offset, offset)
            chunk = await partition.opener.run(fetched.parts, work)
            by_offset = {record.offset: record for record in chunk.records}
            end, damage = max(fetched.next_offset, offset + 1), chunk.damage
        except DamagedRecords as error:
            by_offset, end, damage = {}, error.to_offset + 1, error
        while index < len(wanted) and wanted[index] < end:
            if (record := by_offset.get(wanted[index])) is not None:
                records[wanted[index]] = record
            elif damage is not None and wanted[index] >= damage.from_offset:
                damaged[wanted[index]] = damage
            else:
                missing.append(wanted[index])
            index += 1
    return FoundRecords(records, missing, damaged, size)

"""Search in a partition: reads records from a cursor and returns those that match.

The work of one call is bounded by the number and the size of the records that it looks at, so the
caller gets an answer soon, with the position to continue from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import (
    BATCHES_BYTES_MAX,
    READS_MAX,
    committed_records,
    size_of,
)
from millstream.broker.partition.results import FetchResult
from millstream.errors import MillstreamError
from millstream.records.record import StoredRecord

RECORDS_MAX = 20_000
"""Records that one search looks at: a few hundred milliseconds of a thread at most."""

BYTES_MAX = 8 * 1024 * 1024
"""Bytes of keys, values and headers that one search looks at; a single batch may be larger."""


@dataclass(slots=True)
class RecordSearch:
    """A search, which may go through several partitions: what it looks for, and what it found."""

    matches: Callable[[StoredRecord], bool]
    limit: int
    """Maximum number of results."""
    result_bytes_max: int
    """Maximum size of the results; a single one may be larger."""
    found: list[tuple[int, StoredRecord]] = field(default_factory=list)
    """Matching records with their partitions, in the order of the search."""
    scanned: int = 0
    scanned_bytes: int = 0
    result_bytes: int = 0
    reads: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached, or enough work was done for one call."""
        return (
            len(self.found) >= self.limit
            or self.result_bytes >= self.result_bytes_max
            or self.scanned >= RECORDS_MAX
            or self.scanned_bytes >= BYTES_MAX
            or self.reads >= READS_MAX
        )


async def search_partition(
    partition: ReadablePartition,
    from_offset: int,
    to_offset: int,
    search: RecordSearch,
) -> int:
    """Search the records from `from_offset` to before `to_offset`; return how far it came.

    The partition has to be open. Records that were deleted are skipped. Damage is raised only if it
    is at `from_offset`: what is before it is returned first.
    """
    cursor = max(from_offset, partition.log_start_offset)
    while cursor < to_offset and not search.is_over:
        try:
            if cold := partition.reader.cold_ranges(cursor, size_max=BATCHES_BYTES_MAX):
                await partition.reader.prefetch(cold)
            # Retention may have deleted records meanwhile.
            cursor = max(cursor, partition.log_start_offset)
            fetched = await partition.reader.fetch(cursor, size_max=BATCHES_BYTES_MAX)
            search.reads += 1
            if not fetched.parts:
                break
            look = partial(_look, fetched, cursor, to_offset, partition.index, search)
            cursor = await partition.opener.run(fetched.parts, look)
        except MillstreamError:
            if search.scanned == 0:
                raise
            break
    return min(cursor, to_offset) if cursor > from_offset else from_offset


def _look(  # noqa: PLR0917 - bound by `partial`.
    fetched: FetchResult,
    cursor: int,
    to_offset: int,
    index: int,
    search: RecordSearch,
    size_max: int,
) -> int:
    """Look at the records of some batches from `cursor` on; return the next cursor.

    If the first batch has more than `size_max` bytes, raises `OversizedBody` and has no effect.
    """
    position = cursor
    try:
        for record in committed_records(fetched, size_max=size_max):
            if record.offset < cursor:
                continue
            if record.offset >= to_offset:
                return to_offset
            if search.is_over:
                return record.offset
            size = size_of(record)
            search.scanned += 1
            search.scanned_bytes += size
            position = record.offset + 1
            if search.matches(record):
                search.found.append((index, record))
                search.result_bytes += size
    except MillstreamError:  # A batch is damaged: the next read begins with it.
        if position == cursor:
            raise
        return position
    return fetched.next_offset

"""One write of pending batches to a segment, each stamped with its offset and epoch."""

from __future__ import annotations

from collections import deque
from itertools import islice

from millstream.config.schema import LogConfig
from millstream.records.batch import HEADER_SIZE, PREFIX_SIZE, Bytes, stamped_prefix
from millstream.storage.append.pending_append import PendingAppend
from millstream.storage.disk.filesystem import File, write_all
from millstream.storage.segment.counters import LogCounters, StoreTotals
from millstream.storage.segment.reader import Address
from millstream.storage.segment.segment import GrowingSegment

_UNSTAMPED_HEADER_SIZE = HEADER_SIZE - PREFIX_SIZE


def gather_batches(
    pending: deque[PendingAppend], segment: GrowingSegment, config: LogConfig
) -> list[PendingAppend]:
    """Return the pending batches that fit into `segment`, for one write; at least one."""
    appends = [pending[0]]
    bytes_left = config.segment_bytes_max - segment.size - appends[0].size
    records_left = config.segment_records_max - segment.stats.record_count
    records_left -= appends[0].header.record_count
    for append in islice(pending, 1, None):
        bytes_left -= append.size
        records_left -= append.header.record_count
        if bytes_left < 0 or records_left < 0:
            break
        appends.append(append)
    return appends


def write_appends(file: File, segment: GrowingSegment, appends: list[PendingAppend]) -> list[Bytes]:
    """Write batches at the end of the segment; return the written pieces, two for each batch.

    Stamping copies no records: the first piece is a new prefix, the second is the rest of the
    batch. After an `OSError`, any part of them may be in the file.
    """
    epoch = segment.leader_epoch
    pieces: list[Bytes] = []
    for append in appends:
        pieces += (
            stamped_prefix(append.header, base_offset=append.offset, leader_epoch=epoch),
            memoryview(append.batch)[PREFIX_SIZE:],
        )
    position = segment.size
    segment.reserve(position + sum([append.size for append in appends]))
    write_all(file, position, pieces)
    return pieces


def record_written(
    segment: GrowingSegment,
    appends: list[PendingAppend],
    pieces: list[Bytes],
    counters: LogCounters,
    totals: StoreTotals,
) -> None:
    """Record batches that were written: in the segment, in themselves and in the counters."""
    base_offset, records = segment.base_offset, segment.stats.record_count
    size = segment.size
    observe_bytes, observe_records = totals.batch_bytes.observe, totals.batch_records.observe
    for append, prefix, body in zip(appends, pieces[::2], pieces[1::2], strict=True):
        append.address = Address(base_offset, segment.stats.size)
        observe_bytes(append.size)
        observe_records(append.header.record_count)
        segment.add(append.header, append.size, b"".join((prefix, body[:_UNSTAMPED_HEADER_SIZE])))
    counters.writes += 1
    counters.appends += len(appends)
    records, size = segment.stats.record_count - records, segment.size - size
    counters.records += records
    counters.bytes += size
    totals.records += records
    totals.bytes += size

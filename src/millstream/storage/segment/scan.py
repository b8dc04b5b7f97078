"""Scan of a segment: walks over its batches and checks each of them.

Recovery, `verify` and `reindex` all see a segment through `scan`: its content up to the first
invalid batch, the index of that, and what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crc32c import crc32c

from millstream.errors import CorruptBatch
from millstream.records.batch import CRC_END, HEADER_SIZE, BatchHeader, decode_header
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import SegmentStats


@dataclass(frozen=True, slots=True)
class ScanDamage:
    """The position of the first invalid batch of a segment, and what is wrong with it."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """Result of a scan."""

    stats: SegmentStats
    index: SegmentIndex
    damage: ScanDamage | None


def scan(
    view: memoryview,
    *,
    base_offset: int,
    created_ms: int,
    index_interval_bytes: int,
    leader_epoch: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> SegmentScan:
    """Walk over the batches in `view`, up to its end or to the first invalid one.

    Without `leader_epoch`, all batches must have the epoch of the first: a segment has only one.
    """
    stats = SegmentStats(base_offset, leader_epoch=0, created_ms=created_ms)
    index = SegmentIndex()
    indexed = -index_interval_bytes
    damage = None
    position = 0
    while position < len(view):
        try:
            header = check_batch_at(view, position, stats.next_offset, leader_epoch)
        except CorruptBatch as error:
            damage = ScanDamage(position, str(error))
            break
        if leader_epoch is None:
            leader_epoch = header.leader_epoch
        if position - indexed >= index_interval_bytes:
            index.add(header.base_offset, position, stats.timestamp_max)
            indexed = position
        size = header.size
        stats.add(header, size, view[position : position + HEADER_SIZE])
        position += size
        progress(size)
    stats.leader_epoch = 0 if leader_epoch is None else leader_epoch
    return SegmentScan(stats, index, damage)


def check_batch_at(
    view: memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int | None,
    *,
    is_checked: bool = False,
) -> BatchHeader:
    """Check the whole batch at `position`, and return its header.

    Its checksum is verified unless `is_checked` says that the caller did.

    The checksum does not cover the bytes that the log stamps. These must have the right values: the
    offset follows the batch before, and the epoch is that of the segment.
    """
    header = decode_header(view, position)
    check_stamped_fields(header, base_offset, leader_epoch)
    end = position + header.size
    if end > len(view):
        raise CorruptBatch(f"batch ends at byte {end}, the file at {len(view)}")
    if not is_checked and (checksum := crc32c(view[position + CRC_END : end])) != header.crc:
        raise CorruptBatch(f"batch checksum is {checksum:08x}, its header says {header.crc:08x}")
    return header


def check_stamped_fields(header: BatchHeader, base_offset: int, leader_epoch: int | None) -> None:
    """Raise `CorruptBatch` if the stamped fields have wrong values."""
    if header.base_offset != base_offset:
        raise CorruptBatch(f"batch has base offset {header.base_offset}, expected {base_offset}")
    if leader_epoch is not None and header.leader_epoch != leader_epoch:
        raise CorruptBatch(f"batch has epoch {header.leader_epoch}, its segment has {leader_epoch}")

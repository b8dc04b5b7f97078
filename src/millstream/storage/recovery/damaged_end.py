"""Removal of the damaged end of a log that is closed.

Recovery never cuts what was synced: a log with damage there is read-only. If other replicas have
its records, the damaged end can go, and be fetched again. This records a truncation, which opening
the log carries out (`segment/truncation.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millstream.storage.files.names import SegmentId
from millstream.storage.files.partition_metadata import (
    Truncation,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.storage.recovery.generations import choose_generations
from millstream.storage.recovery.inventory import LogInventory
from millstream.storage.segment.segment import LogDirectory


def record_damaged_end(log_directory: LogDirectory, *, now_ms: Callable[[], int]) -> Truncation:
    """Record that a log is to end where its valid segments end. Durable when this returns.

    Sealed segments are trusted as far as their size is right. If nothing from the start of the log
    on is valid, it will be empty there. Raises `CorruptFile` if `partition.json` is damaged.
    """
    filesystem, directory = log_directory.filesystem, log_directory.directory
    partition = read_partition_metadata(filesystem, directory)
    inventory = LogInventory(log_directory, leader_epoch_at=partition.epoch_at, now_ms=now_ms)
    choice = choose_generations(
        list(inventory.candidates.values()),
        start_offset=partition.start_offset,
        read_end=inventory.read_end,
    )
    truncation = Truncation(-1, -1, 0, 0)
    for segment in choice.live:
        end_offset, size, is_whole = _valid_end(inventory, segment)
        is_next = truncation.segment < 0 or segment.base_offset == truncation.end_offset
        if not is_next or size == 0:
            break
        truncation = Truncation(end_offset, segment.base_offset, segment.generation, size)
        if not is_whole:
            break
    if truncation.end_offset < partition.start_offset:
        truncation = Truncation(partition.start_offset, -1, 0, 0)
    write_partition_metadata(filesystem, directory, replace(partition, truncation=truncation))
    return truncation


def _valid_end(inventory: LogInventory, segment: SegmentId) -> tuple[int, int, bool]:
    """Return the end of the valid batches of a segment, as offset and size, and whether of all."""
    candidate = inventory.candidates[segment]
    seal, size = candidate.seal, candidate.log_size
    if seal is not None and seal.size == size:
        return seal.next_offset, seal.size, True
    scanned = inventory.read(segment)
    stats = scanned.scan.stats
    is_whole = scanned.scan.damage is None and (seal is None or stats.size >= seal.size)
    return stats.next_offset, stats.size, is_whole

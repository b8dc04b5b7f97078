"""Bringing a partition's producers back when it is opened.

All of it blocks, and runs in a thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from millstream.broker.partition.producers.snapshot import (
    read_snapshot,
    remove_snapshot,
    write_snapshot,
)
from millstream.broker.partition.producers.states import (
    ALL_PRODUCER_IDS,
    ProducerSnapshot,
    ProducerStates,
)
from millstream.errors import CorruptData, CorruptFile, StorageFailed
from millstream.records.batch import decode_header
from millstream.records.control import read_marker
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log
from millstream.storage.segment.reader import read_slice
from millstream.storage.segment.segment import SealedSegment, Segment

logger = logging.getLogger(__name__)

NO_SNAPSHOT = -1
"""The offset of a snapshot that is not there."""

_NO_TAIL = 0
"""The tail crc of a snapshot before which there is no batch, or none as it was written."""


class RecoveredProducers(NamedTuple):
    """What was found out about the producers of a partition."""

    states: ProducerStates
    snapshot_offset: int
    """What the snapshot speaks up to; `NO_SNAPSHOT` where there is none."""
    known_offset: int
    """How far the log could be read: to its end, save where it is damaged."""
    damage: CorruptData | None = None
    """Why not to its end."""


def recover_producers(
    log: Log, filesystem: Filesystem, directory: str, *, expiration_ms: int, now_ms: int
) -> RecoveredProducers:
    """Read what the snapshot says, and the log after it.

    A snapshot that does not belong to the log as it is now is removed before anything is appended:
    once the log has grown past its offset again, it could be taken for true.
    """
    states = ProducerStates(expiration_ms=expiration_ms)
    found = _find_snapshot(log, filesystem, directory, now_ms)
    if found is not None:
        states.restore(found)
    elif log.start_offset > 0:
        # Batches are gone from the log, and with them perhaps all that was known of a producer.
        states.forgotten_max = ALL_PRODUCER_IDS
    snapshot_offset = NO_SNAPSHOT if found is None else found.offset
    known_offset = log.start_offset if found is None else found.offset
    damage: CorruptData | None = None
    try:
        for header, batch in log.headers(known_offset):
            if header.producer_id >= 0:
                marker = read_marker(batch) if header.is_control else None
                states.replay(header, marker, now_ms=now_ms)
            known_offset = header.next_offset
    except CorruptData as error:
        damage = error
    if damage is not None:
        logger.error("%s: unknown who wrote what from %d on: %s", log.name, known_offset, damage)
    states.trim(log.start_offset)
    return RecoveredProducers(states, snapshot_offset, known_offset, damage)


def save_producers(
    log: Log, filesystem: Filesystem, directory: str, found: ProducerSnapshot, *, now_ms: int
) -> None:
    """Write a snapshot of what is committed. Durable when this returns."""
    tail_crc = _tail_crc(log, found.offset)
    write_snapshot(filesystem, directory, found, tail_crc=tail_crc, now_ms=now_ms)


def _find_snapshot(
    log: Log, filesystem: Filesystem, directory: str, now_ms: int
) -> ProducerSnapshot | None:
    """Return the snapshot if there is one and it belongs to the log."""
    try:
        found, tail_crc = read_snapshot(filesystem, directory, now_ms=now_ms)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        reason = str(error)
    except OSError as error:
        raise StorageFailed(f"{log.name}: snapshot cannot be read: {error}") from error
    else:
        if not log.start_offset <= found.offset <= log.end_offset:
            reason = f"it is of offset {found.offset}, outside the log"
        elif _has_tail(log, found.offset) and _tail_crc(log, found.offset) != tail_crc:
            reason = f"the batch before offset {found.offset} is another one, or damaged"
        else:
            return found
    logger.warning("%s: producers are read from the log: %s", log.name, reason)
    try:
        remove_snapshot(filesystem, directory)
    except OSError as error:
        raise StorageFailed(f"{log.name}: snapshot cannot be removed: {error}") from error
    return None


def _has_tail(log: Log, offset: int) -> bool:
    """Whether the log should have the batch that ends right before `offset` as it was written.

    Not if that was deleted, nor if its segment was rewritten: its checksum may be another one then.
    Nor is it needed there: what was rewritten had been sealed before, and a log that lost its end,
    and grew again, lost nothing that was.
    """
    segment = _segment_before(log, offset)
    is_rewritten = isinstance(segment, SealedSegment) and segment.generation > 0
    return offset > log.start_offset and not is_rewritten


def _tail_crc(log: Log, offset: int) -> int:
    """Return the checksum of the batch that ends right before `offset`, as it was written."""
    segment = _segment_before(log, offset)
    if segment is None or not _has_tail(log, offset):
        return _NO_TAIL
    try:
        found = read_slice(
            segment,
            offset - 1,
            limit=segment.size,
            size_max=0,
            records_max=None,
            is_checked=True,
        )
    except (OSError, CorruptData):  # Replaced or removed in this moment; or nobody can tell.
        return _NO_TAIL
    header = decode_header(found.data)
    return header.crc if header.next_offset == offset else _NO_TAIL


def _segment_before(log: Log, offset: int) -> Segment | None:
    """Return the segment that holds the batch before `offset`."""
    holding = (s for s in log.segments if s.base_offset < offset <= s.next_offset)
    return next(holding, None)

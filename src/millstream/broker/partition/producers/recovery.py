"""Recovery of a partition's producers when it is opened.

All functions here block, and run in a thread.
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
"""The offset of a snapshot that does not exist."""

_NO_TAIL = 0
"""The tail crc of a snapshot if there is no batch before its offset, or only a rewritten one."""


class RecoveredProducers(NamedTuple):
    """The recovered producers of a partition."""

    states: ProducerStates
    snapshot_offset: int
    """The offset of the snapshot, or `NO_SNAPSHOT`."""
    known_offset: int
    """How far the log could be read: to its end, unless it is damaged."""
    damage: CorruptData | None = None
    """The reason why the log could not be read to its end."""


def recover_producers(
    log: Log, filesystem: Filesystem, directory: str, *, expiration_ms: int, now_ms: int
) -> RecoveredProducers:
    """Load the snapshot, and replay the log after it.

    A snapshot that does not match the log is removed before anything is appended: once the log has
    grown past its offset again, it might seem to match.
    """
    states = ProducerStates(expiration_ms=expiration_ms)
    snapshot = _find_snapshot(log, filesystem, directory, now_ms)
    if snapshot is not None:
        states.restore(snapshot)
    elif log.start_offset > 0:
        # The log has lost batches, and perhaps all batches of a producer.
        states.forgotten_max = ALL_PRODUCER_IDS
    snapshot_offset = NO_SNAPSHOT if snapshot is None else snapshot.offset
    known_offset = log.start_offset if snapshot is None else snapshot.offset
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
        logger.error(
            "%s: producers are unknown from offset %d on: %s", log.name, known_offset, damage
        )
    states.trim(log.start_offset)
    return RecoveredProducers(states, snapshot_offset, known_offset, damage)


def save_producers(
    log: Log, filesystem: Filesystem, directory: str, snapshot: ProducerSnapshot, *, now_ms: int
) -> None:
    """Write a snapshot of the committed state. It is durable when this returns."""
    tail_crc = _tail_crc(log, snapshot.offset)
    write_snapshot(filesystem, directory, snapshot, tail_crc=tail_crc, now_ms=now_ms)


def _find_snapshot(
    log: Log, filesystem: Filesystem, directory: str, now_ms: int
) -> ProducerSnapshot | None:
    """Return the snapshot if there is one and it matches the log."""
    try:
        snapshot, tail_crc = read_snapshot(filesystem, directory, now_ms=now_ms)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        reason = str(error)
    except OSError as error:
        raise StorageFailed(f"{log.name}: cannot read the producer snapshot: {error}") from error
    else:
        if not log.start_offset <= snapshot.offset <= log.end_offset:
            reason = f"its offset {snapshot.offset} is outside the log"
        elif _has_tail(log, snapshot.offset) and _tail_crc(log, snapshot.offset) != tail_crc:
            reason = f"the batch before its offset {snapshot.offset} is a different one, or damaged"
        else:
            return snapshot
    logger.warning(
        "%s: producer snapshot is unusable; reading producers from the log: %s", log.name, reason
    )
    try:
        remove_snapshot(filesystem, directory)
    except OSError as error:
        raise StorageFailed(f"{log.name}: cannot remove the producer snapshot: {error}") from error
    return None


def _has_tail(log: Log, offset: int) -> bool:
    """Return whether the log should have the batch that ends right before `offset`, unchanged.

    It does not if the batch was deleted, or if its segment was rewritten: its checksum may differ
    then. The check is not needed in that case: a rewritten segment had been sealed before, and a
    log that loses its end and grows again loses nothing that was sealed.
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
        last = read_slice(
            segment,
            offset - 1,
            limit=segment.size,
            size_max=0,
            records_max=None,
            is_checked=True,
        )
    except (OSError, CorruptData):  # Replaced or removed at this moment, or unreadable.
        return _NO_TAIL
    header = decode_header(last.data)
    return header.crc if header.next_offset == offset else _NO_TAIL


def _segment_before(log: Log, offset: int) -> Segment | None:
    """Return the segment with the batch before `offset`."""
    holding = (s for s in log.segments if s.base_offset < offset <= s.next_offset)
    return next(holding, None)

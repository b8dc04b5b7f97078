"""Recovery of a partition's producers when it is opened.

Damaged batches are passed over. What they said about producers is lost, so the partition takes no
appends then; and they may have ended the transactions that were open, so it is not known whether
the records of these are committed.

All functions here block, and run in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import wait
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
from millstream.errors import (
    CorruptBatch,
    CorruptData,
    CorruptFile,
    DamagedRecords,
    StorageFailed,
)
from millstream.records.batch import decode_header
from millstream.records.control import read_marker
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.storage.segment.reader import read_slice
from millstream.storage.segment.segment import SealedSegment, Segment

logger = logging.getLogger(__name__)

NO_SNAPSHOT = -1
"""The offset of a snapshot that does not exist."""

COLD_SECONDS_MAX = 5.0
"""How long a thread waits for a piece from a cold store; then the partition is not opened yet."""

_NO_TAIL = 0
"""The tail crc of a snapshot if there is no batch before its offset, or only a rewritten one."""


class RecoveredProducers(NamedTuple):
    """The recovered producers of a partition."""

    states: ProducerStates
    snapshot_offset: int
    """The offset of the snapshot, or `NO_SNAPSHOT`."""
    damage: CorruptData | None = None
    """The first damage after the snapshot: the producers of lost batches are unknown."""
    undecided: tuple[DamagedRecords, ...] = ()
    """Ranges in which it is unknown which records are committed."""


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
    position = log.start_offset if snapshot is None else snapshot.offset
    damage: CorruptData | None = log.lost if isinstance(log.lost, CorruptData) else None
    undecided: list[DamagedRecords] = []
    while True:
        try:
            for after in _replay(log, position, states, now_ms):
                position = after
            break
        except ColdMiss as miss:
            _wait(miss)
        except DamagedRecords as error:
            damage = damage or error
            first = states.drop_open()
            if first is not None:
                undecided.append(_undecided(first, error))
            position = error.to_offset + 1
    if damage is not None:
        logger.error("%s: producers of lost batches are unknown: %s", log.name, damage)
    states.trim(log.start_offset)
    return RecoveredProducers(states, snapshot_offset, damage, tuple(undecided))


def _wait(miss: ColdMiss) -> None:
    """Wait for what is missing; the snapshot is lost, and producers are in a cold store only.

    Raises if that takes too long, or fails: the partition is opened again later.
    """
    _, missing = wait(miss.fetches, timeout=COLD_SECONDS_MAX)
    if missing or not miss.fetches:
        raise miss


def _replay(log: Log, position: int, states: ProducerStates, now_ms: int) -> Iterator[int]:
    """Replay the batches from `position` on; yield the offset after each."""
    for header, batch in log.headers(position):
        if header.producer_id >= 0:
            try:
                marker = read_marker(batch) if header.is_control else None
            except CorruptBatch as error:
                raise DamagedRecords(
                    log.name,
                    str(error),
                    from_offset=header.base_offset,
                    to_offset=header.last_offset,
                ) from error
            # A control batch of another type tells nothing about its producer.
            if marker is not None or not header.is_control:
                states.replay(header, marker, now_ms=now_ms)
        yield header.next_offset


def _undecided(first: int, damage: DamagedRecords) -> DamagedRecords:
    """Return the error for reading records whose transaction may have ended in lost batches."""
    return DamagedRecords(
        damage.place,
        f"the outcome of a transaction may be in the lost batches: {damage.reason}",
        from_offset=first,
        to_offset=damage.from_offset - 1,
    )


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
        elif not _is_after(log, snapshot.offset, tail_crc):
            reason = f"the batch before its offset {snapshot.offset} is a different one"
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


def _is_after(log: Log, offset: int, tail_crc: int) -> bool:
    """Return whether a snapshot at `offset` was made of this log.

    If the batch before it is damaged, its header may still tell. If that is damaged too, nothing
    does, and the snapshot is used: without it, less would be known about the producers.
    """
    if not _has_tail(log, offset):
        return True
    try:
        log.read(offset - 1, size_max=0)
    except DamagedRecords as damage:
        logger.warning("%s: the batch before the producer snapshot: %s", log.name, damage)
        return _tail_crc(log, offset) in (tail_crc, _NO_TAIL)
    return _tail_crc(log, offset) == tail_crc


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
            is_checked=False,
        )
    except (OSError, CorruptData):  # Replaced or removed at this moment, or unreadable.
        return _NO_TAIL
    header = decode_header(last.data)
    return header.crc if header.next_offset == offset else _NO_TAIL


def _segment_before(log: Log, offset: int) -> Segment | None:
    """Return the segment with the batch before `offset`."""
    holding = (s for s in log.segments if s.base_offset < offset <= s.next_offset)
    return next(holding, None)

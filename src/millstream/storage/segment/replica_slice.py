"""Replica slice: consecutive batches of one segment of a leader, as they are stored there.

A replica writes a slice of a segment that was never rewritten at the same position of the same
file, so the two files are equal to the byte. A rewritten segment has another history on each
replica; of such a segment, the replica stores the batches as they are in a segment of its own, and
the two are equal record by record (`storage/replica/digest.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millstream.errors import CorruptBatch, InvalidBatch
from millstream.records.batch import BatchHeader, Bytes
from millstream.storage.segment.scan import check_batch_at


class ReplicaPosition(NamedTuple):
    """The end of a replica: the offset of its next batch, and where that is to be written."""

    offset: int
    segment: int
    """Base offset of the last segment; -1 if there is none."""
    position: int
    """Bytes of that segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSlice:
    """What a leader sends to a replica."""

    leader_epoch: int
    """The epoch of all batches, and of their segment."""
    segment: int
    """Base offset of the segment at the leader."""
    generation: int = 0
    """How often the segment was rewritten at the leader."""
    position: int
    """Position of the first byte in the file of the leader."""
    offset: int
    """Offset of the first batch; where the slice is empty, of the next one."""
    next_offset: int
    """The offset after the last batch."""
    data: Bytes = b""
    """Whole batches with their offsets and epochs; may be empty."""
    is_last_of_segment: bool = False
    """Whether the segment ends with this slice and takes no more batches."""
    created_age_ms: int = 0
    """How long ago the segment was started, by the retention clock of the leader.

    An age, not a date: each node has a retention clock of its own.
    """
    sealed_age_ms: int = 0
    """How long ago the segment was finished, if this is its last slice."""

    @property
    def given(self) -> ReplicaPosition:
        """Where the slice belongs."""
        return ReplicaPosition(self.offset, self.segment, self.position)


def validate_slice(source: ReplicaSlice, *, is_checked: bool = False) -> list[BatchHeader]:
    """Return the headers of the batches of a slice; raise `InvalidBatch` if one is not valid.

    Every checksum is verified, unless `is_checked` says that the caller did, and offsets and epochs
    must be those that the slice claims.
    """
    headers: list[BatchHeader] = []
    view, position, offset = memoryview(source.data), 0, source.offset
    try:
        while position < len(view):
            header = check_batch_at(
                view, position, offset, source.leader_epoch, is_checked=is_checked
            )
            headers.append(header)
            position += header.size
            offset = header.next_offset
    except CorruptBatch as error:
        raise InvalidBatch(f"byte {position} of a slice: {error}") from error
    if offset != source.next_offset:
        raise InvalidBatch(f"a slice must end at offset {source.next_offset}, got {offset}")
    return headers

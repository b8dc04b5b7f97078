"""Resync: how a replica compares its segments with those of its leader.

    manifest of the leader, oldest first ─► decide ─┬─ KEEP    equal, proved by digest
                                                    ├─ PROVE   the seal is equal; read the file
                                                    ├─ FETCH   copy it, at the end or in its place
                                                    ├─ CUT     remove what is from there on
                                                    └─ SLICES  go on with records, not segments

The leader has agreed that the two logs are equal up to the end of the replica (a fetch was served),
or nothing is taken as proved: then every segment is compared, and read, before it is kept. Files
that an operator has copied into the directory are kept like this, and so is what a replica
has whose position did not continue that of the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class SegmentIdentity(NamedTuple):
    """What two replicas compare of a finished segment."""

    base_offset: int
    next_offset: int
    size: int
    digest: bytes
    generation: int = 0

    def is_equal(self, other: SegmentIdentity) -> bool:
        """Return whether both have the same bytes."""
        return self[:4] == other[:4]


class OwnLog(NamedTuple):
    """The log of a replica."""

    start_offset: int
    end_offset: int
    segments: Sequence[SegmentIdentity]
    """Finished segments, oldest first. The last one may grow, and is not listed then."""
    is_proved: bool
    """Whether the log is known to be equal to the leader's, up to its end."""


class ResyncKind(Enum):
    """What to do with a segment of the leader."""

    KEEP = "keep"
    PROVE = "prove"
    FETCH = "fetch"
    CUT = "cut"
    SLICES = "slices"


class ResyncStep(NamedTuple):
    """What to do next."""

    kind: ResyncKind
    offset: int = -1
    """Where to cut."""


KEEP = ResyncStep(ResyncKind.KEEP)
PROVE = ResyncStep(ResyncKind.PROVE)
FETCH = ResyncStep(ResyncKind.FETCH)
SLICES = ResyncStep(ResyncKind.SLICES)


def resync_step(own: OwnLog, wanted: SegmentIdentity) -> ResyncStep:
    """Return what to do with the next segment of the leader.

    Call it again with the new log after each step except KEEP, SLICES, and a PROVE that succeeded;
    a PROVE that fails means FETCH.
    """
    if wanted.base_offset == own.end_offset:
        return FETCH
    if wanted.next_offset <= own.start_offset or wanted.base_offset > own.end_offset:
        return KEEP if wanted.base_offset < own.end_offset else SLICES
    if any(wanted.is_equal(segment) for segment in own.segments):
        return KEEP if own.is_proved else PROVE
    if own.is_proved:
        # Each replica cleans for itself, so cleaned segments differ in their bytes. In the last
        # one, records continue.
        return KEEP if wanted.next_offset <= own.end_offset else SLICES
    if _is_replaceable(own, wanted):
        return FETCH
    return ResyncStep(ResyncKind.CUT, min(wanted.base_offset, _boundary(own, wanted.base_offset)))


def last_step(own: OwnLog, sealed_end: int) -> ResyncStep:
    """Return what to do after the last segment: nothing of the replica's end is proved."""
    if own.is_proved or own.end_offset <= sealed_end:
        return SLICES
    return ResyncStep(ResyncKind.CUT, max(sealed_end, own.start_offset))


def _is_replaceable(own: OwnLog, wanted: SegmentIdentity) -> bool:
    """Whether finished segments of the replica begin and end where the wanted one does."""
    inside = [
        segment
        for segment in own.segments
        if wanted.base_offset <= segment.base_offset < wanted.next_offset
    ]
    if not inside or inside[-1].next_offset != wanted.next_offset:
        return False
    return inside[0].base_offset == wanted.base_offset


def _boundary(own: OwnLog, offset: int) -> int:
    """Return where the segment of the replica that contains an offset begins."""
    containing = (s.base_offset for s in own.segments if s.base_offset <= offset < s.next_offset)
    return next(containing, offset)

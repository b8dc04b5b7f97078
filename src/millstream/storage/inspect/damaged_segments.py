"""Which segments of an open log are damaged, as far as is known.

A log knows of its damage as errors for readers and operators. A repair needs to know which segments
to replace, and whether the end of the log can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import CorruptData, DamagedRecords
from millstream.storage.log import Log
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.segment.segment import SealedSegment, Segment


class DamagedSegments(NamedTuple):
    """The damage of a log."""

    ranges: tuple[tuple[int, int], ...] = ()
    """Finished segments, and holes between segments: first offset, and the one after the last."""
    last_base: int | None = None
    """Base offset of the last segment, if that is damaged: it tells where the log ends."""


NO_DAMAGE = DamagedSegments()


def find_damaged_segments(log: Log) -> DamagedSegments:
    """Return what is damaged in a log. Reads sizes of files, so it is work for a thread."""
    if not log.damage:
        return NO_DAMAGE
    return _find(log.damage, log.segments, log.start_offset)


def is_end_damaged(recovered: RecoveredLog) -> bool:
    """Return whether the last segment of a log that is not open yet is damaged."""
    if not recovered.damage:
        return False
    found = _find(recovered.damage, recovered.segments, recovered.partition.start_offset)
    return found.last_base is not None


def _find(
    known: Sequence[CorruptData], segments: Sequence[Segment], start_offset: int
) -> DamagedSegments:
    damaged: set[tuple[int, int]] = set()
    last_base: int | None = None
    expected = min(start_offset, segments[0].base_offset) if segments else start_offset
    for segment in segments:
        if segment.base_offset > expected:
            damaged.add((expected, segment.base_offset))
        first, end = segment.base_offset, segment.next_offset
        expected = end
        is_met = any(
            isinstance(error, DamagedRecords)
            and error.from_offset < end
            and error.to_offset >= first
            for error in known
        )
        if not is_met and not _is_short(segment):
            continue
        if segment is segments[-1]:
            last_base = first
        else:
            damaged.add((first, end))
    return DamagedSegments(tuple(sorted(damaged)), last_base)


def _is_short(segment: Segment) -> bool:
    """Return whether the file of a sealed segment has another size than its seal says."""
    if not isinstance(segment, SealedSegment):
        return False
    try:
        return segment.log_directory.filesystem.size(segment.path) != segment.size
    except OSError:
        return True

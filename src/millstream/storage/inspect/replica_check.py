"""Check of an open log, segment by segment, for a comparison with other replicas of it.

Every byte is read and checked. What is damaged is reported to the log, as if a reader had met it,
so in a cluster it is repaired. What is not gets a digest: uncleaned segments of two replicas that
are equal have equal digests. Cleaned ones differ, because each replica cleans for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from millstream.errors import DamagedRecords
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log
from millstream.storage.log_check import check_in_log
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment
from millstream.storage.segment.segment_check import SegmentCheck, check_segment


class CheckedSegment(NamedTuple):
    """One segment, or what is missing between two."""

    base_offset: int
    next_offset: int
    """End of what was checked."""
    generation: int
    """0 unless the segment was cleaned."""
    size: int
    digest: bytes
    damage: Sequence[DamagedRecords]


class CheckedSegments(NamedTuple):
    """Consecutive segments of a log."""

    segments: Sequence[CheckedSegment]
    next_offset: int | None
    """Where the next ones begin; `None` if these are the last."""


async def check_log(
    log: Log, background: Executor, *, start: int, end: int, bytes_max: int, count_max: int
) -> CheckedSegments:
    """Check segments from the one that contains `start` on, up to offset `end`.

    Stops after `bytes_max` bytes or `count_max` segments; at least one is checked. Nothing beyond
    the committed end is read. Raises `Busy` if the log is being cut or repaired.
    """
    checked: list[CheckedSegment] = []
    size = 0
    position = max(start, log.start_offset)
    end = min(end, log.end_offset)
    while position < end:
        if checked and (size >= bytes_max or len(checked) >= count_max):
            return CheckedSegments(checked, position)
        found = await _check_at(log, background, position, end)
        checked.append(found)
        size += found.size
        position = max(found.next_offset, position + 1)
    return CheckedSegments(checked, None)


async def _check_at(log: Log, background: Executor, offset: int, end: int) -> CheckedSegment:
    """Check the segment that contains an offset, and report its damage."""

    def find(segments: Sequence[Segment]) -> Segment | None:
        return next((s for s in segments if s.base_offset <= offset < s.next_offset), None)

    async def check(segment: Segment) -> SegmentCheck:
        assert isinstance(segment, SealedSegment | GrowingSegment)
        work = partial(check_segment, segment, end=end, on_read=_ignore)
        result: SegmentCheck = await background.run(work)
        return result

    checked = await check_in_log(log, find, check)
    if checked is None:
        return _hole(log, offset, end)
    segment, result = checked
    return CheckedSegment(
        segment.base_offset,
        min(segment.next_offset, end) if result.damage else result.next_offset,
        segment.generation if isinstance(segment, SealedSegment) else 0,
        result.size,
        result.digest,
        result.damage,
    )


def _hole(log: Log, offset: int, end: int) -> CheckedSegment:
    following = min((s.base_offset for s in log.segments if s.base_offset > offset), default=end)
    damage = DamagedRecords(
        log.log_directory.directory,
        "a segment is missing",
        from_offset=offset,
        to_offset=following - 1,
    )
    log.report_damage(damage)
    return CheckedSegment(offset, following, 0, 0, b"", (damage,))


def _ignore(_: int) -> None:
    """Do nothing: who asks for a check sets its rate."""

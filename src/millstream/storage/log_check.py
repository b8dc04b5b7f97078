"""Check of a segment of an open log, which may be cut, cleaned or repaired while it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from millstream.errors import Busy
from millstream.storage.log import Log
from millstream.storage.segment.segment import Segment
from millstream.storage.segment.segment_check import SegmentCheck

LOOKS_MAX = 5
"""How often a segment is read again because its log was cut or repaired meanwhile."""

SegmentT = TypeVar("SegmentT", bound=Segment)


async def check_in_log(
    log: Log,
    find: Callable[[Sequence[Segment]], SegmentT | None],
    check: Callable[[SegmentT], Awaitable[SegmentCheck]],
) -> tuple[SegmentT, SegmentCheck] | None:
    """Check a segment, and report its damage to its log as if a reader had met it.

    `find` picks the segment out of those of the log, again before each look. Returns `None` if it
    finds none. Raises `Busy` if the log was changed during each look.
    """
    for _ in range(LOOKS_MAX):
        truncations = log.truncations
        segment = find(log.segments)
        if segment is None:
            return None
        result = await check(segment)
        if log.truncations == truncations and segment in log.segments:
            for damage in result.damage:
                log.report_damage(damage)
            return segment, result
    raise Busy(f"{log.name} is being cut or repaired; try again")

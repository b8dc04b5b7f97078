"""Cold reads: what a reader far behind the head wants is brought into memory by threads.

    far behind the head? ──► in memory? ──► read at once
            │ no: read at once   │ no
            └                    └──► threads of idle disk priority read it ──► read

A sealed segment is read through its map. Where its bytes are not in memory, whoever touches them
waits for the disk; if that were the event loop, everybody would. The threads read the file and
throw away what they read: it is in memory then. They let go of the interpreter meanwhile, which
touching the map would not.

It is a hint and no more: whoever reads then finds what there is, rewritten, gone, or not in memory
any more.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from millstream.errors import MillstreamError
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.page_cache import PageCacheProbe
from millstream.storage.segment.segment import SealedSegment, Segment

HOT_SEGMENTS = 2
"""The newest segments, which were written a short while ago and are taken to be in memory: nobody
asks. One is growing; the other may have been sealed just now."""

COLD_RANGE_BYTES_MIN = 4 * 1024 * 1024
"""What is brought in at least: who reads what is old wants what follows it next, and does not have
to wait again for each piece."""

COLD_RANGE_BYTES_MAX = 64 * 1024 * 1024
"""What is brought in at the most for one read: more than a fetch may return."""

PIECE_BYTES = 1024 * 1024
"""How much is read at once, and thrown away."""


class ColdRange(NamedTuple):
    """A part of a segment that is wanted and not in memory."""

    segment: SealedSegment
    offset: int
    size: int


class Prefetcher:
    """Finds out what is cold, and brings it in. Belongs to the event loop."""

    def __init__(self, background: Executor, residency: PageCacheProbe | None) -> None:
        """Where nothing tells what is in memory, nothing is ever found to be cold."""
        self._background = background
        self._residency = residency
        self.reads = 0
        """How often something had to be brought in."""
        self.bytes = 0
        """What was read for that."""

    def cold(self, segments: Sequence[Segment], offset: int, size_max: int) -> list[ColdRange]:
        """Return what a read of `size_max` bytes from `offset` on would have to wait for."""
        residency = self._residency
        is_hot = len(segments) <= HOT_SEGMENTS or offset >= segments[-HOT_SEGMENTS].base_offset
        if is_hot or residency is None:
            return []
        found: list[ColdRange] = []
        room = min(size_max, COLD_RANGE_BYTES_MAX)
        first = max(0, bisect_right(segments, offset, key=lambda one: one.base_offset) - 1)
        for segment in segments[first:-HOT_SEGMENTS]:
            if room <= 0 or not isinstance(segment, SealedSegment):
                break
            offset = max(offset, segment.base_offset)
            index = segment.cached_index()
            start = 0 if index is None else index.for_offset(offset).position
            end = min(segment.size, start + room)
            try:
                if index is None or not residency.is_resident(segment.view(start, end)):
                    found.append(ColdRange(segment, offset, room))
            except OSError:  # It is gone, or cannot be read: whoever reads it finds out.
                break
            room -= end - start
        return found

    async def bring_in(self, stretches: Sequence[ColdRange]) -> None:
        """Return when all of it is in memory, or cannot be."""
        for stretch in stretches:
            self.reads += 1
            self.bytes += await self._background.run(partial(_prefetch, stretch))


def _prefetch(stretch: ColdRange) -> int:
    """Read a stretch, and the index that leads to it; return how many bytes that were."""
    segment, size = stretch.segment, 0
    with contextlib.suppress(OSError, MillstreamError):  # Whoever reads it finds the same.
        if segment.cached_index() is None:
            size += _read_through(segment, segment.index_path, 0, COLD_RANGE_BYTES_MAX)
        start = segment.index().for_offset(stretch.offset).position
        wanted = max(stretch.size, COLD_RANGE_BYTES_MIN)
        size += _read_through(segment, segment.path, start, min(segment.size, start + wanted))
    return size


def _read_through(segment: SealedSegment, path: str, start: int, end: int) -> int:
    file = segment.log_directory.filesystem.open_readonly(path)
    position = start
    try:
        while position < end:
            found = file.read_at(position, min(PIECE_BYTES, end - position))
            if not found:
                break
            position += len(found)
    finally:
        file.close()
    return position - start

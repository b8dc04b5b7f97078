"""Prefetch of cold data, which threads load into the page cache before it is read.

    far behind the end? ──► in memory? ──► read at once
            │ no: read at once   │ no
            └                    └──► threads of idle disk priority load it ──► read

A sealed segment is read through a memory map. If its bytes are not in memory, the thread that
touches them waits for the disk; on the event loop, everything would wait. So other threads read
the file and discard the data, which is in the page cache then. They release the interpreter lock
meanwhile, which touching the map would not.

This is only a hint: by the time of the read, the data may be rewritten, deleted, or evicted from
memory again.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from millstream.errors import MillstreamError
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.page_cache import PageCacheProbe
from millstream.storage.segment.cold_segment import COLD_READ_BYTES_MAX, ColdMiss, ColdSegment
from millstream.storage.segment.reader import read_slice
from millstream.storage.segment.segment import SealedSegment, Segment

T = TypeVar("T")

LOOKUP_SECONDS_MAX = 5.0
"""How long a lookup waits for each piece from a cold store."""

HOT_SEGMENTS = 2
"""The newest segments, which were written recently and are assumed to be in memory. One is
growing; the other may have been sealed just now.
"""

COLD_RANGE_BYTES_MIN = 4 * 1024 * 1024
"""Minimum size of a prefetch: a reader of old data will read on, and should not wait for
each piece.
"""

COLD_RANGE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a prefetch for one read: more than a fetch may return."""

PIECE_BYTES = 1024 * 1024
"""Bytes per read call."""


class ColdRange(NamedTuple):
    """A range of a segment that is not in memory."""

    segment: SealedSegment
    offset: int
    size: int


class Prefetcher:
    """Finds cold ranges and loads them. Belongs to the event loop."""

    def __init__(
        self,
        background: Executor,
        page_cache_probe: PageCacheProbe | None,
        *,
        cold_wait_seconds: float = 0.5,
    ) -> None:
        """Without a probe of the page cache, only what is in a cold store is considered cold.

        `cold_wait_seconds` is how long that is waited for.
        """
        self._background = background
        self._cold_wait_seconds = cold_wait_seconds
        self._page_cache_probe = page_cache_probe
        self.reads = 0
        """Number of ranges that were loaded."""
        self.bytes = 0
        """Number of bytes read for that."""

    def cold_ranges(
        self, segments: Sequence[Segment], offset: int, size_max: int
    ) -> list[ColdRange]:
        """Return the ranges that a read of `size_max` bytes from `offset` on would wait for."""
        page_cache_probe = self._page_cache_probe
        is_hot = len(segments) <= HOT_SEGMENTS or offset >= segments[-HOT_SEGMENTS].base_offset
        if is_hot:
            return []
        ranges: list[ColdRange] = []
        remaining = min(size_max, COLD_RANGE_BYTES_MAX)
        first = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
        for segment in segments[first:-HOT_SEGMENTS]:
            if remaining <= 0 or not isinstance(segment, SealedSegment):
                break
            offset = max(offset, segment.base_offset)
            if isinstance(segment, ColdSegment):
                # One segment at a time: a reader must not need more than the cache holds.
                return ranges or [ColdRange(segment, offset, remaining)]
            if page_cache_probe is None:
                return ranges
            index = segment.cached_index()
            start = 0 if index is None else index.for_offset(offset).position
            end = min(segment.size, start + remaining)
            try:
                if index is None or not page_cache_probe.is_resident(segment.view(start, end)):
                    ranges.append(ColdRange(segment, offset, remaining))
            except OSError:  # Removed, or unreadable: the read itself will report it.
                break
            remaining -= end - start
        return ranges

    async def prefetch(self, ranges: Sequence[ColdRange]) -> None:
        """Load all ranges, as far as they can be read."""
        for cold_range in ranges:
            if isinstance(cold_range.segment, ColdSegment):
                await self._fetch(cold_range)
                continue
            self.reads += 1
            self.bytes += await self._background.run(partial(_prefetch, cold_range))

    async def _fetch(self, cold_range: ColdRange) -> None:
        """Wait until bytes of a cold segment are in the cache, but not forever.

        If they are not, the read itself says so, and the fetch goes on.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cold_wait_seconds
        while (seconds := deadline - loop.time()) > 0:
            try:
                if cold_range.segment.cached_index() is None:
                    await self._background.run(cold_range.segment.index)
                _look(cold_range)
            except ColdMiss as miss:
                await wait_for_fetches(miss, seconds)
            except (OSError, MillstreamError):  # The read itself will report it.
                return
            else:
                return

    async def with_cold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work`, and again whenever what it missed was fetched in time."""
        while True:
            try:
                return await work()
            except ColdMiss as miss:
                await wait_for_fetches(miss, LOOKUP_SECONDS_MAX)
                if not all(fetch.done() for fetch in miss.fetches):
                    raise


async def wait_for_fetches(miss: ColdMiss, seconds: float) -> None:
    """Wait until what was missing is in the cache, or failed, or the time is over."""
    fetches = [asyncio.wrap_future(fetch) for fetch in miss.fetches]
    for fetch in fetches:
        fetch.add_done_callback(_ignore)
    if fetches:
        # The fetches go on, for the next reader, so they are not cancelled.
        await asyncio.wait(fetches, timeout=seconds)


def _ignore(fetch: asyncio.Future[bytes]) -> None:
    if not fetch.cancelled():
        fetch.exception()


def _look(cold_range: ColdRange) -> None:
    """Read a range, so that what is not in the cache is requested."""
    segment = cold_range.segment
    read_slice(
        segment,
        cold_range.offset,
        limit=segment.size,
        size_max=min(cold_range.size, COLD_READ_BYTES_MAX),
        records_max=None,
        is_checked=False,
    )


def _prefetch(cold_range: ColdRange) -> int:
    """Read a range, and the index that leads to it; return the number of bytes."""
    segment, size = cold_range.segment, 0
    with contextlib.suppress(OSError, MillstreamError):  # The read itself will report it.
        if segment.cached_index() is None:
            size += _read_through(segment, segment.index_path, 0, COLD_RANGE_BYTES_MAX)
        start = segment.index().for_offset(cold_range.offset).position
        wanted = max(cold_range.size, COLD_RANGE_BYTES_MIN)
        size += _read_through(segment, segment.path, start, min(segment.size, start + wanted))
    return size


def _read_through(segment: SealedSegment, path: str, start: int, end: int) -> int:
    file = segment.log_directory.filesystem.open_readonly(path)
    position = start
    try:
        while position < end:
            piece = file.read_at(position, min(PIECE_BYTES, end - position))
            if not piece:
                break
            position += len(piece)
    finally:
        file.close()
    return position - start

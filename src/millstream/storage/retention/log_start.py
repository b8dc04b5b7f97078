"""The front of a log, where records are deleted by whoever wants that, or evicted.

    deleted, file gone  deleted, in a file that has live records too
                        /
    - - - - - +--------.-----+ +-------------+ +----------
              | dead   | live| |             | | growing
    - - - - - +--------+-----+ +-------------+ +----------
                       start_offset

The new first offset is durable first, then readers are shown it, then files go. So a crash never
finds a file missing that the description does not know to be dead. One segment of which nothing
is left stays: that behind which nothing is committed, because it says where the log ends.

Deleting is deliberate, and readers go on at the first offset without a word. Evicting is not, and
moves the *eviction floor* along with the first offset: who comes to an offset below it is told of
a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from millstream.errors import OffsetOutOfRange, StorageFailed
from millstream.storage.disk.errors import transient_error
from millstream.storage.retention.eviction import record_count
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.segment import SealedSegment, Segment, remove_segment

logger = logging.getLogger(__name__)


class LogStart:
    """The front of one log. `guard` returns whoever guards it then."""

    def __init__(self, parts: LogContext, *, guard: Callable[[], RemovalHooks | None]) -> None:
        self._parts = parts
        self._guard = guard
        self.has_dead = True
        """Whether there may be segments that have to go, and only wait for a seal or a commit."""

    async def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`. Durable when this returns; files go afterwards."""
        await self._parts.description.change(self._move(offset))

    async def evict_before(self, offset: int) -> None:
        """Let the log start at `offset`, and readers below it be told of a gap.

        Both are durable when this returns; files go afterwards. What the guard still needs stays.
        """
        # Not in turn with the changes of the log: the guard may need one of these itself.
        if (guard := self._guard()) is not None:
            needed_offset = guard.needed_offset()
            await guard.before_removal()
            offset = offset if needed_offset is None else min(offset, needed_offset)
        await self._parts.description.change(self._evict(offset))

    async def _evict(self, offset: int) -> None:
        parts = self._parts
        segments, start = parts.contents.state.segments, parts.contents.start_offset
        await self._move(offset, is_eviction=True)
        gone = [s for s in segments if start < s.next_offset <= offset]
        size, records = sum(s.size for s in gone), sum(map(record_count, gone))
        parts.counters.evicted_segments += len(gone)
        parts.counters.evicted_bytes += size
        parts.counters.evicted_records += records
        if offset > start:
            logger.info(
                "%s: evicted offsets %d to %d: %d segments, %d bytes, %d records",
                *(parts.name, start, offset - 1, len(gone), size, records),
            )

    async def _move(self, offset: int, *, is_eviction: bool = False) -> None:
        parts = self._parts
        state, description = parts.contents.state, parts.description
        end = state.committed.offset
        if offset > end:
            raise OffsetOutOfRange(offset, start=state.start, end=end)
        if offset <= state.start:
            return
        floor = offset if is_eviction else state.eviction_floor
        kept = (s.base_offset for s in state.segments if s.next_offset > min(offset, end - 1))
        partition = description.partition.starting_at(
            offset, first_base=next(kept, offset), eviction_floor=floor
        )
        sets_free = bool(_dead_segments(state.segments, offset, end))
        try:
            await description.write(partition, sets_free=sets_free)
        except OSError as error:
            # The file may say either now, and each is true: nothing has been removed.
            failed = StorageFailed(f"{parts.name}: nothing was deleted: {error}")
            raise transient_error(parts.name, error) or failed from error
        parts.contents.start_at(offset, eviction_floor=floor)
        self.drop_dead()
        parts.on_change()

    def drop_dead(self) -> None:
        """Let go of segments that lie below the first offset, and have their files removed.

        One that nothing committed follows stays, and so does one without a seal until it has it.
        """
        contents = self._parts.contents
        state = contents.state
        below = [s for s in state.segments if s.next_offset <= state.start]
        dead = _dead_segments(below, state.start, state.committed.offset)
        self.has_dead = len(dead) < len(below)
        if dead:
            contents.replace_segments([s for s in state.segments if s not in dead])
            self._parts.tasks.start(self._remove(dead))

    async def _remove(self, segments: list[SealedSegment]) -> None:
        """Remove files that no one needs. What cannot be removed, the next start tries again."""
        parts = self._parts
        try:
            for segment in segments:
                await parts.background.run(partial(remove_segment, parts.place, segment))
        except OSError as error:
            logger.warning("%s: a deleted segment is still there: %s", parts.name, error)


def _dead_segments(segments: Sequence[Segment], start: int, end: int) -> list[SealedSegment]:
    """Return the segments whose files go when a log starts at `start` and ends at `end`."""
    return [
        segment
        for segment in segments
        if isinstance(segment, SealedSegment)
        and segment.next_offset <= start
        and segment.next_offset < end
    ]

"""The start of a log: deletion up to an offset, and eviction.

    deleted, file gone  deleted, in a file that has live records too
                        /
    - - - - - +--------.-----+ +-------------+ +----------
              | dead   | live| |             | | growing
    - - - - - +--------+-----+ +-------------+ +----------
                       start_offset

The new start offset is made durable first, then readers see it, then files are removed. So after a
crash no file is missing that `partition.json` does not know to be dead. The last committed segment
stays even if all its records are dead, because it says where the log ends.

Deletion is deliberate, and readers continue at the start offset without notice. Eviction is not,
so it moves the *eviction floor* along with the start offset, and notes the reason in the same
write: a reader at an offset below the floor gets a gap that says why.
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
    """The start of one log. `removal_hooks` returns the current hooks of the log."""

    def __init__(
        self, context: LogContext, *, removal_hooks: Callable[[], RemovalHooks | None]
    ) -> None:
        self._context = context
        self._removal_hooks = removal_hooks
        self.has_dead_segments = True
        """Whether there may be dead segments that still wait for a seal or a commit."""

    async def delete_before(self, offset: int) -> None:
        """Move the start to `offset`. Durable when this returns; files are removed afterwards."""
        await self._context.metadata_file.run_exclusive(self._move(offset))

    async def evict_before(self, offset: int, reason: str) -> None:
        """Move the start and the eviction floor to `offset`, but not past what the hooks need.

        Both and the reason are durable when this returns; files are removed afterwards.
        """
        # Outside the exclusive section: the hooks may need to change the log themselves.
        if (removal_hooks := self._removal_hooks()) is not None:
            needed_offset = removal_hooks.needed_offset()
            await removal_hooks.before_removal()
            offset = offset if needed_offset is None else min(offset, needed_offset)
        await self._context.metadata_file.run_exclusive(self._evict(offset, reason))

    async def _evict(self, offset: int, reason: str) -> None:
        context = self._context
        segments, start = context.state.snapshot.segments, context.state.start_offset
        await self._move(offset, eviction_reason=reason)
        gone = [s for s in segments if start < s.next_offset <= offset]
        size, records = sum(s.size for s in gone), sum(map(record_count, gone))
        context.counters.evicted_segments += len(gone)
        context.counters.evicted_bytes += size
        context.counters.evicted_records += records
        if offset > start:
            logger.info(
                "%s: evicted offsets %d to %d by %s: %d segments, %d bytes, %d records",
                *(context.name, start, offset - 1, reason, len(gone), size, records),
            )

    async def _move(self, offset: int, *, eviction_reason: str | None = None) -> None:
        context = self._context
        snapshot, metadata_file = context.state.snapshot, context.metadata_file
        end = snapshot.committed.offset
        if offset > end:
            raise OffsetOutOfRange(offset, start=snapshot.start, end=end)
        if offset <= snapshot.start:
            return
        kept = (s.base_offset for s in snapshot.segments if s.next_offset > min(offset, end - 1))
        partition = metadata_file.partition.starting_at(
            offset, first_base=next(kept, offset), eviction_reason=eviction_reason
        )
        frees_space = bool(_dead_segments(snapshot.segments, offset, end))
        try:
            await metadata_file.write(partition, frees_space=frees_space)
        except OSError as error:
            # The file may have the old or the new offset. Both are right: nothing was removed.
            failed = StorageFailed(f"{context.name}: nothing was deleted: {error}")
            raise transient_error(context.name, error) or failed from error
        context.state.start_at(offset, eviction_reason=eviction_reason)
        self.remove_dead_segments()
        context.on_change()

    def remove_dead_segments(self) -> None:
        """Drop segments before the start offset, and schedule the removal of their files.

        A segment that no committed record follows stays, and one without a seal stays until it is
        sealed.
        """
        state = self._context.state
        snapshot = state.snapshot
        below = [s for s in snapshot.segments if s.next_offset <= snapshot.start]
        dead = _dead_segments(below, snapshot.start, snapshot.committed.offset)
        self.has_dead_segments = len(dead) < len(below)
        if dead:
            state.replace_segments([s for s in snapshot.segments if s not in dead])
            self._context.tasks.start(self._remove(dead))

    async def _remove(self, segments: list[SealedSegment]) -> None:
        """Remove dead files. Those that cannot be removed are removed by the next recovery."""
        context = self._context
        try:
            for segment in segments:
                await context.background.run(
                    partial(remove_segment, context.log_directory, segment)
                )
        except OSError as error:
            logger.warning("%s: a deleted segment was not removed: %s", context.name, error)


def _dead_segments(segments: Sequence[Segment], start: int, end: int) -> list[SealedSegment]:
    """Return the segments to remove if a log starts at `start` and ends at `end`."""
    return [
        segment
        for segment in segments
        if isinstance(segment, SealedSegment)
        and segment.next_offset <= start
        and segment.next_offset < end
    ]

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

Caps (`size_caps.py`) move the start with each commit, in memory only: what they leave follows from
the committed end and from the caps, and `partition.json` has the caps. So the start is the same
after a crash, and the file is written only before files are removed, and before other caps apply.
Until then the *stored* start, in `partition.json`, is before the one that readers see.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from millstream.errors import MillstreamError, OffsetOutOfRange, RequestError, StorageFailed
from millstream.storage.disk.errors import transient_error
from millstream.storage.files.partition_metadata import NO_CAPS, AgeMark, Caps
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.retention.size_caps import SizeCaps, record_count
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
        self._size_caps: SizeCaps | None = None
        """None until the caps apply, in a replica, and if there are none."""
        self._is_replica = False
        self._has_begun = False

    @property
    def is_capped(self) -> bool:
        """Whether commits move the start."""
        return self._size_caps is not None

    def apply_caps(self) -> None:
        """Move the start as far as the caps require. Called after each commit."""
        assert self._size_caps is not None
        state = self._context.state
        offset, reason = self._size_caps.first_offset(state.snapshot)
        if offset <= state.start_offset:
            return
        if (removal_hooks := self._removal_hooks()) is not None:
            needed_offset = removal_hooks.needed_offset()
            if needed_offset is not None and needed_offset < offset:
                offset = needed_offset
                if offset <= state.start_offset:
                    return
        self._context.counters.evicted_records += offset - state.start_offset
        state.start_at(offset, eviction_reason=reason)

    def capped_offset(self) -> int:
        """Return the offset that the caps leave, whatever still needs what is before; 0 without."""
        if self._size_caps is None:
            return 0
        return self._size_caps.first_offset(self._context.state.snapshot)[0]

    def follow(self, *, is_replica: bool) -> None:
        """Leave the start of the log to its leader, or decide it here again."""
        self._is_replica = is_replica
        if self._has_begun:
            self._use_caps(self._context.metadata_file.partition.caps)

    async def begin_caps(self, caps: Caps, *, is_writable: bool) -> None:
        """Apply the stored caps, then these, from now on. The removal hooks are set."""
        self._has_begun = True
        self._use_caps(self._context.metadata_file.partition.caps)
        if is_writable:
            try:
                await self.change_caps(caps)
            except MillstreamError as error:
                # They apply all the same, and are stored when the log is opened again.
                logger.warning("%s: limits were not stored: %s", self._context.name, error)
                self._use_caps(caps)

    async def change_caps(self, caps: Caps) -> None:
        """Apply other caps from now on. Durable when this returns.

        What the old caps have left out does not come back: the start is made durable too. So it
        does not move while this runs, as a task of the log: a caller that stops waiting must not
        leave file and memory in disagreement.
        """
        await asyncio.shield(self._context.tasks.start(self._change_caps(caps)))

    async def _change_caps(self, caps: Caps) -> None:
        metadata_file, size_caps = self._context.metadata_file, self._size_caps
        if caps == metadata_file.partition.caps:
            return
        self._size_caps = None
        try:
            # Outside the exclusive section: the hooks may need to change the log themselves.
            if (removal_hooks := self._removal_hooks()) is not None:
                await removal_hooks.before_removal()
            await metadata_file.run_exclusive(self._store_caps(caps))
        except Exception:
            self._size_caps = size_caps
            raise
        self._use_caps(caps)

    async def _store_caps(self, caps: Caps) -> None:
        context, metadata_file = self._context, self._context.metadata_file
        snapshot = context.state.snapshot
        partition = replace(metadata_file.partition, caps=caps)
        if snapshot.start > partition.start_offset:
            partition = partition.starting_at(
                snapshot.start,
                first_base=_first_base(snapshot.segments, snapshot.start, context.state.end_offset),
                eviction_floor=snapshot.eviction_floor,
                eviction_reason=snapshot.eviction_reason,
            )
        try:
            await metadata_file.write(partition, frees_space=True)
        except OSError as error:
            failed = StorageFailed(f"{context.name}: the limits were not changed: {error}")
            raise transient_error(context.name, error) or failed from error
        self.remove_dead_segments()

    async def store_start(self) -> None:
        """Make the start durable that the caps have moved. What it leaves out must be synced.

        The caps leave more once records were removed from segments, so the start would move back
        when it is derived again.
        """
        await asyncio.shield(self._context.tasks.start(self._store_start()))

    async def _store_start(self) -> None:
        metadata_file = self._context.metadata_file
        if self._context.state.start_offset > metadata_file.partition.start_offset:
            if (removal_hooks := self._removal_hooks()) is not None:
                await removal_hooks.before_removal()
            await metadata_file.run_exclusive(self._store_caps(metadata_file.partition.caps))

    def _use_caps(self, caps: Caps) -> None:
        is_uncapped = caps == NO_CAPS or self._is_replica
        self._size_caps = None if is_uncapped else SizeCaps(caps)
        if self._size_caps is not None:
            start = self._context.state.start_offset
            self.apply_caps()
            if self._context.state.start_offset > start:
                self._context.on_change()

    async def add_age_mark(self, mark: AgeMark) -> None:
        """Note how old records are. If that fails, they are kept longer."""
        await self._context.metadata_file.run_exclusive(self._add_age_mark(mark))

    async def _add_age_mark(self, mark: AgeMark) -> None:
        metadata_file = self._context.metadata_file
        partition = metadata_file.partition
        marked = replace(partition, age_marks=(*partition.age_marks, mark))
        try:
            await metadata_file.write(marked)
        except OSError as error:
            logger.debug("%s: the age of records was not noted: %s", self._context.name, error)

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
        segments, seen = context.state.snapshot.segments, context.state.start_offset
        start = context.metadata_file.partition.start_offset
        await self._move(offset, eviction_reason=reason)
        gone = [s for s in segments if start < s.next_offset <= offset]
        size, records = sum(s.size for s in gone), sum(map(record_count, gone))
        context.counters.evicted_segments += len(gone)
        context.counters.evicted_bytes += size
        context.counters.evicted_records += _records_between(segments, seen, offset)
        if gone:
            logger.info(
                "%s: evicted offsets %d to %d by %s: %d segments, %d bytes, %d records",
                *(context.name, start, offset - 1, reason, len(gone), size, records),
            )

    async def set_start(self, offset: int, *, eviction_floor: int, eviction_reason: str) -> None:
        """Take over the start of the leader of this replica. Durable when this returns.

        What the leader has deleted was committed, so readers may see up to there at least.
        """
        snapshot = self._context.state.snapshot
        if offset > snapshot.durable.offset:
            raise OffsetOutOfRange(offset, start=snapshot.start, end=snapshot.durable.offset)
        if not 0 <= eviction_floor <= offset:
            raise RequestError(f"eviction floor must be between 0 and {offset}: {eviction_floor}")
        if offset <= snapshot.start and eviction_floor <= snapshot.eviction_floor:
            return
        # Outside the exclusive section: the hooks may need to change the log themselves.
        if (removal_hooks := self._removal_hooks()) is not None:
            await removal_hooks.before_removal()
        await self._context.metadata_file.run_exclusive(
            self._set_start(offset, eviction_floor, eviction_reason)
        )

    async def _set_start(self, offset: int, floor: int, reason: str) -> None:
        context, metadata_file = self._context, self._context.metadata_file
        snapshot, state = context.state.snapshot, context.state
        offset, floor = max(offset, snapshot.start), max(floor, snapshot.eviction_floor)
        if state.visible_limit is not None:
            state.limit_visible(offset)
        segments, end = snapshot.segments, snapshot.durable.offset
        partition = metadata_file.partition.starting_at(
            offset,
            first_base=_first_base(segments, offset, end),
            eviction_floor=floor,
            eviction_reason=reason,
        )
        frees_space = bool(_dead_segments(segments, offset, end))
        try:
            await metadata_file.write(partition, frees_space=frees_space)
        except OSError as error:
            failed = StorageFailed(f"{context.name}: the start was not moved: {error}")
            raise transient_error(context.name, error) or failed from error
        state.start_at(offset, eviction_reason=reason, eviction_floor=floor)
        self.remove_dead_segments()
        context.on_change()

    async def _move(self, offset: int, *, eviction_reason: str | None = None) -> None:
        context = self._context
        snapshot, metadata_file = context.state.snapshot, context.metadata_file
        end = snapshot.committed.offset
        if offset > end:
            raise OffsetOutOfRange(offset, start=snapshot.start, end=end)
        stored = metadata_file.partition.start_offset
        is_eviction = eviction_reason is not None
        if offset <= (stored if is_eviction else snapshot.start):
            return
        # An eviction may be behind what caps show. It is not stored further than asked for: in a
        # class without a sync, a log that loses its end would lose what the caps still allow.
        partition = metadata_file.partition.starting_at(
            offset,
            first_base=_first_base(snapshot.segments, offset, end),
            eviction_floor=offset if is_eviction else snapshot.eviction_floor,
            eviction_reason=eviction_reason or snapshot.eviction_reason,
        )
        frees_space = bool(_dead_segments(snapshot.segments, offset, end))
        try:
            await metadata_file.write(partition, frees_space=frees_space)
        except OSError as error:
            # The file may have the old or the new offset. Both are right: nothing was removed.
            failed = StorageFailed(f"{context.name}: nothing was deleted: {error}")
            raise transient_error(context.name, error) or failed from error
        if offset > context.state.start_offset:  # A commit may have moved it further by now.
            context.state.start_at(offset, eviction_reason=eviction_reason)
        self.remove_dead_segments()
        context.on_change()

    def remove_dead_segments(self) -> None:
        """Drop segments before the stored start offset, and schedule the removal of their files.

        A segment that no committed record follows stays, and one without a seal stays until it is
        sealed.
        """
        state = self._context.state
        snapshot, start = state.snapshot, self._context.metadata_file.partition.start_offset
        below = [s for s in snapshot.segments if s.next_offset <= start]
        dead = _dead_segments(below, start, snapshot.committed.offset)
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


def _first_base(segments: Sequence[Segment], start: int, end: int) -> int:
    """Return the base offset of the first segment to keep if a log starts at `start`."""
    kept = (s.base_offset for s in segments if s.next_offset > min(start, end - 1))
    return next(kept, start)


def _records_between(segments: Sequence[Segment], start: int, end: int) -> int:
    """Return how many records are between two offsets; at most, if compaction removed some."""
    return sum(
        min(record_count(s), min(end, s.next_offset) - max(start, s.base_offset))
        for s in segments
        if s.base_offset < end and start < s.next_offset
    )


def _dead_segments(segments: Sequence[Segment], start: int, end: int) -> list[SealedSegment]:
    """Return the segments to remove if a log starts at `start` and ends at `end`."""
    return [
        segment
        for segment in segments
        if isinstance(segment, SealedSegment)
        and segment.next_offset <= start
        and segment.next_offset < end
    ]

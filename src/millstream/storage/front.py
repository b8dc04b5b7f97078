"""The front of a log, where records are deleted.

    deleted, file gone  deleted, in a file that has live records too
                        /
    - - - - - +--------.-----+ +-------------+ +----------
              | dead   | live| |             | | growing
    - - - - - +--------+-----+ +-------------+ +----------
                       start_offset

The new first offset is durable first, then readers are shown it, then files go. So a crash never
finds a file missing that the description does not know to be dead. One segment of which nothing
is left stays: that behind which nothing is committed, because it says where the log ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from millstream.errors import OffsetOutOfRange, StorageFailed
from millstream.storage.background import Background
from millstream.storage.contents import Contents
from millstream.storage.description import Description
from millstream.storage.failure import passing_error
from millstream.storage.segment import Place, SealedSegment, remove_segment
from millstream.storage.tasks import Tasks

logger = logging.getLogger(__name__)


class Front:
    """The front of one log."""

    def __init__(
        self,
        *,
        name: str,
        place: Place,
        background: Background,
        tasks: Tasks,
        contents: Contents,
        description: Description,
        on_change: Callable[[], None],
    ) -> None:
        self._name = name
        self._place = place
        self._background = background
        self._tasks = tasks
        self._contents = contents
        self._description = description
        self._on_change = on_change
        self.has_dead = True
        """Whether there may be segments that have to go, and only wait for a seal or a commit."""

    async def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`. Durable when this returns; files go afterwards."""
        await self._description.change(self._delete_before(offset))

    async def _delete_before(self, offset: int) -> None:
        state = self._contents.state
        end = state.committed.offset
        if offset > end:
            raise OffsetOutOfRange(offset, start=state.start, end=end)
        if offset <= state.start:
            return
        kept = (s.base_offset for s in state.segments if s.next_offset > min(offset, end - 1))
        partition = self._description.partition
        try:
            await self._description.write(
                partition.starting_at(offset, first_base=next(kept, offset))
            )
        except OSError as error:
            # The file may say either now, and each is true: nothing has been removed.
            failed = StorageFailed(f"{self._name}: nothing was deleted: {error}")
            raise passing_error(self._name, error) or failed from error
        self._contents.start_at(offset)
        self.drop_dead()
        self._on_change()

    def drop_dead(self) -> None:
        """Let go of segments that lie below the first offset, and have their files removed.

        One that nothing committed follows stays, and so does one without a seal until it has it.
        """
        state = self._contents.state
        below = [s for s in state.segments if s.next_offset <= state.start]
        dead = [
            segment
            for segment in below
            if isinstance(segment, SealedSegment) and segment.next_offset < state.committed.offset
        ]
        self.has_dead = len(dead) < len(below)
        if dead:
            self._contents.replace_segments([s for s in state.segments if s not in dead])
            self._tasks.start(self._remove(dead))

    async def _remove(self, segments: list[SealedSegment]) -> None:
        """Remove files that no one needs. What cannot be removed, the next start tries again."""
        try:
            for segment in segments:
                await self._background.run(partial(remove_segment, self._place, segment))
        except OSError as error:
            logger.warning("%s: a deleted segment is still there: %s", self._name, error)

"""Appends of one stream that are in flight.

admitted: mark checked and applied ──► in flight ──► committed: in the checkpoint
▲                                   │
└──────── undone, in reverse ◄──────┘ taken back
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from millstream.broker.streams.writers import StreamWriters, WriteMark, WriteUndo


class InFlightAppend:
    __slots__ = ("admitted", "count", "ended", "mark", "offset", "undo")

    def __init__(self, mark: WriteMark, count: int) -> None:
        self.mark = mark
        self.count = count
        self.offset = -1
        self.admitted = 0.0
        """When it got its offset."""
        self.undo: WriteUndo | None = None
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether it was committed, once that is known."""

    @property
    def is_in_flight(self) -> bool:
        """Whether it was admitted, and its outcome is not known yet."""
        return self.undo is not None and not self.ended.done()


class InFlight:
    """The appends that were admitted and are not committed, in the order of the log."""

    def __init__(self, writers: StreamWriters, on_commit: Callable[[WriteMark, int], None]) -> None:
        self._writers = writers
        self._on_commit = on_commit
        self._writes: deque[InFlightAppend] = deque()

    def __bool__(self) -> bool:
        return bool(self._writes)

    @property
    def first_offset(self) -> int:
        """The offset of the first append; there has to be one."""
        return self._writes[0].offset

    def admit(self, write: InFlightAppend, offset: int, now: float) -> None:
        """Check a mark against all before it in the log; raises to refuse it."""
        self._writers.check(write.mark)
        write.offset = offset
        write.admitted = now
        write.undo = self._writers.apply(write.mark, offset + write.count)
        self._writes.append(write)

    def rewind(self, offset: int) -> None:
        """Undo what the log has taken back, the last first."""
        while self._writes and self._writes[-1].offset >= offset:
            write = self._writes.pop()
            assert write.undo is not None
            self._writers.undo(write.undo)
            write.ended.set_result(False)

    def commit(self, write: InFlightAppend) -> None:
        """Take note that an append and all before it are committed."""
        while self._writes and not write.ended.done():
            first = self._writes.popleft()
            self._on_commit(first.mark, first.offset + first.count)
            first.ended.set_result(True)

    async def settled(self) -> bool:
        """Wait for all appends that are in flight now; return whether it was committed."""
        return await asyncio.shield(self._writes[-1].ended) if self._writes else True

"""Splits the bytes of one connection into native frames, without copying."""

from __future__ import annotations

from typing import ClassVar

from millstream.protocols.native.frame import HEADER_SIZE, announced_length, payload_length
from millstream.servers.frame_receiver import Frame, FrameReceiver


class NativeReceiver(FrameReceiver):
    """The receiving half of one connection. A frame is cut with its header.

    The first bytes of a header are checked as soon as it is there: noise is not waited for.
    """

    HEAD_SIZE: ClassVar[int] = HEADER_SIZE

    def has_more_frames_than(self, count: int) -> bool:
        """Return whether more than `count` frames of the backlog have begun."""
        if self._block is None:
            return False
        view, position, limit = self._block.view, self._start, self._end
        for _ in range(count):
            if limit - position < HEADER_SIZE:
                return False
            position += HEADER_SIZE + announced_length(view, position)
        return position < limit

    def next_frame(self) -> Frame | None:
        """Cut the next complete frame; return `None` once there is none.

        Raises `MalformedRequest` if there is something else than a frame.
        """
        block = self._block
        if block is None:
            return None
        view, start, limit = block.view, self._start, self._end
        if limit - start >= HEADER_SIZE:
            size = self._size_at(view, start)
            end = start + HEADER_SIZE + size
            if end <= limit:
                self._largest = max(self._largest, size)
                if end == limit:  # The last frame takes over the use of the block.
                    self._block = None
                else:
                    self._start = end
                    block.users += 1
                return view[start:end], block
        self._carry(view[start:limit])
        self.drop_backlog()
        return None

    def _size_at(self, view: memoryview, position: int) -> int:
        return payload_length(view, position, frame_size_max=self.frame_size_max)

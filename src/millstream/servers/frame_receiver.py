"""Splits the bytes of one connection into frames, without copying.

    +------+---------------+------+----------------------- - -
    | size | request       | size | request that is not complete yet
    +------+---------------+------+----------------------- - -

Reads fill a block that all connections share. A frame is cut when its turn comes: until then many
small requests cost no more than their bytes. An incomplete frame at the end is moved to a private
block of the connection, which then receives the remainder of that frame and nothing else. The size
that a client announces is never allocated up front: the private block grows with the bytes that
have arrived, unless the connection has sent frames of that size before.
"""

from __future__ import annotations

import struct
from typing import ClassVar, TypeAlias

from millstream.errors import MalformedRequest
from millstream.servers.block_pool import BlockPool, ReceiveBlock

_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from
FRAME_SIZE_MIN = 8
"""Key, version and correlation id: the shortest header."""

_TRUSTED_SIZE = 16 * 1024
_GROWTH = 4
"""A private block may have this size at once, or this many times the bytes that have arrived."""

_COPIED_SHARE = 2
"""A backlog that fits into this fraction of its block is copied before it waits."""


Frame: TypeAlias = tuple[memoryview, ReceiveBlock]
"""One complete request, and the block to release when it is no longer needed."""


class FrameReceiver:
    """The receiving half of one connection, without its socket."""

    HEAD_SIZE: ClassVar[int] = _SIZE.size
    """Bytes that tell the size of the remaining frame."""

    def __init__(self, blocks: BlockPool, *, frame_size_max: int) -> None:
        self._blocks = blocks
        self.frame_size_max = frame_size_max
        self._block: ReceiveBlock | None = None
        """The block with bytes that arrived and are not cut yet, if there are any."""
        self._start = self._end = 0
        """Where in it these bytes are."""
        self._private: ReceiveBlock | None = None
        self._filled = 0
        self._frame_end = 0
        self._largest = 0

    @property
    def has_backlog(self) -> bool:
        """Whether there are bytes for `next_frame`. Do not read while there are."""
        return self._block is not None

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has started and is not complete."""
        return self._private is not None

    def has_capacity(self) -> bool:
        """Return whether there is memory for the next bytes. Do not read while there is none."""
        private = self._private
        if private is None:
            return self._blocks.has_capacity_for_read()
        if self._filled < private.size:
            return True
        requested = self._size_wanted(self._filled)
        if not self._blocks.has_capacity(requested, held=private.size):
            return False
        self._private = self._blocks.take(requested)
        self._private.view[: self._filled] = private.view[: self._filled]
        private.release()
        return True

    def space(self) -> memoryview:
        """Return the memory for the next bytes."""
        if self._private is not None:
            end = min(self._private.size, self._frame_end) if self._frame_end else self.HEAD_SIZE
            return self._private.view[self._filled : end]
        return self._blocks.space()

    def received(self, count: int) -> None:
        """Process `count` bytes that were read into `space`: complete frames are a backlog then."""
        if self._private is not None:
            self._received_private(self._private, count)
            return
        blocks = self._blocks
        block, start = blocks.reading, blocks.filled
        if count >= self.HEAD_SIZE and self._size_at(block.view, start) <= count - self.HEAD_SIZE:
            block.users += 1
            self._block, self._start, self._end = block, start, start + count
            blocks.keep_read(count)
        else:
            self._carry(block.view[start : start + count])
            if start:
                blocks.keep_read(count)

    def has_more_frames_than(self, count: int) -> bool:
        """Return whether more than `count` frames of the backlog have begun."""
        if self._block is None:
            return False
        view, position, limit = self._block.view, self._start, self._end
        for _ in range(count):
            if limit - position < _SIZE.size:
                return False
            position += _SIZE.size + max(_unpack_size(view, position)[0], 0)
        return position < limit

    def next_frame(self) -> Frame | None:
        """Cut the next complete frame; return `None` once there is none.

        Raises `MalformedRequest` at a frame whose size is not allowed.
        """
        block = self._block
        if block is None:
            return None
        view, position, limit = block.view, self._start, self._end
        if limit - position >= _SIZE.size:
            (size,) = _unpack_size(view, position)
            if not FRAME_SIZE_MIN <= size <= self.frame_size_max:
                self._size_at(view, position)
            start = position + _SIZE.size
            end = start + size
            if end <= limit:
                if size > self._largest:  # noqa: PLR1730 - half the time of `max`.
                    self._largest = size
                if end == limit:  # The last frame takes over the use of the block.
                    self._block = None
                else:
                    self._start = end
                    block.users += 1
                return view[start:end], block
        self._carry(view[position:limit])
        self.drop_backlog()
        return None

    def copy_backlog(self) -> None:
        """Move the backlog to a block of its own size, if it would keep a much larger one in use.

        For a connection that has to wait.
        """
        block, size = self._block, self._end - self._start
        if block is not None and block.size >= _COPIED_SHARE * size:
            own = self._blocks.take(size)
            own.view[:size] = block.view[self._start : self._end]
            block.release()
            self._block, self._start, self._end = own, 0, size

    def drop_backlog(self) -> None:
        """Forget the bytes that are not cut yet."""
        if self._block is not None:
            self._block.release()
        self._block = None

    def close(self) -> None:
        """Release all memory."""
        self.drop_backlog()
        if self._private is not None:
            self._private.release()
        self._private = None

    def _size_at(self, view: memoryview, position: int) -> int:
        size: int = _unpack_size(view, position)[0]
        if not FRAME_SIZE_MIN <= size <= self.frame_size_max:
            raise MalformedRequest(
                f"frame size must be between {FRAME_SIZE_MIN} and {self.frame_size_max}, got {size}"
            )
        return size

    def _carry(self, partial: memoryview) -> None:
        """Start a private block with the bytes of a frame that have arrived."""
        self._frame_end = 0
        if len(partial) >= self.HEAD_SIZE:
            self._frame_end = self.HEAD_SIZE + self._size_at(partial, 0)
        block = self._blocks.take(self._size_wanted(len(partial)))
        block.view[: len(partial)] = partial
        self._private, self._filled = block, len(partial)

    def _size_wanted(self, arrived: int) -> int:
        """Return the size that the private block needs, or may have by now."""
        if self._frame_end <= self._largest + self.HEAD_SIZE:
            return max(self._frame_end, self.HEAD_SIZE)
        return min(self._frame_end, max(_TRUSTED_SIZE, arrived * _GROWTH))

    def _received_private(self, block: ReceiveBlock, count: int) -> None:
        self._filled += count
        if not self._frame_end and self._filled >= self.HEAD_SIZE:
            self._frame_end = self.HEAD_SIZE + self._size_at(block.view, 0)
        if self._frame_end and self._filled >= self._frame_end:
            self._private = None  # From here on the frame is its only user.
            self._block, self._start, self._end = block, 0, self._frame_end

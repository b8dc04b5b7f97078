"""Splits the bytes of one connection into frames, without copying.

    +------+---------------+------+----------------------- - -
    | size | request       | size | request that is not complete yet
    +------+---------------+------+----------------------- - -

Reads fill a block that all connections share. An incomplete frame at its end is moved to a private
block of the connection, which then receives the remainder of that frame and nothing else. The size
that a client announces is never allocated up front: the private block grows with the bytes that
have arrived, unless the connection has sent frames of that size before.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from millstream.errors import MalformedRequest
from millstream.servers.kafka.block_pool import BlockPool, ReceiveBlock

_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from
FRAME_SIZE_MIN = 8
"""Key, version and correlation id: the shortest header."""

_TRUSTED_SIZE = 16 * 1024
_GROWTH = 4
"""A private block may have this size at once, or this many times the bytes that have arrived."""


Frame: TypeAlias = tuple[memoryview, ReceiveBlock]
"""One complete request, and the block to release when it is no longer needed."""


class FrameReceiver:
    """The receiving half of one connection, without its socket."""

    def __init__(self, blocks: BlockPool, *, frame_size_max: int) -> None:
        self._blocks = blocks
        self.frame_size_max = frame_size_max
        self._private: ReceiveBlock | None = None
        self._filled = 0
        self._frame_end = 0
        self._largest = 0

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has started and is not complete."""
        return self._private is not None

    def has_capacity(self) -> bool:
        """Return whether there is memory for the next bytes. Do not read while there is none."""
        private = self._private
        if private is None or self._filled < private.size:
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
            end = min(self._private.size, self._frame_end) if self._frame_end else _SIZE.size
            return self._private.view[self._filled : end]
        blocks = self._blocks
        return blocks.reading.view[blocks.filled :] if blocks.filled else blocks.reading.view

    def received(self, count: int) -> list[Frame]:
        """Process `count` bytes that were read into `space`; return the completed frames."""
        if self._private is not None:
            return self._received_private(self._private, count)
        blocks = self._blocks
        block, start = blocks.reading, blocks.filled
        frames: list[Frame] = []
        try:
            end = self._cut(block, start, start + count, frames)
            if end < start + count:
                self._carry(block.view[end : start + count])
        except MalformedRequest:
            for _ in frames:
                block.release()
            raise
        if frames or start:
            blocks.keep_read(count)
        return frames

    def close(self) -> None:
        """Release all memory."""
        if self._private is not None:
            self._private.release()
        self._private = None

    def _cut(self, block: ReceiveBlock, position: int, limit: int, frames: list[Frame]) -> int:
        """Add the complete frames between two positions of a block; return the end of the last."""
        view = block.view
        size_max = self.frame_size_max
        while limit - position >= 4:
            (size,) = _unpack_size(view, position)
            if not FRAME_SIZE_MIN <= size <= size_max:
                self._size_at(view, position)
            start = position + 4
            end = start + size
            if end > limit:
                break
            block.users += 1
            frames.append((view[start:end], block))
            if size > self._largest:  # noqa: PLR1730 - half the time of `max`.
                self._largest = size
            position = end
        return position

    def _size_at(self, view: memoryview, position: int) -> int:
        size: int = _SIZE.unpack_from(view, position)[0]
        if not FRAME_SIZE_MIN <= size <= self.frame_size_max:
            raise MalformedRequest(
                f"frame size must be between {FRAME_SIZE_MIN} and {self.frame_size_max}, got {size}"
            )
        return size

    def _carry(self, partial: memoryview) -> None:
        """Start a private block with the bytes of a frame that have arrived."""
        self._frame_end = 0
        if len(partial) >= _SIZE.size:
            self._frame_end = _SIZE.size + self._size_at(partial, 0)
        block = self._blocks.take(self._size_wanted(len(partial)))
        block.view[: len(partial)] = partial
        self._private, self._filled = block, len(partial)

    def _size_wanted(self, arrived: int) -> int:
        """Return the size that the private block needs, or may have by now."""
        if self._frame_end <= self._largest + _SIZE.size:
            return max(self._frame_end, _SIZE.size)
        return min(self._frame_end, max(_TRUSTED_SIZE, arrived * _GROWTH))

    def _received_private(self, block: ReceiveBlock, count: int) -> list[Frame]:
        self._filled += count
        if not self._frame_end and self._filled >= _SIZE.size:
            self._frame_end = _SIZE.size + self._size_at(block.view, 0)
        if not self._frame_end or self._filled < self._frame_end:
            return []
        self._largest = max(self._largest, self._frame_end - _SIZE.size)
        self._private = None  # From here on the frame is its only user.
        return [(block.view[_SIZE.size : self._frame_end], block)]

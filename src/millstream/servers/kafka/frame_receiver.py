"""Cuts what arrives on one connection into frames, in memory that is not copied.

    +------+---------------+------+----------------------- - -
    | size | request       | size | request that is not whole yet
    +------+---------------+------+----------------------- - -

Reads go into a block that all connections use in turn. What is left of a frame at its end is
moved to a block of the connection's own, which then takes the rest of that frame and nothing else.
Nothing is allocated because a client says so: the own block grows with what has arrived, unless
the connection has sent frames of that size before.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from millstream.errors import MalformedRequest
from millstream.servers.kafka.block_pool import BlockPool, ReceiveBlock

_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from
FRAME_SIZE_MIN = 8
"""Key, version and correlation id: the shortest header there is."""

_TRUSTED_SIZE = 16 * 1024
_GROWTH = 4
"""The own block may be so large at once, or so many times what has arrived."""


Frame: TypeAlias = tuple[memoryview, ReceiveBlock]
"""One whole request, and the block that has to be released when it is not needed any more."""


class FrameReceiver:
    """The receiving half of one connection, without its socket."""

    def __init__(self, blocks: BlockPool, *, frame_size_max: int) -> None:
        self._blocks = blocks
        self.frame_size_max = frame_size_max
        self._own: ReceiveBlock | None = None
        self._filled = 0
        self._frame_end = 0
        self._largest = 0

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has begun and is not whole yet."""
        return self._own is not None

    def has_room(self) -> bool:
        """Whether there is memory for the next bytes. Read no more while there is not."""
        own = self._own
        if own is None or self._filled < own.size:
            return True
        wanted = self._size_wanted(self._filled)
        if not self._blocks.has_room(wanted, held=own.size):
            return False
        self._own = self._blocks.take(wanted)
        self._own.view[: self._filled] = own.view[: self._filled]
        own.release()
        return True

    def space(self) -> memoryview:
        """Return where the next bytes go."""
        if self._own is not None:
            end = min(self._own.size, self._frame_end) if self._frame_end else _SIZE.size
            return self._own.view[self._filled : end]
        blocks = self._blocks
        return blocks.reading.view[blocks.filled :] if blocks.filled else blocks.reading.view

    def received(self, count: int) -> list[Frame]:
        """Take note that `count` bytes were filled in; return the frames that they complete."""
        if self._own is not None:
            return self._received_own(self._own, count)
        blocks = self._blocks
        block, start = blocks.reading, blocks.filled
        frames: list[Frame] = []
        try:
            rest = self._cut(block, start, start + count, frames)
            if rest < start + count:
                self._carry(block.view[rest : start + count])
        except MalformedRequest:
            for _ in frames:
                block.release()
            raise
        if frames or start:
            blocks.keep_read(count)
        return frames

    def close(self) -> None:
        """Give all memory back."""
        if self._own is not None:
            self._own.release()
        self._own = None

    def _cut(self, block: ReceiveBlock, position: int, limit: int, frames: list[Frame]) -> int:
        """Add the whole frames between two positions of a block; return where the rest starts."""
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
                f"frame claims {size} bytes, allowed is {FRAME_SIZE_MIN}-{self.frame_size_max}"
            )
        return size

    def _carry(self, rest: memoryview) -> None:
        """Begin the own block with what has arrived of a frame."""
        self._frame_end = 0
        if len(rest) >= _SIZE.size:
            self._frame_end = _SIZE.size + self._size_at(rest, 0)
        block = self._blocks.take(self._size_wanted(len(rest)))
        block.view[: len(rest)] = rest
        self._own, self._filled = block, len(rest)

    def _size_wanted(self, arrived: int) -> int:
        """How large the own block has to be, or may be by now."""
        if self._frame_end <= self._largest + _SIZE.size:
            return max(self._frame_end, _SIZE.size)
        return min(self._frame_end, max(_TRUSTED_SIZE, arrived * _GROWTH))

    def _received_own(self, block: ReceiveBlock, count: int) -> list[Frame]:
        self._filled += count
        if not self._frame_end and self._filled >= _SIZE.size:
            self._frame_end = _SIZE.size + self._size_at(block.view, 0)
        if not self._frame_end or self._filled < self._frame_end:
            return []
        self._largest = max(self._largest, self._frame_end - _SIZE.size)
        self._own = None  # Its one user is the frame, from here on.
        return [(block.view[_SIZE.size : self._frame_end], block)]

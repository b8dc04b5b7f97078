"""Splits the bytes of one connection into frames, without its socket.

Reads fill a chunk of memory, and frames are views into it. A frame stays valid as long as someone
has it. A frame that does not fit gets a chunk of its own size, which receives the remainder of that
frame and nothing else, so a large response is read where it stays. A large chunk is used again when
nobody has a view of it any more: new memory costs a page fault for each 4 KiB, which takes as much
CPU as to copy them. The size that a peer announces is not allocated up front unless the connection
had frames of that size before: the chunk grows with the bytes that have arrived.
"""

from __future__ import annotations

from typing import Final

from millstream.errors import MalformedAnswer
from millstream.protocols.peer.frame import SIZE_SIZE

CHUNK_SIZE: Final = 64 * 1024
SPACE_MIN: Final = 8 * 1024
"""A chunk with less space left is not read into any more."""
_GROWTH: Final = 4

KEPT_COUNT_MAX: Final = 2
"""Large chunks that a connection keeps: the next frame may arrive while one is still in use."""

KEPT_FRAMES_MAX: Final = 32
"""Frames that may arrive without a large one before the chunks for these are given back."""


class FrameReader:
    """The receiving half of one connection."""

    def __init__(self, *, frame_size_max: int) -> None:
        self.frame_size_max = frame_size_max
        self._chunk = memoryview(bytearray(CHUNK_SIZE))
        self._start = self._end = 0
        """Where in it the bytes are that are not cut yet."""
        self._largest = 0
        self._kept: list[bytearray] = []
        """Memory of large chunks, in use or not; the one that was used last at the end."""
        self._small_frames = 0
        """Frames since the last large one."""

    def space(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._chunk[self._end :]

    def received(self, count: int) -> list[memoryview]:
        """Return the frames that are complete with the next `count` bytes, without their sizes.

        Raises `MalformedAnswer` at a size that is not allowed.
        """
        self._end += count
        frames = []
        while True:
            arrived = self._end - self._start
            size = self._size() if arrived >= SIZE_SIZE else 0
            needed = SIZE_SIZE + size
            if arrived < needed or not size:
                break
            frames.append(self._chunk[self._start + SIZE_SIZE : self._start + needed])
            self._start += needed
            self._largest = max(self._largest, needed)
            self._small_frames = 0 if needed > CHUNK_SIZE else self._small_frames + 1
        self._make_space(arrived, needed)
        return frames

    def _size(self) -> int:
        size = int.from_bytes(self._chunk[self._start : self._start + SIZE_SIZE], "big")
        if not 1 <= size <= self.frame_size_max:
            raise MalformedAnswer(
                f"frame size must be between 1 and {self.frame_size_max}, got {size}"
            )
        return size

    def _make_space(self, arrived: int, needed: int) -> None:
        """Move to another chunk if what is needed does not fit into this one."""
        capacity = len(self._chunk)
        is_within_frame = needed > SIZE_SIZE
        if self._start + (needed if is_within_frame else SPACE_MIN) <= capacity:
            return
        is_trusted = needed <= self._largest
        if is_within_frame and not is_trusted and self._start == 0 and self._end < capacity:
            return  # The chunk grows with its frame, and has space left.
        size = needed if is_trusted else min(needed, max(CHUNK_SIZE, arrived * _GROWTH))
        size = max(CHUNK_SIZE, size)
        chunk = self._new_chunk(size)
        chunk[:arrived] = self._chunk[self._start : self._end]
        self._chunk, self._start, self._end = chunk, 0, arrived

    def _new_chunk(self, size: int) -> memoryview:
        """Return memory of exactly this size."""
        kept = self._kept
        if size <= CHUNK_SIZE:
            if self._small_frames > KEPT_FRAMES_MAX:
                kept.clear()
            return memoryview(bytearray(size))
        for number, memory in enumerate(kept):
            if len(memory) >= size and _is_unused(memory):
                kept.append(kept.pop(number))
                return memoryview(memory)[:size]
        # Frames of one load differ in size, so the chunk is for those that are a little larger too.
        memory = bytearray(1 << (size - 1).bit_length())
        kept.append(memory)
        if len(kept) > KEPT_COUNT_MAX:
            del kept[0]
        return memoryview(memory)[:size]


def _is_unused(memory: bytearray) -> bool:
    """Return whether nobody has a view of it: Python lets only such memory change its size."""
    try:
        memory.append(0)
    except BufferError:
        return False
    memory.pop()
    return True

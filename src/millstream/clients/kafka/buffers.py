"""Reused buffers for responses."""

from __future__ import annotations

_SIZE_MIN = 64 * 1024


class AlternatingBuffers:
    """Two buffers that are used in turn.

    Memory returned by `take` stays valid while the next buffer is filled, and is overwritten by the
    one after that; a caller that needs it longer copies it. A buffer grows to the largest size
    requested, and is freed when no view into it is left.
    """

    def __init__(self) -> None:
        self._current = bytearray()
        self._other = bytearray()

    def take(self, size: int) -> memoryview:
        """Return `size` bytes of the next buffer, with undefined contents."""
        self._current, self._other = self._other, self._current
        if len(self._current) < size:
            # Headroom, so that slightly growing responses do not reallocate it each time.
            self._current = bytearray(max(_SIZE_MIN, size + size // 8))
        return memoryview(self._current)[:size]

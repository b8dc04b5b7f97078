"""Memory that answers are read into, used again and again."""

from __future__ import annotations

_SIZE_MIN = 64 * 1024


class AlternatingBuffers:
    """Two buffers in turn.

    What `take` returned stays as it is while the next one is filled, and is overwritten by the one
    after that. Whoever keeps something for longer copies it. A buffer grows to the largest that was
    taken, and is given back when nobody holds a view into it.
    """

    def __init__(self) -> None:
        self._present = bytearray()
        self._other = bytearray()

    def take(self, size: int) -> memoryview:
        """Return `size` bytes of the buffer whose turn it is; what they hold is arbitrary."""
        self._present, self._other = self._other, self._present
        if len(self._present) < size:
            # One that grows by a little with every answer would be made anew with every answer.
            self._present = bytearray(max(_SIZE_MIN, size + size // 8))
        return memoryview(self._present)[:size]

"""Frames: each request and response comes after its size.

 0       4
+-------+-------- - -
| size  | header, body
+-------+-------- - -
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from millstream.errors import MalformedRequest
from millstream.wire.primitives import Buffer

_SIZE = struct.Struct(">i")


class FrameReader:
    """Cuts a byte stream into frames.

    Bytes go in as they arrive, in pieces of any size; frames come out when they are whole. The
    reader does no I/O and keeps at most one unfinished frame.
    """

    def __init__(self, *, frame_size_max: int) -> None:
        self._frame_size_max = frame_size_max
        self._buffer = bytearray()

    def receive(self, data: Buffer) -> list[bytes]:
        """Take bytes off the wire; return the frames they complete, oldest first."""
        self._buffer += data
        frames = []
        while (frame := self._next_frame()) is not None:
            frames.append(frame)
        return frames

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _SIZE.size:
            return None
        size: int = _SIZE.unpack_from(self._buffer)[0]
        if not 0 <= size <= self._frame_size_max:
            raise MalformedRequest(f"frame claims {size} bytes, limit is {self._frame_size_max}")
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_SIZE.size : end])
        del self._buffer[:end]
        return frame


def frame_parts(parts: Iterable[Buffer]) -> list[Buffer]:
    """Put the size of `parts` before them; no part is copied."""
    kept = list(parts)
    return [_SIZE.pack(sum(map(len, kept))), *kept]

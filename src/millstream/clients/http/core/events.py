r"""Incremental parser for Server-Sent Events.

    event: records          type of the event
    id: orders:0:42         cursor at which to continue after this event
    data: {"topic": ...}    several data lines are joined with line feeds
                            an empty line ends the event

Lines end with \n, \r\n or \r; lines that begin with a colon are comments. An event without data is
dropped. An event that exceeds the size limit raises before it is buffered.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import MalformedAnswer


class ServerSentEvent(NamedTuple):
    kind: str
    data: bytes
    id: str | None = None
    """Id of this event; `None` if it has none."""


class ServerSentEventReader:
    """Parses events from bytes that arrive in arbitrary pieces."""

    def __init__(self, *, event_size_max: int) -> None:
        self._event_size_max = event_size_max
        self._partial: list[bytes] = []
        """Pieces of an incomplete line. They are joined only when the line ends."""
        self._partial_size = 0
        self._was_return = False
        self._is_start = True
        self._size = 0
        self._reset()

    def _reset(self) -> None:
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None
        self._size = 0

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Process some bytes and return the events that they complete."""
        if not data:
            return []
        if self._was_return:  # The second half of a \r\n may arrive later.
            data = data.removeprefix(b"\n")
        self._was_return = data.endswith(b"\r")
        first, *others = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer(first)
        events: list[ServerSentEvent] = []
        for piece in others:
            if line := b"".join(self._partial):
                self._parse_line(line)
            else:
                self._end(events)
            self._partial.clear()
            self._partial_size = 0
            self._buffer(piece)
        return events

    def _buffer(self, piece: bytes) -> None:
        """Buffer a piece of a line. Raises if the event would exceed its size limit."""
        self._partial_size += len(piece)
        self._check_size(self._partial_size)
        self._partial.append(piece)

    def _parse_line(self, line: bytes) -> None:
        if self._is_start:
            self._is_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._kind = _text(value)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)

    def _end(self, events: list[ServerSentEvent]) -> None:
        if self._data:
            events.append(
                ServerSentEvent(self._kind or "message", b"\n".join(self._data), self._id)
            )
        self._is_start = False
        self._reset()

    def _check_size(self, more: int) -> None:
        if self._size + more > self._event_size_max:
            raise MalformedAnswer(
                f"event must have at most {self._event_size_max} bytes,"
                f" got {self._size + more} or more"
            )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedAnswer(f"event contains {value[:100]!r}, which is not UTF-8") from None

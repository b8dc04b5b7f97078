r"""Live events out of a stream of bytes, however these are cut (Server-Sent Events).

    event: records          what kind
    id: orders:0:42         where to go on, once this event was seen
    data: {"topic": ...}    several lines of data are joined by line ends
                            an empty line ends the event

Lines end with \n, \r\n or \r; a line that begins with a colon says nothing. An event without
data is none. What gets larger than an event may be raises, before it is kept.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import MalformedAnswer


class ServerSentEvent(NamedTuple):
    """One event."""

    kind: str
    data: bytes
    id: str | None = None
    """Its own id; nothing where it has none."""


class ServerSentEventReader:
    """Reads events; what is left over waits for more bytes."""

    def __init__(self, *, event_size_max: int) -> None:
        self._event_size_max = event_size_max
        self._rest: list[bytes] = []
        """Pieces of a line whose end has not come; put together when it does, and not before."""
        self._rest_size = 0
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
        """Take some bytes, and return the events that are complete by them."""
        if not data:
            return []
        if self._was_return:  # A line end may be cut in the middle.
            data = data.removeprefix(b"\n")
        self._was_return = data.endswith(b"\r")
        first, *others = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._keep(first)
        found: list[ServerSentEvent] = []
        for piece in others:
            if line := b"".join(self._rest):
                self._take(line)
            else:
                self._end(found)
            self._rest.clear()
            self._rest_size = 0
            self._keep(piece)
        return found

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a line, unless that makes an event too large."""
        self._rest_size += len(piece)
        self._check_size(self._rest_size)
        self._rest.append(piece)

    def _take(self, line: bytes) -> None:
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

    def _end(self, found: list[ServerSentEvent]) -> None:
        if self._data:
            found.append(ServerSentEvent(self._kind or "message", b"\n".join(self._data), self._id))
        self._is_start = False
        self._reset()

    def _check_size(self, more: int) -> None:
        if self._size + more > self._event_size_max:
            raise MalformedAnswer(
                f"event has {self._size + more} bytes or more, limit is {self._event_size_max}"
            )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedAnswer(f"event has {value[:100]!r}, which is not UTF-8") from None

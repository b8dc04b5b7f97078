"""Parser of HTTP/1.1 responses, without a socket.

A connection has one request at a time, so a response belongs to it; bytes after the end of a
response are an error and end the connection. Redirects and compressed bodies are not supported: a
client sends its data only to the address that it was given.
"""

from __future__ import annotations

import httptools

from millstream.errors import MalformedAnswer

STREAM_PIECE_MAX = 4 * 1024 * 1024
"""Bytes of a stream that may wait to be taken: several times what is received at once."""

SHOWN_MAX = 200
"""Bytes of a malformed response that an error message quotes."""

_NO_BODY = frozenset({204, 304})


class ResponseReader:
    """Parser of one response that arrives in arbitrary pieces. Raises `MalformedAnswer`."""

    def __init__(self, *, head_size_max: int, body_size_max: int) -> None:
        self._head_size_max = head_size_max
        self._body_size_max = body_size_max
        self._parser = httptools.HttpResponseParser(self)
        self._head_size = 0
        self._body_size = 0
        self._pieces: list[bytes] = []
        self._error: str | None = None
        self._has_length = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        """Whether status and headers are known."""
        self.is_done = False
        self.keeps_alive = False
        """Whether the connection can be used again; valid once `is_done`."""

    def feed(self, data: bytes) -> None:
        """Parse some bytes of the response."""
        had_head = self.has_head
        if not had_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._error = self._error or "switches to another protocol"
        except httptools.HttpParserError as error:
            self._error = self._error or f"is not HTTP ({error}): {data[:SHOWN_MAX]!r}"
        if not self.has_head and self._head_size > self._head_size_max:
            self._error = self._error or f"has a head of more than {self._head_size_max} bytes"
        if self._error is not None:
            self.is_done = False  # It may have ended before the error.
            raise MalformedAnswer(f"response {self._error}")

    def take(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._body_size = 0
        return body

    @property
    def body(self) -> bytes:
        """The body, as far as it has arrived and was not taken."""
        return b"".join(self._pieces)

    # Called by the parser. Errors are stored, because the parser would wrap them in its own.

    def on_message_begin(self) -> None:
        if self.is_done:
            self._error = "has bytes after its end"

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        self.headers[key] = value.decode("latin-1")
        self._has_length |= key in {"content-length", "transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Check the length of the body."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self.has_head = True
        if not self._has_length and self.status not in _NO_BODY:
            self._error = "has no length"
        announced = self.headers.get("content-length", "0")
        if announced.isdigit() and int(announced[:20]) > self._body_size_max:
            self._error = f"announces {announced[:20]} bytes, limit is {self._body_size_max}"

    def on_body(self, body: bytes) -> None:
        """Buffer a piece of the body, up to the size limit."""
        self._body_size += len(body)
        if self._body_size > self._body_size_max:
            self._error = f"has more than {self._body_size_max} bytes"
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # An informational response, such as 100: the final one follows.
            self.headers.clear()
            self._has_length = False
            return
        self.is_done = True
        self.keeps_alive = self._parser.should_keep_alive()

r"""Finds where requests begin and end in the input of a connection.

      receive ──► [ head │ body │ what follows ] ──► take ──► parser
                                  └── stays here until the request before it is answered: finish

A pure state machine: no socket, no clock. It gives the bytes of one request at a time to the
parser, in pieces, so that a client which sends thousands at once costs no more than their bytes.

Chunks are parsed here too, as strictly as heads: no extensions, no trailers.

    1a\r\n <26 bytes> \r\n 5\r\n <5 bytes> \r\n 0\r\n \r\n
"""

from __future__ import annotations

import enum
import re
from http import HTTPStatus

from starlette.exceptions import HTTPException

from millstream.servers.http.server.request_head import (
    CHUNKED,
    SHOWN_MAX,
    RequestHead,
    check_beginning,
    read_head,
)

CHUNKS_MAX = 65_536
"""Chunks of one body: the largest body in chunks of 256 bytes. Each chunk costs two microseconds of
the event loop, so smaller ones would be a way to keep it busy.
"""

REMEMBERED_SIZE_MAX = 1024
"""A head of up to this size is remembered: programs send the same head again and again, and it need
not be checked twice.
"""

_HEAD_END = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CHUNK_SIZE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,8}\r?")
_LINE_BREAKS = re.compile(rb"[\r\n\x00]")


class RequestPart(enum.Enum):
    """The part of a request that comes next."""

    HEAD = "head"
    BODY = "body"
    CHUNKS = "chunks"
    NOTHING = "nothing"
    """The request is complete; the next one waits until this one is answered."""


class RequestFramer:
    """Splits the input of one connection into requests. Raises `HTTPException` to refuse it."""

    def __init__(self, *, head_size_max: int) -> None:
        self._head_size_max = head_size_max
        self._buffer = b""
        self._is_checked = False
        """Whether the buffer is known to be a valid beginning of a head."""
        self._missing = 0
        """Bytes of the body, or of the chunk and its line end, that have not arrived yet."""
        self._chunks = 0
        self._last_raw = b""
        self._last = RequestHead(b"", 0)
        self.part = RequestPart.HEAD

    @property
    def held_size(self) -> int:
        """Return the number of bytes that arrived and were not taken yet."""
        return len(self._buffer)

    def receive(self, data: bytes) -> None:
        """Add input."""
        if not self._buffer:
            self._buffer = data
        else:
            self._buffer += data
            if self._is_checked and _LINE_BREAKS.search(data) is None:
                return
        self._is_checked = False

    def take(self) -> bytes | None:
        """Return the next piece of the request for the parser; `None` if there is none yet."""
        if not self._buffer or self.part is RequestPart.NOTHING:
            return None
        if self.part is RequestPart.HEAD:
            return self._take_head()
        end = self._chunks_end() if self.part is RequestPart.CHUNKS else self._body_end()
        return self._cut(end)

    def finish(self) -> None:
        """Continue with the next request: this one is answered."""
        assert self.part is RequestPart.NOTHING, "all of the request was taken"
        self.part = RequestPart.HEAD
        self._is_checked = False

    def _cut(self, end: int) -> bytes | None:
        piece, self._buffer = self._buffer, b""
        if end < len(piece):
            piece, self._buffer = piece[:end], piece[end:]
        return piece or None

    # Heads.

    def _take_head(self) -> bytes | None:
        end = self._buffer.find(_HEAD_END, 0, self._head_size_max)
        if end < 0:
            if len(self._buffer) > self._head_size_max:
                check_beginning(self._buffer[: self._head_size_max])
                raise self._head_too_large()
            if not self._is_checked:
                check_beginning(self._buffer)
                self._is_checked = True
            return None
        raw = self._cut(end + len(_HEAD_END))
        assert raw is not None
        head = self._last if raw == self._last_raw else read_head(raw)
        if len(raw) <= REMEMBERED_SIZE_MAX:
            self._last_raw, self._last = raw, head
        self._missing = max(0, head.body_size)
        self._chunks = 0
        if head.body_size == CHUNKED:
            self.part = RequestPart.CHUNKS
        else:
            self.part = RequestPart.BODY if head.body_size else RequestPart.NOTHING
        return head.raw

    def _head_too_large(self) -> HTTPException:
        message = f"head must have at most {self._head_size_max} bytes"
        return HTTPException(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)

    # Bodies.

    def _body_end(self) -> int:
        end = min(self._missing, len(self._buffer))
        self._missing -= end
        if not self._missing:
            self.part = RequestPart.NOTHING
        return end

    def _chunks_end(self) -> int:
        """Parse the chunks; return the end of the body as far as it has arrived."""
        data, at = self._buffer, 0
        while at < len(data):
            if self._missing:
                step = min(self._missing, len(data) - at)
                self._missing -= step
                at += step
                continue
            size = _CHUNK_SIZE.match(data, at)
            if size is None:
                if _CHUNK_SIZE_BEGUN.fullmatch(data, at) is None:
                    raise _bad_chunk(data[at:])
                break
            self._missing = int(size[1], 16) + 2
            if self._missing == 2:  # The last chunk is empty; an empty line follows.
                self._missing = 0
                ending = data[size.end() : size.end() + 2]
                if ending == b"\r\n":
                    self.part = RequestPart.NOTHING
                    return size.end() + 2
                if ending not in (b"", b"\r"):
                    raise HTTPException(HTTPStatus.BAD_REQUEST, "trailers are not supported")
                break
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                message = f"body must have at most {CHUNKS_MAX} chunks"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
            at = size.end()
        return at


def _bad_chunk(data: bytes) -> HTTPException:
    shown = repr(data.partition(b"\r\n")[0][:SHOWN_MAX])[1:]
    message = f"chunk must begin with its size in 1-8 hexadecimal digits, got {shown}"
    return HTTPException(HTTPStatus.BAD_REQUEST, message)

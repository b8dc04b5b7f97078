r"""Where requests begin and end in what a client sends.

      receive ──► [ head │ body │ what follows ] ──► take ──► parser
                                  └── stays here until the request before it is answered: finish

A pure machine: no socket, no clock. It gives the bytes of one request at a time to the parser, in
pieces, so that a client which sends thousands at once costs no more than their bytes.

Chunks are followed here too, as strictly as heads: no extensions, no trailers.

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
"""Chunks of one body. The largest body that is taken, in chunks of 256 bytes; each costs two
microseconds of the loop, so smaller ones would be a way to keep it busy."""

REMEMBERED_SIZE_MAX = 1024
"""A head of up to so many bytes is remembered: one that comes again needs not be read again, and
programs send the same over and over."""

_HEAD_END = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CHUNK_SIZE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,8}\r?")
_LINE_BREAKS = re.compile(rb"[\r\n\x00]")


class RequestPart(enum.Enum):
    """Which part of a request comes next."""

    HEAD = "head"
    BODY = "body"
    CHUNKS = "chunks"
    NOTHING = "nothing"
    """All of it came; the next one waits until this one is answered."""


class RequestFramer:
    """Cuts what one connection receives into requests. Refusals are `HTTPException`."""

    def __init__(self, *, head_size_max: int) -> None:
        self._head_size_max = head_size_max
        self._rest = b""
        self._is_looked_at = False
        """Whether the bytes of `_rest` were found to be the beginning of a head."""
        self._missing = 0
        """Bytes of the body, or of the chunk and its line end, that have not come yet."""
        self._chunks = 0
        self._last_raw = b""
        self._last = RequestHead(b"", 0)
        self.part = RequestPart.HEAD

    @property
    def held_size(self) -> int:
        """Bytes that came and could not be given on yet."""
        return len(self._rest)

    def receive(self, data: bytes) -> None:
        """Take what has arrived."""
        if not self._rest:
            self._rest = data
        else:
            self._rest += data
            if self._is_looked_at and _LINE_BREAKS.search(data) is None:
                return
        self._is_looked_at = False

    def take(self) -> bytes | None:
        """Return the next piece of the request for the parser; `None` where there is none yet."""
        if not self._rest or self.part is RequestPart.NOTHING:
            return None
        if self.part is RequestPart.HEAD:
            return self._take_head()
        end = self._chunks_end() if self.part is RequestPart.CHUNKS else self._body_end()
        return self._cut(end)

    def finish(self) -> None:
        """Go on to the next request: this one is answered."""
        assert self.part is RequestPart.NOTHING, "all of the request was taken"
        self.part = RequestPart.HEAD
        self._is_looked_at = False

    def _cut(self, end: int) -> bytes | None:
        piece, self._rest = self._rest, b""
        if end < len(piece):
            piece, self._rest = piece[:end], piece[end:]
        return piece or None

    # Heads.

    def _take_head(self) -> bytes | None:
        found = self._rest.find(_HEAD_END, 0, self._head_size_max)
        if found < 0:
            if len(self._rest) > self._head_size_max:
                check_beginning(self._rest[: self._head_size_max])
                raise self._head_too_large()
            if not self._is_looked_at:
                check_beginning(self._rest)
                self._is_looked_at = True
            return None
        raw = self._cut(found + len(_HEAD_END))
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
        message = f"head has more than {self._head_size_max} bytes, which is the limit"
        return HTTPException(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)

    # Bodies.

    def _body_end(self) -> int:
        end = min(self._missing, len(self._rest))
        self._missing -= end
        if not self._missing:
            self.part = RequestPart.NOTHING
        return end

    def _chunks_end(self) -> int:
        """Follow the chunks; return where what belongs to the body ends, as far as it came."""
        data, at = self._rest, 0
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
            if self._missing == 2:  # The last one has no bytes; an empty line follows.
                self._missing = 0
                ending = data[size.end() : size.end() + 2]
                if ending == b"\r\n":
                    self.part = RequestPart.NOTHING
                    return size.end() + 2
                if ending not in (b"", b"\r"):
                    raise HTTPException(HTTPStatus.BAD_REQUEST, "trailers are not known here")
                break
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                message = f"body comes in more than {CHUNKS_MAX} chunks, which is the limit"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
            at = size.end()
        return at


def _bad_chunk(data: bytes) -> HTTPException:
    found = repr(data.partition(b"\r\n")[0][:SHOWN_MAX])[1:]
    message = f"chunk begins with {found}, needed is its size, as 1-8 hexadecimal digits"
    return HTTPException(HTTPStatus.BAD_REQUEST, message)

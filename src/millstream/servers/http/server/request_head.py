r"""Strict validation of a request head.

    POST /v1/topics/orders/records?x=1 HTTP/1.1\r\n      first line
    Host: localhost:8080\r\n                             fields, each NAME: VALUE
    Content-Length: 17\r\n
    \r\n

If two readers of one connection disagree about where a request ends, a client can hide a second
request inside the first, from a proxy that should have checked it (request smuggling). So
everything ambiguous is refused before the parser sees it, though the parser, or an older standard,
would accept it: two lengths, a length beside chunks, half a line end, folded fields.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException

TARGET_SIZE_MAX = 16 * 1024
"""Bytes of a path with its query. Others allow 8 KiB; a cursor over many topics needs more."""

FIELDS_MAX = 100
"""Fields of one head. Apache's limit; a browser behind two proxies sends about thirty."""

SHOWN_MAX = 60
"""Bytes of a client's input that an error repeats."""

_METHOD_SIZE_MAX = 20

CHUNKED = -1
"""The body size of a body in chunks."""

_FIRST_LINE = re.compile(
    rb"([A-Z][A-Z-]{0,19}+) (?:(?i:http)://([^/?#@\x00-\x20\x7f-\xff]*+))?+"
    rb'(/[!"$-~]*+) HTTP/([0-9])\.([0-9])\r\n'
)
_FIELDS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[^\x00-\x08\x0a-\x1f\x7f]*+\r\n)*+")
_BROKEN_LINE = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n|\x00")
_HOST = re.compile(
    rb"[A-Za-z0-9._~!$&'()*+,;=%-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
)
_SIZE = re.compile(rb"[0-9]{1,18}")
_UPGRADE_LINE = re.compile(rb"\r\nupgrade:[^\r]*", re.IGNORECASE)

_HOST_FIELD = b"\r\nhost:"
_CONTENT_LENGTH_FIELD = b"\r\ncontent-length:"
_TRANSFER_ENCODING_FIELD = b"\r\ntransfer-encoding:"
_UPGRADE_FIELD = b"\r\nupgrade:"

_BAD = HTTPStatus.BAD_REQUEST


class RequestHead(NamedTuple):
    """A validated head, and the size of the body after it."""

    raw: bytes
    """The head, for the parser."""
    body_size: int
    """Bytes of the body, or `CHUNKED`."""


def check_beginning(begun: bytes) -> None:
    """Refuse input that cannot become a head any more, without waiting for its end."""
    if not 0x41 <= begun[0] <= 0x5A:  # The first letter of a method.
        raise HTTPException(_BAD, f"request begins with {_shown(begun)}: not HTTP")
    if (broken := _BROKEN_LINE.search(begun)) is not None:
        shown = begun[max(0, broken.start() - 20) : broken.end() + 20]
        raise HTTPException(_BAD, f"head has a misplaced line end or a zero byte: {_shown(shown)}")
    first_end = begun.find(b"\r\n")
    if first_end < 0:
        if len(begun) > TARGET_SIZE_MAX + _METHOD_SIZE_MAX:
            raise _target_too_long()
        return
    _read_first_line(begun)
    _check_fields(begun, first_end + 2, begun.rfind(b"\r\n") + 2)


def read_head(raw: bytes) -> RequestHead:
    """Validate a head, from its first byte to the empty line."""
    first = _read_first_line(raw)
    _check_fields(raw, first.end(), len(raw) - 2)
    method, authority, target, _, minor = first.groups()
    _check_target(target)
    lowered = raw.lower()
    _check_host(lowered, authority, is_required=minor == b"1")
    body_size = _body_size(lowered, is_chunked_allowed=minor == b"1")
    if _UPGRADE_FIELD in lowered:
        raw = _without_upgrade(raw, lowered, method, body_size)
    return RequestHead(raw, body_size)


def _read_first_line(raw: bytes) -> re.Match[bytes]:
    first = _FIRST_LINE.match(raw)
    if first is None:
        line = raw[: raw.index(b"\r\n")]
        if len(line) > TARGET_SIZE_MAX:
            raise _target_too_long()
        if re.fullmatch(rb"[A-Z]+ \S+ HTTP/[0-9.]+", line) and line.startswith(b"CONNECT "):
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not supported")
        if re.fullmatch(rb"PRI \* HTTP/2\.0", line):
            raise HTTPException(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not supported")
        raise HTTPException(_BAD, f"first line must be METHOD /PATH HTTP/1.1, got {_shown(line)}")
    if first[1] == b"CONNECT":
        raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not supported")
    if first[4] != b"1" or first[5] not in b"01":
        version = f"HTTP/{first[4].decode()}.{first[5].decode()}"
        message = f"version must be HTTP/1.1 or HTTP/1.0, got {version}"
        raise HTTPException(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, message)
    if len(first[3]) > TARGET_SIZE_MAX:
        raise _target_too_long()
    return first


def _check_fields(raw: bytes, begin: int, end: int) -> None:
    """Refuse lines between two positions that are not fields, and too many fields."""
    valid = _FIELDS.match(raw, begin, end)
    if valid is None or valid.end() != end:
        at = begin if valid is None else valid.end()
        line = raw[at : raw.find(b"\r\n", at)]
        raise HTTPException(_BAD, f"lines of a head must be NAME: VALUE, got {_shown(line)}")
    if (count := raw.count(b"\r\n", begin, end)) > FIELDS_MAX:
        message = f"head must have at most {FIELDS_MAX} fields, got {count} or more"
        raise HTTPException(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def _check_target(target: bytes) -> None:
    """Refuse paths that are not UTF-8: two of them could be taken for the same name."""
    if b"%" not in target:
        return
    try:
        unquote_to_bytes(target.partition(b"?")[0]).decode()
    except UnicodeDecodeError:
        raise HTTPException(_BAD, f"path must be UTF-8, got {_shown(target)}") from None


def _check_host(lowered: bytes, authority: bytes | None, *, is_required: bool) -> None:
    hosts = _values(lowered, _HOST_FIELD)
    if len(hosts) > 1 or (is_required and not hosts):
        raise HTTPException(_BAD, f"head must have one field Host, got {len(hosts)}")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise HTTPException(_BAD, f"Host must be NAME or NAME:PORT, got {_shown(hosts[0])}")
    if authority is not None and [authority.lower()] != hosts:
        message = f"target names {_shown(authority)}, and Host another server"
        raise HTTPException(_BAD, message)


def _body_size(lowered: bytes, *, is_chunked_allowed: bool) -> int:
    """Return the size of the body; refuse a head that gives it twice or ambiguously."""
    sizes = _values(lowered, _CONTENT_LENGTH_FIELD)
    codings = _values(lowered, _TRANSFER_ENCODING_FIELD)
    if not codings and not sizes:
        return 0
    if len(sizes) + len(codings) > 1:
        raise HTTPException(
            _BAD, "head must give the length of the body once: Content-Length or Transfer-Encoding"
        )
    if codings:
        if not is_chunked_allowed:
            raise HTTPException(_BAD, "HTTP/1.0 has no Transfer-Encoding")
        if codings[0] != b"chunked":
            message = f"Transfer-Encoding must be chunked, got {_shown(codings[0])}"
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, message)
        return CHUNKED
    if _SIZE.fullmatch(sizes[0]) is None:
        raise HTTPException(_BAD, f"Content-Length must be a number, got {_shown(sizes[0])}")
    return int(sizes[0])


def _without_upgrade(raw: bytes, lowered: bytes, method: bytes, body_size: int) -> bytes:
    """Return the head without a request to upgrade to anything but WebSocket.

    Such a request may be ignored, and has to be: the parser would take the body for the new
    protocol.
    """
    if _values(lowered, _UPGRADE_FIELD) != [b"websocket"]:
        return _UPGRADE_LINE.sub(b"", raw)
    if method != b"GET" or body_size:
        raise HTTPException(_BAD, "a WebSocket request must be a GET without a body")
    return raw


def _values(lowered: bytes, mark: bytes) -> list[bytes]:
    """Return the values of all fields that begin with `mark`, in lower case.

    One space before a value is removed. Further blanks are kept, so that these fields are refused:
    not every reader skips the same blanks.
    """
    found = []
    at = lowered.find(mark)
    while at >= 0:
        begin = at + len(mark)
        end = lowered.index(b"\r\n", begin)
        found.append(lowered[begin:end].removeprefix(b" "))
        at = lowered.find(mark, end)
    return found


def _target_too_long() -> HTTPException:
    message = f"path and query must have at most {TARGET_SIZE_MAX} bytes"
    return HTTPException(HTTPStatus.REQUEST_URI_TOO_LONG, message)


def _shown(data: bytes) -> str:
    """Return input of a client in a form that is safe to display."""
    return repr(data[:SHOWN_MAX])[1:]

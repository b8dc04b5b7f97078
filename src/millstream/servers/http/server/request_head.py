r"""The head of a request: read strictly, or refused.

    POST /v1/topics/orders/records?x=1 HTTP/1.1\r\n      first line
    Host: localhost:8080\r\n                             fields, each NAME: VALUE
    Content-Length: 17\r\n
    \r\n

Where two readers of one connection disagree about where a request ends, a client can hide a second
request inside the first, from a proxy that was to check it. So whatever leaves room for doubt is
refused here before the parser sees it, though the parser, or an older standard, would let it pass:
two lengths, a length beside chunks, half a line end, fields that go on in the next line.
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
"""How much of what a client sent is told in an error."""

_METHOD_SIZE_MAX = 20

CHUNKED = -1
"""The size of a body that comes in chunks."""

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
    """What a head says about the bytes behind it."""

    raw: bytes
    """The head, for the parser."""
    body_size: int
    """Bytes of the body, or `CHUNKED`."""


def check_beginning(begun: bytes) -> None:
    """Refuse what cannot become a head any more, so that nobody waits for its end."""
    if not 0x41 <= begun[0] <= 0x5A:  # A method; no HTTP at all begins otherwise.
        raise HTTPException(_BAD, f"request begins with {_shown(begun)}, which is not HTTP")
    if (broken := _BROKEN_LINE.search(begun)) is not None:
        where = begun[max(0, broken.start() - 20) : broken.end() + 20]
        raise HTTPException(
            _BAD, f"head has a line end, or a zero, where none may be: {_shown(where)}"
        )
    first_end = begun.find(b"\r\n")
    if first_end < 0:
        if len(begun) > TARGET_SIZE_MAX + _METHOD_SIZE_MAX:
            raise _target_too_long()
        return
    _read_first_line(begun)
    _check_fields(begun, first_end + 2, begun.rfind(b"\r\n") + 2)


def read_head(raw: bytes) -> RequestHead:
    """Return what a head says, from its first byte to the empty line; or refuse it."""
    first = _read_first_line(raw)
    _check_fields(raw, first.end(), len(raw) - 2)
    method, authority, target, _, minor = first.groups()
    _check_target(target)
    lowered = raw.lower()
    _check_host(lowered, authority, is_needed=minor == b"1")
    body_size = _body_size(lowered, is_chunked_known=minor == b"1")
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
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not known here")
        if re.fullmatch(rb"PRI \* HTTP/2\.0", line):
            raise HTTPException(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not known here")
        raise HTTPException(_BAD, f"first line is {_shown(line)}, needed is METHOD /PATH HTTP/1.1")
    if first[1] == b"CONNECT":
        raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not known here")
    if first[4] != b"1" or first[5] not in b"01":
        version = f"HTTP/{first[4].decode()}.{first[5].decode()}"
        message = f"version is {version}, allowed is HTTP/1.1 or HTTP/1.0"
        raise HTTPException(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, message)
    if len(first[3]) > TARGET_SIZE_MAX:
        raise _target_too_long()
    return first


def _check_fields(raw: bytes, begin: int, end: int) -> None:
    """Refuse lines between two positions that are not fields, and too many of them."""
    sound = _FIELDS.match(raw, begin, end)
    if sound is None or sound.end() != end:
        at = begin if sound is None else sound.end()
        line = raw[at : raw.find(b"\r\n", at)]
        raise HTTPException(_BAD, f"head has the line {_shown(line)}, needed is NAME: VALUE")
    if (count := raw.count(b"\r\n", begin, end)) > FIELDS_MAX:
        message = f"head has {count} fields or more, limit is {FIELDS_MAX}"
        raise HTTPException(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def _check_target(target: bytes) -> None:
    """Refuse names that are not text: two of them could be taken for the same."""
    if b"%" not in target:
        return
    try:
        unquote_to_bytes(target.partition(b"?")[0]).decode()
    except UnicodeDecodeError:
        raise HTTPException(_BAD, f"path {_shown(target)} is not UTF-8") from None


def _check_host(lowered: bytes, authority: bytes | None, *, is_needed: bool) -> None:
    hosts = _values(lowered, _HOST_FIELD)
    if len(hosts) > 1 or (is_needed and not hosts):
        raise HTTPException(_BAD, f"head has {len(hosts)} fields Host, needed is one")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise HTTPException(_BAD, f"Host is {_shown(hosts[0])}, needed is NAME or NAME:PORT")
    if authority is not None and [authority.lower()] != hosts:
        message = f"target is at {_shown(authority)}, and Host names another"
        raise HTTPException(_BAD, message)


def _body_size(lowered: bytes, *, is_chunked_known: bool) -> int:
    """Return how large the body is; refuse where a head says it twice, or not clearly."""
    sizes = _values(lowered, _CONTENT_LENGTH_FIELD)
    codings = _values(lowered, _TRANSFER_ENCODING_FIELD)
    if not codings and not sizes:
        return 0
    if len(sizes) + len(codings) > 1:
        raise HTTPException(
            _BAD, "head says more than once how long the body is: Content-Length, Transfer-Encoding"
        )
    if codings:
        if not is_chunked_known:
            raise HTTPException(_BAD, "HTTP/1.0 has no Transfer-Encoding")
        if codings[0] != b"chunked":
            message = f"Transfer-Encoding is {_shown(codings[0])}, known is chunked"
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, message)
        return CHUNKED
    if _SIZE.fullmatch(sizes[0]) is None:
        raise HTTPException(_BAD, f"Content-Length is {_shown(sizes[0])}, needed is a number")
    return int(sizes[0])


def _without_upgrade(raw: bytes, lowered: bytes, method: bytes, body_size: int) -> bytes:
    """Return the head without a wish to speak something else than WebSocket.

    It may be passed over, and has to be: the parser takes the body of such a request for what
    comes next.
    """
    if _values(lowered, _UPGRADE_FIELD) != [b"websocket"]:
        return _UPGRADE_LINE.sub(b"", raw)
    if method != b"GET" or body_size:
        raise HTTPException(_BAD, "a WebSocket begins with GET, and without a body")
    return raw


def _values(lowered: bytes, mark: bytes) -> list[bytes]:
    """Return the values of all fields that begin with `mark`, in small letters.

    One space before a value is no part of it. More than that is left in place, for these fields to
    be refused: not every reader passes over the same blanks.
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
    message = f"path and query have more than {TARGET_SIZE_MAX} bytes, which is the limit"
    return HTTPException(HTTPStatus.REQUEST_URI_TOO_LONG, message)


def _shown(found: bytes) -> str:
    """Write what a client sent so that it does no harm where it is read."""
    return repr(found[:SHOWN_MAX])[1:]

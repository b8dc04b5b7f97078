"""Parsing and validation of stream requests: headers and queries.

Numbers are digits only, without a sign or leading zeros.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import msgspec

from millstream.broker.streams.create_stream import CreateStream, ForkSource
from millstream.broker.streams.paths import check_path, topic_of_path
from millstream.broker.streams.writers import WriteMark
from millstream.errors import InvalidRequest, MalformedRequest
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.usage import CLIENT_ID
from millstream.servers.http.streams.positions import NOW, START, StreamOffset, offset_of

PREFIX = "/v1/streams/"

TTL = "Stream-TTL"
EXPIRES = "Stream-Expires-At"
CLOSED = "Stream-Closed"
SEQUENCE = "Stream-Seq"
NEXT_OFFSET = "Stream-Next-Offset"
UP_TO_DATE = "Stream-Up-To-Date"
CURSOR = "Stream-Cursor"
FORKED_FROM = "Stream-Forked-From"
FORK_OFFSET = "Stream-Fork-Offset"
FORK_SUB_OFFSET = "Stream-Fork-Sub-Offset"
PRODUCER_ID = "Producer-Id"
PRODUCER_EPOCH = "Producer-Epoch"
PRODUCER_NUMBER = "Producer-Seq"
EXPECTED_NUMBER = "Producer-Expected-Seq"
RECEIVED_NUMBER = "Producer-Received-Seq"

HEADERS = (
    "Content-Type",
    CLIENT_ID,
    "If-None-Match",
    TTL,
    EXPIRES,
    CLOSED,
    SEQUENCE,
    FORKED_FROM,
    FORK_OFFSET,
    FORK_SUB_OFFSET,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    PRODUCER_NUMBER,
)
"""Headers that requests may have."""

TEXT_SIZE_MAX = 256
"""Bytes of a producer id, a sequence and a content type: they are stored with the stream."""

NUMBER_MAX = 2**53 - 1
"""The greatest integer that every client represents exactly."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(\s*;.*)?")
_DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def path_of(request: HttpRequest) -> str:
    """Return the path of the stream in a request."""
    raw = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return check_path(_decoded(raw).removeprefix(PREFIX))


def stream_topic_of(request: HttpRequest) -> str:
    """Return the topic of the stream in a request, to which the caller needs rights."""
    return topic_of_path(path_of(request))


def url_of(request: HttpRequest) -> str:
    """Return the URL of a stream, as in the request."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return f"{request.url.scheme}://{request.url.netloc}{raw.partition(b'?')[0].decode('latin-1')}"


def _decoded(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw.partition(b"?")[0]).decode()
    except UnicodeDecodeError:
        raise MalformedRequest("path of a stream must be UTF-8") from None


def parse_create_stream(request: HttpRequest) -> CreateStream:
    """Return the properties of the stream to create."""
    headers = request.headers
    ttl_text, expires_text = headers.get(TTL), headers.get(EXPIRES)
    if ttl_text is not None and expires_text is not None:
        raise InvalidRequest(f"{TTL} and {EXPIRES} cannot be combined")
    return CreateStream(
        content_type=content_type_of(request),
        ttl_seconds=None if ttl_text is None else number_of(TTL, ttl_text),
        expires_ms=None if expires_text is None else _date_ms(expires_text),
        expires_text=expires_text,
        is_closed=is_closing(request),
        fork=_parse_fork_source(request),
    )


def content_type_of(request: HttpRequest) -> str | None:
    """Return the content type of a request, if it has one."""
    content_type = request.headers.get("content-type")
    if not content_type:
        return None
    if len(content_type) > TEXT_SIZE_MAX or not _CONTENT_TYPE.fullmatch(content_type):
        raise MalformedRequest(f"Content-Type must be like text/plain, got {content_type[:100]!r}")
    return content_type


def is_closing(request: HttpRequest) -> bool:
    """Return whether the stream is to be closed; any value but `true` is ignored."""
    return request.headers.get(CLOSED, "").lower() == "true"


def _parse_fork_source(request: HttpRequest) -> ForkSource | None:
    source = request.headers.get(FORKED_FROM)
    offset, sub_offset = request.headers.get(FORK_OFFSET), request.headers.get(FORK_SUB_OFFSET)
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidRequest(f"{FORK_OFFSET} and {FORK_SUB_OFFSET} require {FORKED_FROM}")
        return None
    amount = 0 if sub_offset is None else number_of(FORK_SUB_OFFSET, sub_offset)
    start = None if offset is None else _fork_offset(offset)
    return ForkSource(
        source=check_path(_source_path(source)),
        offset=None if start is None else start.number,
        sub_offset=amount,
        mark=None if start is None else start.mark,
    )


def _fork_offset(text: str) -> StreamOffset:
    return StreamOffset(0, None) if text == START else offset_of(text)


def _source_path(text: str) -> str:
    """Return the path of a stream that is named by its URL path or by its own path."""
    path = _decoded(text.encode("latin-1"))
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else path.removeprefix("/")


def write_mark(request: HttpRequest) -> WriteMark:
    """Return producer, sequence and closing of an append."""
    headers = request.headers
    given = [headers.get(name) for name in (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_NUMBER)]
    producer, epoch, number = given
    mark = WriteMark(sequence=_sequence(request), is_closing=is_closing(request))
    if producer is None and epoch is None and number is None:
        return mark
    if producer is None or epoch is None or number is None:
        raise InvalidRequest(
            f"{PRODUCER_ID}, {PRODUCER_EPOCH} and {PRODUCER_NUMBER} must be set together"
        )
    if not 1 <= len(producer) <= TEXT_SIZE_MAX:
        raise InvalidRequest(
            f"{PRODUCER_ID} must have 1 to {TEXT_SIZE_MAX} characters, got {len(producer)}"
        )
    return mark._replace(
        producer=producer,
        epoch=number_of(PRODUCER_EPOCH, epoch),
        number=number_of(PRODUCER_NUMBER, number),
    )


def _sequence(request: HttpRequest) -> str | None:
    sequence = request.headers.get(SEQUENCE)
    if sequence is not None and len(sequence) > TEXT_SIZE_MAX:
        raise InvalidRequest(f"{SEQUENCE} must have at most {TEXT_SIZE_MAX} characters")
    return sequence


def number_of(name: str, text: str) -> int:
    """Return a number in a header."""
    if not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX:
        raise MalformedRequest(
            f"{name} must be an integer between 0 and {NUMBER_MAX}, got {text[:100]!r}"
        )
    return int(text)


def _date_ms(text: str) -> int:
    try:
        if len(text) <= TEXT_SIZE_MAX and _DATE.fullmatch(text):
            return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise MalformedRequest(
        f"{EXPIRES} must be a date like 2026-01-31T12:00:00Z, got {text[:100]!r}"
    )


class ReadQuery(msgspec.Struct):
    """The query of a read, for its description. Other parameters are ignored."""

    offset: Annotated[
        str,
        msgspec.Meta(
            pattern="^(now|-1|[0-9]{16}_(0{16}|[1-9][0-9]{15}))$",
            description="Start of the read: -1, now, or a Stream-Next-Offset",
        ),
    ] = START
    live: Annotated[
        Literal["long-poll", "sse"] | None,
        msgspec.Meta(description="Wait for new data (long-poll), or get it as events (sse)"),
    ] = None
    cursor: Annotated[
        str | None, msgspec.Meta(description="The Stream-Cursor of the previous response")
    ] = None


class ReadStream(NamedTuple):
    """The parameters of a read."""

    offset: StreamOffset | None
    """`None` for the beginning."""
    is_now: bool
    live: str | None
    cursor: str | None


def parse_read_stream(request: HttpRequest) -> ReadStream:
    """Return the parameters of a read."""
    query = request.query_params
    offsets = query.getlist("offset")
    if len(offsets) > 1:
        raise MalformedRequest("query parameter 'offset' must be given once")
    live = query.get("live")
    if live not in (None, "long-poll", "sse"):
        raise MalformedRequest(f"live must be 'long-poll' or 'sse', got {live[:100]!r}")
    if live is not None and not offsets:
        raise InvalidRequest(f"live={live} requires the parameter offset")
    text = offsets[0] if offsets else START
    is_now = text == NOW
    offset = None if is_now or text == START else offset_of(text)
    return ReadStream(offset, is_now, live, query.get("cursor"))

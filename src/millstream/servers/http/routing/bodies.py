"""Request bodies and queries: read within limits, and decoded.

Refused are: too many bytes, whatever `Content-Length` says; compressed bodies; and everything that
is not the declared message (`protocols/http/strict_json.py`). The connection refuses what arrives
too slowly (`server/http_protocol.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec
import msgspec.inspect
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from millstream.errors import MalformedRequest
from millstream.protocols.http.mismatch import NAME_LENGTH_MAX, describe_mismatch
from millstream.protocols.http.strict_json import decode
from millstream.servers.http.routing.request import HttpRequest

R = TypeVar("R")
T = TypeVar("T", bound=msgspec.Struct)

_NUMBER = re.compile(r"-?[0-9]{1,20}(\.0{1,20})?")

INLINE_BYTES_MAX = 512 * 1024
"""Bodies up to this size are decoded on the event loop, in a few milliseconds at most; larger ones
in a thread, so that no other request waits."""


async def in_thread_if(is_large: bool, work: Callable[[], R]) -> R:  # noqa: FBT001 - the name asks.
    """Do some work on the loop, or in a thread if it would hold up other requests."""
    if not is_large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def read_message(
    request: HttpRequest, kind: type[T], *, size_max: int, is_optional: bool = False
) -> T:
    """Return the body of a request as a message of type `kind`.

    If `is_optional`, an empty body is taken as an empty object.
    """
    data = await read_bytes(request, size_max=size_max)
    if is_optional and not data:
        data = b"{}"
    return await in_thread_if(len(data) > INLINE_BYTES_MAX, lambda: decode(data, kind))


async def read_bytes(request: HttpRequest, *, size_max: int) -> bytes:
    """Return the body of a request."""
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "body must not be compressed")
        if name == b"content-length" and value.isdigit() and int(value[:20]) > size_max:
            raise _too_large(value[:20].decode(), size_max)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > size_max:
            raise _too_large("more", size_max)
        if not message.get("more_body", False):
            request.usage.body_bytes = size
            return piece if len(pieces) == 1 else b"".join(pieces)


def _too_large(size: str, size_max: int) -> HTTPException:
    message = f"body must have at most {size_max} bytes, got {size}"
    # The rest of the body would have to be read to get to the next request.
    headers = {"Connection": "close"}
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, headers)


def read_query(request: HttpRequest, kind: type[T]) -> T:
    """Return the query of a request as a `kind`; raises `MalformedRequest` if it is not one."""
    fields = _query_fields(kind)
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in fields:
            allowed = ", ".join(repr(known) for known in fields) or "none"
            shown = name[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"unknown query parameter {shown!r}, allowed: {allowed}")
        field = fields[name]
        is_number = field.is_number and _NUMBER.fullmatch(text) is not None
        if field.is_number and not (is_number or field.is_text):
            shown = text[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"{name} must be an integer, got {shown!r}")
        if field.is_bool and text not in ("true", "false"):
            shown = text[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"{name} must be true or false, got {shown!r}")
        if field.is_list:
            values.setdefault(name, []).append(text)
        elif name in values:
            raise MalformedRequest(f"query parameter {name!r} must be given once")
        else:
            values[name] = int(text.partition(".")[0]) if is_number else text
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError:
        raise MalformedRequest(f"query {describe_mismatch(values, kind)}") from None


class _QueryField(NamedTuple):
    """The type of a query parameter."""

    is_list: bool
    """Whether it may be repeated."""
    is_number: bool
    is_text: bool
    is_bool: bool


@cache
def _query_fields(kind: type[msgspec.Struct]) -> dict[str, _QueryField]:
    return {field.encode_name: _query_field(field.type) for field in msgspec.structs.fields(kind)}


def _query_field(kind: Any) -> _QueryField:
    info = msgspec.inspect.type_info(kind)
    info = info.type if isinstance(info, msgspec.inspect.Metadata) else info
    infos = list(info.types) if isinstance(info, msgspec.inspect.UnionType) else [info]
    infos = [part.type if isinstance(part, msgspec.inspect.Metadata) else part for part in infos]
    return _QueryField(
        is_list=any(isinstance(part, msgspec.inspect.ListType) for part in infos),
        is_number=any(isinstance(part, msgspec.inspect.IntType) for part in infos),
        is_text=any(isinstance(part, msgspec.inspect.StrType) for part in infos),
        is_bool=any(isinstance(part, msgspec.inspect.BoolType) for part in infos),
    )

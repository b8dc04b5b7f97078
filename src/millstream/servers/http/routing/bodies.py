"""What a request brings: its body, bounded while it arrives, and its query.

Refused are: too many bytes, whatever the header says about them; packed bytes; and what is not the
message that the operation declares (`protocols/http/strict_json.py`). What comes too slowly is
refused by the connection (`protocol.py`).
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
from millstream.protocols.http.mismatch import NAME_LENGTH_MAX
from millstream.protocols.http.strict_json import decode
from millstream.servers.http.routing.request import HttpRequest

R = TypeVar("R")
T = TypeVar("T", bound=msgspec.Struct)

_NUMBER = re.compile("-?[0-9]{1,20}")

INLINE_BYTES_MAX = 512 * 1024
"""Bodies up to this size are read on the loop, where they take a few milliseconds at the most;
others in a thread, so that nobody waits for them."""


async def in_thread_if(is_large: bool, work: Callable[[], R]) -> R:  # noqa: FBT001 - the name asks.
    """Do some work on the loop, or in a thread if it would hold up other requests."""
    if not is_large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def read_message(
    request: HttpRequest, kind: type[T], *, size_max: int, is_optional: bool = False
) -> T:
    """Return the message of type `kind` that is the body of a request.

    Where `is_optional`, no body stands for an empty object.
    """
    data = await read_bytes(request, size_max=size_max)
    if is_optional and not data:
        data = b"{}"
    return await in_thread_if(len(data) > INLINE_BYTES_MAX, lambda: decode(data, kind))


async def read_bytes(request: HttpRequest, *, size_max: int) -> bytes:
    """Return the body of a request, whatever it is."""
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "body is packed, and has to come as it is"
            )
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
            raise _too_large(f"more than {size_max}", size_max)
        if not message.get("more_body", False):
            request.usage.body_bytes = size
            return piece if len(pieces) == 1 else b"".join(pieces)


def _too_large(size: str, size_max: int) -> HTTPException:
    message = f"body has {size} bytes, limit is {size_max}"
    # What is still on its way would have to be read, to get to the next request.
    headers = {"Connection": "close"}
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, headers)


def read_query(request: HttpRequest, kind: type[T]) -> T:
    """Return the query of a request; raises `MalformedRequest` where it is not a `kind`."""
    fields = _query_fields(kind)
    found: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in fields:
            allowed = ", ".join(repr(known) for known in fields) or "none"
            shown = name[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"query has the unknown parameter {shown!r}, allowed: {allowed}")
        field = fields[name]
        if field.is_number and not _NUMBER.fullmatch(text):
            shown = text[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"query has {name} {shown!r}, a whole number is needed")
        if field.is_truth and text not in ("true", "false"):
            shown = text[:NAME_LENGTH_MAX]
            raise MalformedRequest(f"query has {name} {shown!r}, true or false is needed")
        if field.is_list:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise MalformedRequest(f"query has the parameter {name!r} twice")
        else:
            found[name] = text
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"query is not what is needed: {str(error)[:300]}") from None


class _QueryField(NamedTuple):
    """What a parameter looks like."""

    is_list: bool
    """Whether it may be there several times."""
    is_number: bool
    is_truth: bool


@cache
def _query_fields(kind: type[msgspec.Struct]) -> dict[str, _QueryField]:
    return {field.encode_name: _query_field(field.type) for field in msgspec.structs.fields(kind)}


def _query_field(kind: Any) -> _QueryField:
    found = msgspec.inspect.type_info(kind)
    kinds = list(found.types) if isinstance(found, msgspec.inspect.UnionType) else [found]
    kinds = [one.type if isinstance(one, msgspec.inspect.Metadata) else one for one in kinds]
    return _QueryField(
        is_list=any(isinstance(one, msgspec.inspect.ListType) for one in kinds),
        is_number=any(isinstance(one, msgspec.inspect.IntType) for one in kinds),
        is_truth=any(isinstance(one, msgspec.inspect.BoolType) for one in kinds),
    )

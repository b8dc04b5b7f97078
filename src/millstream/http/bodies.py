"""The JSON that a request brings: bounded while it arrives, and believed in nothing.

A body is one object. What is refused: too many bytes, whatever the header says about them; too slow
an arrival; packed bytes; what is not UTF-8 or not JSON, among them the numbers that JSON has no
words for; a field twice; a field that the route does not know.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from millstream.errors import MalformedRequest

BODY_SECONDS_MAX = 30.0
"""How long a body may take to arrive, however its bytes trickle in."""

NAMES_SHOWN_MAX = 10
"""How many wrong names an error repeats, each of them cut to as many characters as a name has."""
NAME_LENGTH_MAX = 100


async def read_object(request: Request, *, known: Collection[str], size_max: int) -> dict[str, Any]:
    """Return the object that is the body of a request; all its fields are `known` ones."""
    found = parse_object(await _read(request, size_max))
    if unknown := [name for name in found if name not in known]:
        names = ", ".join(repr(name[:NAME_LENGTH_MAX]) for name in unknown[:NAMES_SHOWN_MAX])
        allowed = ", ".join(repr(name) for name in known)
        raise MalformedRequest(f"body has the unknown fields {names}, allowed are {allowed}")
    return found


async def _read(request: Request, size_max: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "body is packed, and has to come as it is"
        )
    claimed = request.headers.get("content-length", "0")
    if claimed.isdecimal() and int(claimed) > size_max:
        raise _too_large(claimed, size_max)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for piece in request.stream():
                data += piece
                if len(data) > size_max:
                    raise _too_large(f"more than {size_max}", size_max)
    except TimeoutError:
        message = f"body took longer than {BODY_SECONDS_MAX:.0f} s to arrive"
        headers = {"Connection": "close"}
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, message, headers) from None
    return bytes(data)


def _too_large(size: str, size_max: int) -> HTTPException:
    message = f"body has {size} bytes, limit is {size_max}"
    # What is still on its way would have to be read, to get to the next request.
    headers = {"Connection": "close"}
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, headers)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` is; raises `MalformedRequest` where it is none."""
    try:
        found = json.loads(
            data.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise MalformedRequest("body is nested too deeply") from None
    except ValueError as error:
        raise MalformedRequest(f"body is not JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise MalformedRequest("body has to be a JSON object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedRequest(f"body has the field {name[:NAME_LENGTH_MAX]!r} twice")
        found[name] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedRequest(f"body has {name}, which JSON does not know")


def whole_number(name: str, value: object, *, most: int = 2**63 - 1) -> int:
    """Return a field that has to be a whole number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise MalformedRequest(f"{name} is {_shown(value)}, needed is a whole number of 0-{most}")
    return value


def key_bytes(name: str, value: object) -> bytes:
    """Return a field that stands for bytes: text for its UTF-8, or `{"base64": "..."}`."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError):
        pass  # Half a surrogate pair, or what is not base64.
    raise MalformedRequest(f'{name} is {_shown(value)}, needed is text or {{"base64": "..."}}')


def _shown(value: object) -> str:
    """Return a wrong value as JSON has it, cut to a length that a message may have."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= NAME_LENGTH_MAX else f"{text[:NAME_LENGTH_MAX]}..."

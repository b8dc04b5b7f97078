r"""Keys, values and headers as JSON has them, and as bytes.

A log keeps bytes. JSON has none, so there is a rule in each direction, and the two undo each other:

    JSON of a value                  bytes in the log
    any JSON: {"n": 1}, "a", 7  <->  its text, as it was written
    null                        <->  no value: in a compacted topic, the end of a key
    {"base64": "AAE="}          <->  bytes that are no JSON, or too deep, or whose JSON would read
                                     as something else: `null`, or what looks like this itself

    JSON of a key or a header
    "text"                      <->  its UTF-8
    {"base64": "AAE="}          <->  bytes that are not UTF-8
    null                        <->  none
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import msgspec

from millstream.errors import MalformedRequest

_MAY_BE_BASE64 = re.compile(rb'\{\s*"(?:base64"|[^"\\]*\\)')
"""How an object begins whose first field is `base64`, or has a name written with escapes."""

_NESTED = frozenset(b"{[")
_JSON_STARTS = frozenset(b'{["-0123456789tf \t\r\n')
"""What JSON begins with, save the `n` of `null`."""

DEPTH_MAX = 128
"""How many lists and objects of a value may lie in each other. Readers in other languages stop at
64 to 1,000; a value that is meant for them is nowhere near."""

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: Annotated[
        str,
        msgspec.Meta(
            description="As RFC 4648 has it, with its padding.",
            # Only told, and not checked by this: to decode it says the same, and is quicker.
            extra_json_schema={
                "contentEncoding": "base64",
                "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            },
        ),
    ]


Text: TypeAlias = str | Base64
"""A key, or the value of a header."""


class _Base64Bytes(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


_decode_base64 = msgspec.json.Decoder(Base64).decode
_decode_base64_bytes = msgspec.json.Decoder(_Base64Bytes).decode


def value_bytes(raw: msgspec.Raw) -> bytes | None:
    """Return what a log keeps for a value; `raw` is JSON that was checked."""
    text = bytes(raw).strip()
    if text[0] in _NESTED:
        if _MAY_BE_BASE64.match(text):
            with contextlib.suppress(msgspec.ValidationError):
                return _decode_base64_bytes(text).base64
            with contextlib.suppress(msgspec.ValidationError):
                return base64_bytes(_decode_base64(text))  # Which says what is wrong with it.
            # It is an object that has more than that, or something else in it.
        if is_too_deep(text):
            raise MalformedRequest(f"a value is nested deeper than {DEPTH_MAX} levels")
    elif text == b"null":
        return None
    return text


def value_json(value: bytes | None) -> bytes:
    """Return the JSON that stands for a value: on one line, whatever its writer did."""
    if value is None:
        return b"null"
    if not _stands_for_itself(value):
        return base64_json(value)
    # In JSON a line can end between two tokens only, so a space means the same there.
    if b"\n" in value or b"\r" in value:
        return value.replace(b"\n", b" ").replace(b"\r", b" ")
    return value


def _stands_for_itself(value: bytes) -> bool:
    """Whether bytes are JSON that, sent as a value, would become these bytes again."""
    if not value or value[0] not in _JSON_STARTS:
        return False
    try:
        found = _decode_any(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if found is None or (isinstance(found, dict) and _is_base64(found)):
        return False
    return not is_too_deep(value)


def _is_base64(found: dict[str, Any]) -> bool:
    return len(found) == 1 and isinstance(found.get("base64"), str)


def is_too_deep(text: bytes) -> bool:
    """Whether JSON has more levels than `DEPTH_MAX`; it is quick to see that most has not."""
    if len(text) < 2 * DEPTH_MAX:
        return False
    # Splitting goes from one bracket to the next; counting looks at every byte.
    if len(text.split(b"{", DEPTH_MAX)) + len(text.split(b"[", DEPTH_MAX)) <= DEPTH_MAX:
        return False
    level = [_decode_any(text)]
    for _ in range(DEPTH_MAX):
        level = [part for one in level for part in _parts(one)]
    return any(isinstance(one, dict | list) for one in level)


def _parts(one: Any) -> Iterable[Any]:
    if isinstance(one, dict):
        return one.values()
    return one if isinstance(one, list) else ()


def text_bytes(text: Text | None) -> bytes | None:
    """Return the bytes of a key or of a header's value."""
    if isinstance(text, Base64):
        return base64_bytes(text)
    return None if text is None else text.encode()


def text_json(data: bytes | None) -> bytes:
    """Return the JSON that stands for a key, or for the value of a header."""
    if data is None:
        return b"null"
    try:
        return _encode(data.decode())
    except UnicodeDecodeError:
        return base64_json(data)


def base64_json(data: bytes) -> bytes:
    """Return the JSON that stands for bytes of any kind."""
    return b'{"base64":"' + base64.b64encode(data) + b'"}'


def base64_bytes(packed: Base64) -> bytes:
    """Return the bytes; raises `MalformedRequest` where it is not base64."""
    try:
        return msgspec.convert(packed.base64, bytes)
    except msgspec.ValidationError:
        shown = packed.base64[:100]
        raise MalformedRequest(f"base64 is {shown!r}, needed is what RFC 4648 calls so") from None

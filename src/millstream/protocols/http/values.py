r"""Keys, values and headers as JSON and as bytes.

A log stores bytes. JSON has none, so there is a rule in each direction, and the two are inverse:

    JSON of a value                  bytes in the log
    any JSON: {"n": 1}, "a", 7  <->  its text, as it was written
    null                        <->  no value: in a compacted topic, a tombstone
    {"base64": "AAE="}          <->  bytes that are not JSON, or nested too deeply, or whose JSON
                                     would mean something else: `null`, or an object like this one

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
"""The start of an object whose first field is `base64`, or has a name with escapes."""

_NESTED = frozenset(b"{[")
_JSON_STARTS = frozenset(b'{["-0123456789tf \t\r\n')
"""First bytes of JSON, except the `n` of `null`."""

DEPTH_MAX = 128
"""Levels of nested lists and objects in a value. Readers in other languages stop at 64 to 1,000."""

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not text."""

    base64: Annotated[
        str,
        msgspec.Meta(
            description="Base64 by RFC 4648, with padding.",
            # For the document only: decoding checks the same, and is faster.
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
    """Return the stored bytes of a value; `raw` is JSON that was validated."""
    text = bytes(raw).strip()
    if text[0] in _NESTED:
        if _MAY_BE_BASE64.match(text):
            with contextlib.suppress(msgspec.ValidationError):
                return _decode_base64_bytes(text).base64
            with contextlib.suppress(msgspec.ValidationError):
                return base64_bytes(_decode_base64(text))  # Raises, with the reason.
            # A JSON object with other fields, or with something else in it.
        if is_too_deep(text):
            raise MalformedRequest(f"a value is nested deeper than {DEPTH_MAX} levels")
    elif text == b"null":
        return None
    return text


def value_json(value: bytes | None) -> bytes:
    """Return the JSON of a stored value, on one line."""
    if value is None:
        return b"null"
    if not _stands_for_itself(value):
        return base64_json(value)
    # In JSON a line can end only between two tokens, where a space has the same meaning.
    if b"\n" in value or b"\r" in value:
        return value.replace(b"\n", b" ").replace(b"\r", b" ")
    return value


def _stands_for_itself(value: bytes) -> bool:
    """Return whether bytes are JSON that `value_bytes` would turn into the same bytes."""
    if not value or value[0] not in _JSON_STARTS:
        return False
    try:
        decoded = _decode_any(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if decoded is None or (isinstance(decoded, dict) and _is_base64(decoded)):
        return False
    return not is_too_deep(value)


def _is_base64(decoded: dict[str, Any]) -> bool:
    return len(decoded) == 1 and isinstance(decoded.get("base64"), str)


def is_too_deep(text: bytes) -> bool:
    """Return whether JSON has more levels than `DEPTH_MAX`; for most JSON, that is quick."""
    if len(text) < 2 * DEPTH_MAX:
        return False
    # Splitting stops after DEPTH_MAX brackets; counting would look at every byte.
    if len(text.split(b"{", DEPTH_MAX)) + len(text.split(b"[", DEPTH_MAX)) <= DEPTH_MAX:
        return False
    level = [_decode_any(text)]
    for _ in range(DEPTH_MAX):
        level = [part for item in level for part in _parts(item)]
    return any(isinstance(item, dict | list) for item in level)


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def text_bytes(text: Text | None) -> bytes | None:
    """Return the bytes of a key or a header value."""
    if isinstance(text, Base64):
        return base64_bytes(text)
    return None if text is None else text.encode()


def text_json(data: bytes | None) -> bytes:
    """Return the JSON of a key or a header value."""
    if data is None:
        return b"null"
    try:
        return _encode(data.decode())
    except UnicodeDecodeError:
        return base64_json(data)


def base64_json(data: bytes) -> bytes:
    """Return the JSON of bytes that are not text."""
    return b'{"base64":"' + base64.b64encode(data) + b'"}'


def base64_bytes(packed: Base64) -> bytes:
    """Return the bytes; raises `MalformedRequest` if it is not base64."""
    try:
        return msgspec.convert(packed.base64, bytes)
    except msgspec.ValidationError:
        shown = packed.base64[:100]
        raise MalformedRequest(f"base64 must be valid base64 (RFC 4648), got {shown!r}") from None

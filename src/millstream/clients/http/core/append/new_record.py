"""Records to append, and their JSON encoding.

a value                             encoding
bytes, bytearray, memoryview   ->   {"base64": "..."}
None                           ->   null: no value
any value that JSON supports   ->   its JSON
{"base64": ...} and no more    ->   base64 of its JSON; it would otherwise be decoded as bytes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.clients.http.core.values import HeaderItem, Headers, Key
from millstream.errors import InvalidRecord
from millstream.protocols.http.records import TIMESTAMP_MAX
from millstream.protocols.http.values import base64_json, text_json

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class NewRecord:
    """Record to append: a value, and optionally key, headers, partition and time."""

    value: Any
    key: Key = None
    headers: Headers | None = None
    partition: int | None = None
    """Target partition; if not given, it is chosen by key, or round-robin without a key."""
    timestamp_ms: int | None = None
    """Milliseconds since 1970; the current time if not given."""


def key_bytes(key: Key) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise InvalidRecord(f"key must be str or bytes, got {type(key).__name__}")
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("key has an unpaired surrogate, which UTF-8 cannot encode") from None


def row_of(record: NewRecord, key: bytes | None) -> bytes:
    """Return the JSON of a record without its partition; `key` is its key as bytes."""
    parts = [b'{"value":', value_json(record.value)]
    if key is not None:
        parts += [b',"key":', text_json(key)]
    if record.headers:
        parts += [b',"headers":', _headers_json(record.headers)]
    if record.timestamp_ms is not None:
        parts.append(b',"timestamp":%d' % _checked_timestamp(record.timestamp_ms))
    parts.append(b"}")
    return b"".join(parts)


def value_json(value: Any) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, bytes | bytearray | memoryview):
        return base64_json(bytes(value))
    try:
        encoded = _to_json(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"value cannot be encoded as JSON: {error}") from None
    if isinstance(value, Mapping) and list(value) == ["base64"]:
        return base64_json(encoded)
    return encoded


def _headers_json(headers: Headers) -> bytes:
    if not isinstance(headers, Mapping):
        raise InvalidRecord(f"headers must be a mapping, got {type(headers).__name__}")
    try:
        fields = [_encode(name) + b":" + _header_json(value) for name, value in headers.items()]
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRecord(f"headers cannot be encoded as JSON: {error}") from None
    return b"{" + b",".join(fields) + b"}"


def _header_json(value: HeaderItem | Sequence[HeaderItem]) -> bytes:
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_header_json(item) for item in value) + b"]"
    if value is None or isinstance(value, bytes):
        return text_json(value)
    if isinstance(value, str):
        return text_json(value.encode())
    raise InvalidRecord(f"header must be str or bytes, got {type(value).__name__}")


def _checked_timestamp(timestamp_ms: int) -> int:
    if not 0 <= timestamp_ms <= TIMESTAMP_MAX:
        raise InvalidRecord(
            f"timestamp_ms must be between 0 and {TIMESTAMP_MAX}, got {timestamp_ms}"
        )
    return timestamp_ms

"""Matching of single records: by key, by text, by a field of the value.

customer.country        a field of nested objects; a number is an index of a list
/customer/country       the same as a JSON Pointer (RFC 6901), for names with dots
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from millstream.errors import InvalidRequest
from millstream.records.record import StoredRecord

PATH_LENGTH_MAX = 32
"""Names in the path of a field: deeper values are not searched."""

_MISSING: Final = object()
_INDEX = re.compile("[0-9]{1,9}")

_decode_json = msgspec.json.Decoder().decode
_decode_msgpack = msgspec.msgpack.Decoder().decode

DECODERS: dict[str, Callable[[bytes], Any]] = {"json": _decode_json, "msgpack": _decode_msgpack}
"""Decoders of values with fields, by format."""


class FieldMatcher:
    """Matches values that have a field, or a field with a value."""

    def __init__(self, path: str, value: str | None, *, value_format: str = "json") -> None:
        self._names = parse_path(path)
        self._decode = DECODERS[value_format]
        self._text = value
        self._parsed = _MISSING if value is None else _parse(value)

    def __call__(self, value: bytes | None) -> bool:
        """Return whether the field is in `value`, and equal if a value is wanted.

        A number, a boolean or null is equal to itself, and a string to its text. A value that
        cannot be decoded has no fields.
        """
        if value is None:
            return False
        try:
            found = self._decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        for name in self._names:
            found = _child(found, name)
            if found is _MISSING:
                return False
        if self._text is None or found == self._text:
            return True
        # In Python, True equals 1.
        return isinstance(found, bool) is isinstance(self._parsed, bool) and found == self._parsed


class RecordMatcher:
    """Matches records that meet all given conditions."""

    def __init__(
        self,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
        text: bytes | None = None,
        field: FieldMatcher | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> None:
        self._key = key
        self._key_prefix = key_prefix
        self._text = text
        self._field = field
        self._from_ms = from_ms
        self._to_ms = to_ms

    def __call__(self, record: StoredRecord) -> bool:
        """Return whether a record matches; conditions that cost little are checked first."""
        key, value = record.key, record.value
        if self._key is not None and key != self._key:
            return False
        if self._key_prefix is not None and not (key or b"").startswith(self._key_prefix):
            return False
        if self._from_ms is not None and record.timestamp_ms < self._from_ms:
            return False
        if self._to_ms is not None and record.timestamp_ms >= self._to_ms:
            return False
        if self._text is not None and not _contains(record, self._text):
            return False
        return self._field is None or self._field(value)


def parse_path(path: str) -> Sequence[str]:
    """Return the names in the path of a field; raises `InvalidRequest`."""
    if path.startswith("/"):
        names = [name.replace("~1", "/").replace("~0", "~") for name in path[1:].split("/")]
    else:
        names = path.split(".")
        if not all(names):
            raise InvalidRequest(f"field must be names separated by dots, got {path[:100]!r}")
    if len(names) > PATH_LENGTH_MAX:
        raise InvalidRequest(f"field must have at most {PATH_LENGTH_MAX} names, got {len(names)}")
    return names


def _child(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return _MISSING


def _parse(text: str) -> Any:
    try:
        return _decode_json(text)
    except (msgspec.DecodeError, RecursionError):
        return _MISSING


def _contains(record: StoredRecord, text: bytes) -> bool:
    if text in (record.value or b"") or text in (record.key or b""):
        return True
    return any(text in (value or b"") or text in name.encode() for name, value in record.headers)

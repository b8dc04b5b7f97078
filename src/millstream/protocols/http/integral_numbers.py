"""Integers that a client wrote as `3.0` or `3e2`.

JSON has one type of number, and in JSON Schema 3.0 is an integer. The decoder takes such a number
for a float and refuses it. Then the message is written again with these numbers as integers, only
where the message has integers: values of records stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

_FLOAT = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

EXACT_MAX = 2.0**53
"""From here on, a float does not stand for one integer."""


def with_integers(data: bytes, kind: type) -> bytes:
    """Return `data`, which is JSON, with integers where a message of type `kind` has them."""
    return _rewritten(data, inspect.type_info(kind))


def _rewritten(data: bytes, kind: inspect.Type) -> bytes:  # noqa: PLR0911 - one per type.
    match kind:
        case inspect.Metadata():
            return _rewritten(data, kind.type)
        case inspect.UnionType():
            for option in kind.types:
                data = _rewritten(data, option)
            return data
        case inspect.IntType():
            return _as_integer(data)
        case inspect.StructType() if data[:1] == b"{":
            types = {field.encode_name: field.type for field in kind.fields}
            return _object(data, types.get)
        case inspect.DictType() if data[:1] == b"{":
            return _object(data, lambda _: kind.value_type)
        case inspect.ListType() if data[:1] == b"[":
            items = msgspec.json.decode(data, type=list[msgspec.Raw])
            return b"[" + b",".join(_rewritten(_bytes(i), kind.item_type) for i in items) + b"]"
    return data


def _object(data: bytes, type_of: Any) -> bytes:
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    pairs = []
    for name, raw in fields.items():
        kind = type_of(name)
        value = _bytes(raw) if kind is None else _rewritten(_bytes(raw), kind)
        pairs.append(msgspec.json.encode(name) + b":" + value)
    return b"{" + b",".join(pairs) + b"}"


def _as_integer(data: bytes) -> bytes:
    if not _FLOAT.fullmatch(data) or data.lstrip(b"-").isdigit():
        return data
    number = float(data)
    is_exact = number.is_integer() and abs(number) < EXACT_MAX
    return str(int(number)).encode() if is_exact else data


def _bytes(raw: msgspec.Raw) -> bytes:
    return bytes(raw).strip()

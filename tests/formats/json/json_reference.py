"""Reference decoder: Python's own JSON parser with a schema, slow and independent."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa


class Bad(Exception):
    """The value cannot be decoded."""


def reference_row(value: bytes | None, schema: pa.Schema) -> dict[str, Any] | None:
    """Return the columns of a row, all `None` without a value; `None` for a bad row."""
    if value is None:
        return dict.fromkeys(schema.names)
    try:
        parsed = json.loads(
            value.decode(), object_pairs_hook=Pairs, parse_constant=refuse, parse_float=Real
        )
        if not isinstance(parsed, Pairs):
            raise Bad
        check_unpaired(parsed)
        return struct(parsed, list(schema))
    except (Bad, ValueError, RecursionError):
        return None


class Pairs(list[tuple[str, Any]]):
    """An object, as its members in order."""


class Real(str):
    """A number with a point or an exponent, as written."""


def refuse(word: str) -> None:
    raise Bad(word)


def check_unpaired(value: Any) -> None:
    """Raise `UnicodeError` for an unpaired surrogate anywhere in a value."""
    if type(value) is str:
        value.encode()
    elif isinstance(value, Pairs):
        for name, inside in value:
            name.encode()
            check_unpaired(inside)
    elif isinstance(value, list):
        for inside in value:
            check_unpaired(inside)


def struct(pairs: Pairs, fields: list[pa.Field]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    known = {field.name: field for field in fields}
    for name, value in pairs:
        if name not in known:
            continue
        if name in row:
            raise Bad
        row[name] = typed(value, known[name])
    if any(row.get(field.name) is None and not field.nullable for field in fields):
        raise Bad
    return {field.name: row.get(field.name) for field in fields}


def typed(value: Any, field: pa.Field) -> Any:
    if value is None:
        if not field.nullable:
            raise Bad
        return None
    kind = field.type
    if pa.types.is_struct(kind):
        require(isinstance(value, Pairs))
        return struct(value, list(kind))
    if pa.types.is_map(kind):
        require(isinstance(value, Pairs))
        return [(name, typed(inside, kind.item_field)) for name, inside in value]
    if pa.types.is_list(kind):
        require(isinstance(value, list) and not isinstance(value, Pairs))
        return [typed(inside, kind.value_field) for inside in value]
    if pa.types.is_boolean(kind):
        require(isinstance(value, bool))
        return value
    if pa.types.is_string(kind):
        require(type(value) is str)
        return value
    if pa.types.is_floating(kind):
        if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        require(isinstance(value, Real) or type(value) is int)
        number = float(value)
        require(math.isfinite(number))
        return number
    require(type(value) is int)
    limit = 2 ** (kind.bit_width - 1)
    require(-limit <= value < limit)
    return value


def require(is_right: bool) -> None:
    if not is_right:
        raise Bad

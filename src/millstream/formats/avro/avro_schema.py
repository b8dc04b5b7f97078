"""An Avro schema, read and checked: what it says, and what it is in Arrow.

| Avro | column |
|---|---|
| record | struct; the outermost one gives the columns |
| array, map | list, map with text as keys |
| boolean, int, long, float, double | the same |
| bytes, fixed | binary |
| string, enum, string of logical type uuid | string |
| union of null and one other | the other, nullable |
| int as date | date |
| long as timestamp-millis, timestamp-micros | timestamp, in UTC |
| long as local-timestamp-millis, local-timestamp-micros | timestamp without a zone |
| bytes, fixed as decimal | decimal |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import InvalidConfig

FIXED_SIZE_MAX = 1024 * 1024
DECIMAL_PRECISION_MAX = 38

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL: Mapping[tuple[str, str], tuple[pa.DataType, int]] = {
    ("int", "date"): (pa.date32(), 1),
    ("long", "timestamp-millis"): (pa.timestamp("us", tz="UTC"), 1000),
    ("long", "timestamp-micros"): (pa.timestamp("us", tz="UTC"), 1),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), 1000),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), 1),
    ("string", "uuid"): (pa.string(), 1),
}
"""The column that a logical type becomes, and what its number has to be multiplied by."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema. What it does not need is empty."""

    kind: str
    """Avro's name for how it is written."""
    arrow: pa.DataType
    null_branch: int | None = None
    """Which branch of its union is null; `None` where it is in no union."""
    fields: tuple[tuple[str, AvroType], ...] = ()
    items: AvroType | None = None
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Bytes of a fixed."""
    factor: int = 1

    @property
    def is_nullable(self) -> bool:
        """Whether it may be null."""
        return self.null_branch is not None or self.kind == "null"

    @property
    def takes_bytes(self) -> bool:
        """Whether each of them takes at least a byte."""
        if self.null_branch is not None:
            return True
        if self.kind == "record":
            return any(kind.takes_bytes for _, kind in self.fields)
        return self.kind != "null"


def parse_schema(text: str) -> AvroType:
    """Read a schema; raises `InvalidConfig` with the name of what cannot be a column."""
    try:
        parsed = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidConfig(f"Avro schema is no JSON: {error}") from None
    except RecursionError:
        raise InvalidConfig("Avro schema is nested too deeply") from None
    try:
        found = _Reader().read(parsed, "", "")
    except RecursionError:
        raise InvalidConfig("Avro schema is nested too deeply") from None
    if found.kind != "record" or found.null_branch is not None:
        raise InvalidConfig(f"Avro schema is a {found.kind}, allowed is a record")
    if not found.fields:
        raise InvalidConfig("Avro schema has no fields, needs at least 1")
    return found


def arrow_field(name: str, kind: AvroType) -> pa.Field:
    """Return the column that a type becomes."""
    return pa.field(name, kind.arrow, nullable=kind.is_nullable)


@dataclass(slots=True)
class _Reader:
    """Reads types. A name that is used before its end would be a type inside itself."""

    named: dict[str, AvroType | None] = field(default_factory=dict)

    def read(self, declared: Any, path: str, space: str) -> AvroType:
        if isinstance(declared, str):
            return self._called(declared, path, space)
        if isinstance(declared, list):
            return self._union(declared, path, space)
        if not isinstance(declared, dict):
            raise _refused(path, f"type is {declared!r}, allowed is a name, a list or an object")
        kind = declared.get("type")
        if not isinstance(kind, str):  # {"type": {"type": ...}} says the same with more words.
            return self.read(kind, path, space)
        complex_types: Mapping[str, Callable[[dict[str, Any], str, str], AvroType]] = {
            "record": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }
        if kind in complex_types:
            return complex_types[kind](declared, path, space)
        return _logical(self._called(kind, path, space), declared, path)

    def _called(self, name: str, path: str, space: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name, _PRIMITIVES[name])
        full = _full_name(name, None, space)
        if full not in self.named:
            raise _refused(path, f"type {name!r} is not known")
        found = self.named[full]
        if found is None:
            raise _refused(path, f"type {name!r} contains itself, which a column cannot")
        return found

    def _union(self, declared: list[Any], path: str, space: str) -> AvroType:
        kinds = [self.read(kind, path, space) for kind in declared]
        names = [kind.kind for kind in kinds]
        if len(kinds) != 2 or names.count("null") != 1:
            raise _refused(
                path, f"union of {', '.join(names) or 'nothing'}, allowed is null and one other"
            )
        branch = names.index("null")
        return replace(kinds[1 - branch], null_branch=branch)

    def _record(self, declared: dict[str, Any], path: str, space: str) -> AvroType:
        name, space = self._begin(declared, path, space)
        members = declared.get("fields")
        if not isinstance(members, list):
            raise _refused(path, "a record needs a list of fields")
        fields = []
        for member in members:
            if not isinstance(member, dict) or not isinstance(member.get("name"), str):
                raise _refused(path, f"field is {member!r}, allowed is an object with a name")
            below = f"{path}.{member['name']}" if path else member["name"]
            if "type" not in member:
                raise _refused(below, "it has no type")
            fields.append((member["name"], self.read(member["type"], below, space)))
        arrow = pa.struct([arrow_field(*one) for one in fields])
        found = AvroType("record", arrow, fields=tuple(fields))
        self.named[name] = found
        return found

    def _enum(self, declared: dict[str, Any], path: str, space: str) -> AvroType:
        name, _ = self._begin(declared, path, space)
        symbols = declared.get("symbols")
        if (
            not isinstance(symbols, list)
            or not symbols
            or not all(isinstance(symbol, str) for symbol in symbols)
            or len(set(symbols)) < len(symbols)
        ):
            raise _refused(path, "an enum needs a list of symbols, each of them once")
        found = AvroType("enum", pa.string(), symbols=tuple(symbols))
        self.named[name] = found
        return found

    def _fixed(self, declared: dict[str, Any], path: str, space: str) -> AvroType:
        name, _ = self._begin(declared, path, space)
        size = declared.get("size")
        if not isinstance(size, int) or not 1 <= size <= FIXED_SIZE_MAX:
            raise _refused(path, f"size of a fixed is {size!r}, allowed is 1 to {FIXED_SIZE_MAX}")
        found = _logical(AvroType("fixed", pa.binary(), size=size), declared, path)
        self.named[name] = found
        return found

    def _array(self, declared: dict[str, Any], path: str, space: str) -> AvroType:
        items = self._items(declared.get("items"), path, space)
        return AvroType("array", pa.list_(arrow_field("element", items)), items=items)

    def _map(self, declared: dict[str, Any], path: str, space: str) -> AvroType:
        items = self._items(declared.get("values"), path, space)
        key = pa.field("key", pa.string(), nullable=False)
        return AvroType("map", pa.map_(key, arrow_field("value", items)), items=items)

    def _items(self, declared: Any, path: str, space: str) -> AvroType:
        items = self.read(declared, f"{path}[]", space)
        if not items.takes_bytes:
            # A few bytes could claim any number of them.
            raise _refused(path, f"items of type {items.kind} take no bytes, so cannot be counted")
        return items

    def _begin(self, declared: dict[str, Any], path: str, space: str) -> tuple[str, str]:
        """Note that a named type begins; return its full name and the namespace inside."""
        name, own = declared.get("name"), declared.get("namespace")
        if not isinstance(name, str) or not name:
            raise _refused(path, f"name of a {declared['type']} is {name!r}, allowed is text")
        full = _full_name(name, own if isinstance(own, str) else None, space)
        if full in self.named:
            raise _refused(path, f"type {full!r} is there twice")
        self.named[full] = None
        return full, full.rpartition(".")[0]


def _full_name(name: str, own: str | None, space: str) -> str:
    if "." in name:
        return name
    space = space if own is None else own
    return f"{space}.{name}" if space else name


def _logical(found: AvroType, declared: dict[str, Any], path: str) -> AvroType:
    logical = declared.get("logicalType")
    if logical is None:
        return found
    if logical == "decimal" and found.kind in ("bytes", "fixed"):
        precision, scale = declared.get("precision"), declared.get("scale", 0)
        if not isinstance(precision, int) or not 1 <= precision <= DECIMAL_PRECISION_MAX:
            raise _refused(
                path, f"precision is {precision!r}, allowed is 1 to {DECIMAL_PRECISION_MAX}"
            )
        if not isinstance(scale, int) or not 0 <= scale <= precision:
            raise _refused(path, f"scale is {scale!r}, allowed is 0 to {precision}")
        return replace(found, arrow=pa.decimal128(precision, scale))
    if (found.kind, logical) in _LOGICAL:
        arrow, factor = _LOGICAL[found.kind, logical]
        return replace(found, arrow=arrow, factor=factor)
    raise _refused(path, f"logical type {logical!r} of {found.kind} is not supported")


def _refused(path: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"Avro schema, {f'field {path!r}' if path else 'record'}: {why}")

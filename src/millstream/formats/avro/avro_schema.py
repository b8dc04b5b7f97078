"""Parser of Avro schemas, with the Arrow type of each Avro type.

| Avro | column |
|---|---|
| record | struct; the outermost record gives the columns |
| array, map | list, map with strings as keys |
| boolean, int, long, float, double | the same |
| bytes, fixed | binary |
| string, enum, string of logical type uuid | string |
| union of null and one other type | the other type, nullable |
| int as date | date |
| long as timestamp-millis, timestamp-micros | timestamp, in UTC |
| long as local-timestamp-millis, local-timestamp-micros | timestamp without a time zone |
| bytes, fixed as decimal | decimal |

A schema that values were only *written* with may have more (`parse_written`): any union, and any
logical type, whose number or bytes are read as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.column_types import (
    PRECISION_MAX,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    list_type,
    map_type,
)

FIXED_SIZE_MAX = 1024 * 1024

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
    ("long", "timestamp-millis"): (TIMESTAMP, 1000),
    ("long", "timestamp-micros"): (TIMESTAMP, 1),
    ("long", "local-timestamp-millis"): (TIMESTAMP_NTZ, 1000),
    ("long", "local-timestamp-micros"): (TIMESTAMP_NTZ, 1),
    ("string", "uuid"): (pa.string(), 1),
}
"""The Arrow type of a logical type, and the factor to its unit."""


class _NoDefault(enum.Enum):
    NO_DEFAULT = enum.auto()


NO_DEFAULT = _NoDefault.NO_DEFAULT
"""What a field without a default has: null is a default too."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type of a schema. Attributes that its kind does not use are empty."""

    kind: str
    """Avro's name of the encoding."""
    arrow: pa.DataType
    null_branch: int | None = None
    """The index of null in the union around the type; `None` without a union."""
    fields: tuple[tuple[str, AvroType], ...] = ()
    items: AvroType | None = None
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Size of a fixed, in bytes."""
    factor: int = 1
    branches: tuple[AvroType, ...] = ()
    """The types of a union of a written schema."""
    logical: str = field(default="", compare=False)
    """The logical type of a written schema, which `arrow` ignores."""
    name: str = field(default="", compare=False)
    """Full name of a record, enum or fixed."""
    aliases: tuple[str, ...] = field(default=(), compare=False)
    defaults: tuple[object, ...] = field(default=(), compare=False)
    """Default of each field, as in JSON, or `NO_DEFAULT`; of an enum, its default symbol if any."""
    field_aliases: tuple[tuple[str, ...], ...] = field(default=(), compare=False)

    @property
    def is_nullable(self) -> bool:
        return self.null_branch is not None or self.kind == "null"

    @property
    def takes_bytes(self) -> bool:
        """Whether each value takes at least one byte."""
        if self.null_branch is not None or self.branches:
            return True
        if self.kind == "record":
            return any(kind.takes_bytes for _, kind in self.fields)
        return self.kind != "null"


def parse_schema(text: str) -> AvroType:
    """Parse a schema; raises `InvalidConfig` for a field that is invalid or not supported."""
    return _parse(_Reader(), text)


def parse_written(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema that values were written with; `references` declare names that it uses.

    Logical types are ignored, except decimals: the values are resolved to a schema of a reader.
    """
    reader = _Reader(is_written=True)
    for reference in references:
        reader.read(_decoded(reference), "", "")
    return _parse(reader, text)


def _parse(reader: _Reader, text: str) -> AvroType:
    parsed = _decoded(text)
    try:
        parsed_type = reader.read(parsed, "", "")
    except RecursionError:
        raise InvalidConfig("Avro schema is nested too deeply") from None
    if parsed_type.kind != "record" or parsed_type.null_branch is not None:
        kind = "union" if parsed_type.null_branch is not None else parsed_type.kind
        raise InvalidConfig(f"Avro schema must be a record, got {kind}")
    if not parsed_type.fields:
        raise InvalidConfig("Avro schema must have at least 1 field, got 0")
    return parsed_type


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidConfig(f"Avro schema is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidConfig("Avro schema is nested too deeply") from None


def arrow_field(name: str, kind: AvroType) -> pa.Field:
    """Return the column of a type."""
    return pa.field(name, kind.arrow, nullable=kind.is_nullable)


@dataclass(slots=True)
class _Reader:
    """Parses types. A name maps to `None` until its type is complete, which reveals recursion."""

    named: dict[str, AvroType | None] = field(default_factory=dict)
    is_written: bool = False

    def read(self, declared: Any, path: str, namespace: str) -> AvroType:
        if isinstance(declared, str):
            return self._by_name(declared, path, namespace)
        if isinstance(declared, list):
            return self._union(declared, path, namespace)
        if not isinstance(declared, dict):
            raise _error(path, f"type must be a name, a list or an object, got {declared!r}")
        kind = declared.get("type")
        if not isinstance(kind, str):  # {"type": {"type": ...}} is the same, nested once more.
            return self.read(kind, path, namespace)
        complex_types: Mapping[str, Callable[[dict[str, Any], str, str], AvroType]] = {
            "record": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }
        if kind in complex_types:
            return complex_types[kind](declared, path, namespace)
        return self._logical(self._by_name(kind, path, namespace), declared, path)

    def _by_name(self, name: str, path: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name, _PRIMITIVES[name])
        full = _full_name(name, None, namespace)
        if full not in self.named:
            raise _error(path, f"type {name!r} is not defined")
        parsed_type = self.named[full]
        if parsed_type is None:
            raise _error(path, f"type {name!r} contains itself, which is not supported")
        return parsed_type

    def _union(self, declared: list[Any], path: str, namespace: str) -> AvroType:
        kinds = [self.read(kind, path, namespace) for kind in declared]
        names = [kind.kind for kind in kinds]
        if self.is_written and (len(kinds) != 2 or names.count("null") != 1):
            return _written_union(kinds, path)
        if len(kinds) != 2 or names.count("null") != 1:
            raise _error(
                path, f"union must be of null and one other type, got {', '.join(names) or 'none'}"
            )
        branch = names.index("null")
        return replace(kinds[1 - branch], null_branch=branch)

    def _record(self, declared: dict[str, Any], path: str, namespace: str) -> AvroType:
        name, namespace = self._declare_name(declared, path, namespace)
        members = declared.get("fields")
        if not isinstance(members, list):
            raise _error(path, "a record must have a list of fields")
        fields, defaults, aliases = [], [], []
        for member in members:
            if not isinstance(member, dict) or not isinstance(member.get("name"), str):
                raise _error(path, f"field must be an object with a name, got {member!r}")
            child_path = f"{path}.{member['name']}" if path else member["name"]
            if "type" not in member:
                raise _error(child_path, "has no type")
            fields.append((member["name"], self.read(member["type"], child_path, namespace)))
            defaults.append(member.get("default", NO_DEFAULT))
            aliases.append(_aliases(member))
        parsed_type = AvroType(
            "record",
            pa.struct([arrow_field(*member) for member in fields]),
            fields=tuple(fields),
            name=name,
            aliases=_aliases(declared),
            defaults=tuple(defaults),
            field_aliases=tuple(aliases),
        )
        self.named[name] = parsed_type
        return parsed_type

    def _enum(self, declared: dict[str, Any], path: str, namespace: str) -> AvroType:
        name, _ = self._declare_name(declared, path, namespace)
        symbols = declared.get("symbols")
        if (
            not isinstance(symbols, list)
            or not symbols
            or not all(isinstance(symbol, str) for symbol in symbols)
            or len(set(symbols)) < len(symbols)
        ):
            raise _error(path, "an enum must have a list of distinct symbols")
        default = declared.get("default", NO_DEFAULT)
        if default is not NO_DEFAULT and default not in symbols:
            raise _error(path, f"default of an enum must be one of its symbols, got {default!r}")
        parsed_type = AvroType(
            "enum",
            pa.string(),
            symbols=tuple(symbols),
            name=name,
            aliases=_aliases(declared),
            defaults=() if default is NO_DEFAULT else (default,),
        )
        self.named[name] = parsed_type
        return parsed_type

    def _fixed(self, declared: dict[str, Any], path: str, namespace: str) -> AvroType:
        name, _ = self._declare_name(declared, path, namespace)
        size = declared.get("size")
        if not isinstance(size, int) or not 1 <= size <= FIXED_SIZE_MAX:
            raise _error(path, f"size must be between 1 and {FIXED_SIZE_MAX}, got {size!r}")
        fixed = AvroType("fixed", pa.binary(), size=size, name=name, aliases=_aliases(declared))
        parsed_type = self._logical(fixed, declared, path)
        self.named[name] = parsed_type
        return parsed_type

    def _array(self, declared: dict[str, Any], path: str, namespace: str) -> AvroType:
        items = self._items(declared.get("items"), path, namespace)
        return AvroType("array", list_type(items.arrow, nullable=items.is_nullable), items=items)

    def _map(self, declared: dict[str, Any], path: str, namespace: str) -> AvroType:
        items = self._items(declared.get("values"), path, namespace)
        arrow = map_type(pa.string(), items.arrow, nullable=items.is_nullable)
        return AvroType("map", arrow, items=items)

    def _items(self, declared: Any, path: str, namespace: str) -> AvroType:
        items = self.read(declared, f"{path}[]", namespace)
        if not items.takes_bytes:
            # A value of a few bytes could claim any number of such items.
            raise _error(path, f"items of type {items.kind} take no bytes, which is not supported")
        return items

    def _logical(self, parsed_type: AvroType, declared: dict[str, Any], path: str) -> AvroType:
        logical = declared.get("logicalType")
        if logical is None:
            return parsed_type
        if logical == "decimal" and parsed_type.kind in ("bytes", "fixed"):
            return replace(parsed_type, arrow=_decimal(declared, path))
        if self.is_written:
            return replace(parsed_type, logical=str(logical))
        if (parsed_type.kind, logical) in _LOGICAL:
            arrow, factor = _LOGICAL[parsed_type.kind, logical]
            return replace(parsed_type, arrow=arrow, factor=factor)
        raise _error(path, f"logical type {logical!r} of {parsed_type.kind} is not supported")

    def _declare_name(self, declared: dict[str, Any], path: str, namespace: str) -> tuple[str, str]:
        """Register the name of a type; return its full name and the namespace inside."""
        name, own = declared.get("name"), declared.get("namespace")
        if not isinstance(name, str) or not name:
            raise _error(path, f"a {declared['type']} must have a name, got {name!r}")
        full = _full_name(name, own if isinstance(own, str) else None, namespace)
        if full in self.named:
            raise _error(path, f"type {full!r} is defined twice")
        self.named[full] = None
        return full, full.rpartition(".")[0]


def _full_name(name: str, own: str | None, namespace: str) -> str:
    if "." in name:
        return name
    namespace = namespace if own is None else own
    return f"{namespace}.{name}" if namespace else name


def _decimal(declared: dict[str, Any], path: str) -> pa.DataType:
    precision, scale = declared.get("precision"), declared.get("scale", 0)
    if not isinstance(precision, int) or not 1 <= precision <= PRECISION_MAX:
        raise _error(path, f"precision must be between 1 and {PRECISION_MAX}, got {precision!r}")
    if not isinstance(scale, int) or not 0 <= scale <= precision:
        raise _error(path, f"scale must be between 0 and {precision}, got {scale!r}")
    return pa.decimal128(precision, scale)


def _aliases(declared: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = declared.get("aliases")
    if not isinstance(aliases, list):
        return ()
    return tuple(alias for alias in aliases if isinstance(alias, str))


def _written_union(kinds: Sequence[AvroType], path: str) -> AvroType:
    """Return a union as a record of its branches, of which at most one has a value."""
    if not kinds:
        raise _error(path, "union must have at least 1 type, got 0")
    if any(kind.branches or kind.null_branch is not None for kind in kinds):
        raise _error(path, "union must not contain a union")
    arrow = pa.struct([pa.field(str(index), kind.arrow) for index, kind in enumerate(kinds)])
    return AvroType("union", arrow, branches=tuple(kinds))


def _error(path: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"Avro schema, {f'field {path!r}' if path else 'record'}: {why}")

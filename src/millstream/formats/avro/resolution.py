"""Resolution of Avro schemas: columns as they were written become columns of the reader's schema.

Both schemas are compared once and give a plan, which works on whole columns. What decides is the
structure. Names of records, enums and fixed types count only between the branches of a union,
where nothing else could tell two records apart. A writer's branch or symbol that the reader does
not have is an error of the values that have it, not of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_schema import NO_DEFAULT, AvroType
from millstream.formats.column_types import PRECISION_MAX
from millstream.formats.layout.schema_plan import DAY_MAX, DAY_MICROS, DAY_MIN

Flags = NDArray[np.bool_]


class ResolutionFault(NamedTuple):
    """Entries of a column that do not fit the reader's schema."""

    entries: Flags
    reason: str


class Resolved(NamedTuple):
    values: pa.Array
    faults: Sequence[ResolutionFault] = ()


Resolve = Callable[[pa.Array, Flags], Resolved]
"""Converts a column of the writer. The flags tell which entries exist: those of a null record do
not, and are never faults.
"""

_NUMBERS = ("int", "long", "float", "double")
_NANOS, _MICROS, _MILLIS = "nanos", "micros", "millis"
_DECIMALS = Context(prec=PRECISION_MAX)
_OUT_OF_RANGE = "the number does not fit the declared type"
_TIME_LOW, _TIME_HIGH = DAY_MIN * DAY_MICROS, (DAY_MAX + 1) * DAY_MICROS - 1


class Resolution:
    """The plan from a written schema to that of the reader."""

    def __init__(self, written: AvroType, reader: AvroType) -> None:
        """Compare the schemas; raises `InvalidConfig` if no value could be resolved."""
        self._record = _record(written, reader, "")

    def apply(self, columns: Sequence[pa.Array], is_read: Flags) -> Resolved:
        """Return the reader's record for the rows that were read, from the writer's columns."""
        fields = [pa.field(str(index), column.type) for index, column in enumerate(columns)]
        record = pa.StructArray.from_arrays(columns, fields=fields)
        return self._record(record, is_read)


def _resolver(written: AvroType, reader: AvroType, path: str) -> Resolve:
    """Return how a value becomes one of the reader's type; raises `InvalidConfig` if it cannot."""
    if written.branches:
        return _branches(written, reader, path)
    if written.kind == "null":
        if not reader.is_nullable:
            raise _mismatch(written, reader, path)
        return lambda values, _: Resolved(pa.nulls(len(values), reader.arrow))
    plain = _plain(written, reader, path)
    if written.null_branch is None or reader.is_nullable:
        return plain
    reason = f"{_shown(path, reader)}the value is null, which the reader's schema does not allow"

    def not_null(values: pa.Array, exists: Flags) -> Resolved:
        found = plain(values, exists)
        nulls = exists & _nulls(values)
        return Resolved(found.values, [*found.faults, *_fault(nulls, reason)])

    return not_null


def _plain(written: AvroType, reader: AvroType, path: str) -> Resolve:  # noqa: PLR0911
    """Return the resolver of values that are not null."""
    kinds = written.kind, reader.kind
    is_decimal = pa.types.is_decimal(written.arrow) or pa.types.is_decimal(reader.arrow)
    if is_decimal and (written.kind != reader.kind or written.arrow != reader.arrow):
        raise _mismatch(written, reader, path)
    if kinds == ("record", "record"):
        return _record(written, reader, path)
    if written.kind == reader.kind and written.items is not None and reader.items is not None:
        return _items(written.items, reader.items, reader, path)
    if kinds == ("enum", "enum"):
        return _enum(reader, path)
    if written.kind in _NUMBERS and reader.kind in _NUMBERS:
        return _number(written, reader, path)
    if kinds == ("bytes", "string"):
        return _text(reader, path)
    if kinds == ("string", "bytes"):
        return _cast(reader.arrow)
    if written.kind != reader.kind or written.size != reader.size:
        raise _mismatch(written, reader, path)
    return _unchanged


def _unchanged(values: pa.Array, _: Flags) -> Resolved:
    return Resolved(values)


def _cast(kind: pa.DataType) -> Resolve:
    return lambda values, _: Resolved(pc.cast(values, kind, safe=False))


def _number(written: AvroType, reader: AvroType, path: str) -> Resolve:
    """Promote a number, or convert the unit of a time."""
    if _NUMBERS.index(written.kind) > _NUMBERS.index(reader.kind):
        raise _mismatch(written, reader, path)
    if pa.types.is_date(reader.arrow):
        return _ranged(reader, path, DAY_MIN, DAY_MAX, lambda days: days.cast(pa.int32()))
    if not pa.types.is_timestamp(reader.arrow):
        is_same = written.arrow == reader.arrow
        return _unchanged if is_same else _cast(reader.arrow)
    unit = written.logical.rpartition("-")[2] if "timestamp" in written.logical else ""
    if unit == _NANOS:
        low, high = _TIME_LOW * 1000, _TIME_HIGH * 1000
        low, high = max(low, -(2**63)), min(high, 2**63 - 1)
        return _ranged(reader, path, low, high, lambda nanos: _floored(nanos, 1000))
    factor = {_MICROS: 1, _MILLIS: 1000}.get(unit, reader.factor)
    low, high = -(-_TIME_LOW // factor), _TIME_HIGH // factor
    return _ranged(reader, path, low, high, lambda numbers: pc.multiply(numbers, factor))


def _floored(numbers: pa.Array, divisor: int) -> pa.Array:
    floored = np.floor_divide(numbers.fill_null(0).to_numpy(zero_copy_only=False), divisor)
    return pa.array(floored, pa.int64(), mask=_nulls(numbers))


def _ranged(
    reader: AvroType, path: str, low: int, high: int, convert: Callable[[pa.Array], pa.Array]
) -> Resolve:
    """Convert whole numbers within limits; others are faults."""
    reason = f"{_shown(path, reader)}{_OUT_OF_RANGE}"

    def ranged(values: pa.Array, exists: Flags) -> Resolved:
        numbers = values.cast(pa.int64())
        inside = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
        outside = ~_flags(inside.fill_null(True))  # noqa: FBT003 - a null is no number.
        faults = _fault(exists & outside, reason)
        if outside.any():
            numbers = pc.if_else(inside, numbers, pa.scalar(None, pa.int64()))
        return Resolved(convert(numbers).cast(reader.arrow), faults)

    return ranged


def _text(reader: AvroType, path: str) -> Resolve:
    """Take bytes for text, if they are UTF-8."""
    reason = f"{_shown(path, reader)}the bytes are not valid UTF-8"

    def text(values: pa.Array, exists: Flags) -> Resolved:
        try:
            return Resolved(values.cast(pa.string()))
        except pa.ArrowInvalid:
            words = [_decoded(value) for value in values.to_pylist()]
            found = pa.array(words, pa.string())
            return Resolved(found, _fault(exists & _nulls(found) & ~_nulls(values), reason))

    return text


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _enum(reader: AvroType, path: str) -> Resolve:
    """Take symbols that the reader has; others become its default, or are faults."""
    symbols = pa.array(reader.symbols, pa.string())
    default = pa.scalar(reader.defaults[0] if reader.defaults else None, pa.string())
    reason = f"{_shown(path, reader)}the symbol is not one of the reader's, which has no default"

    def enum(values: pa.Array, exists: Flags) -> Resolved:
        unknown = ~_flags(pc.is_in(values, symbols)) & ~_nulls(values)
        if not unknown.any():
            return Resolved(values)
        replaced = pc.if_else(pa.array(unknown), default, values)
        return Resolved(replaced, () if default.is_valid else _fault(exists & unknown, reason))

    return enum


def _record(written: AvroType, reader: AvroType, path: str) -> Resolve:
    """Find each field of the reader in the writer's, by name or alias, or take its default."""
    places = {name: index for index, (name, _) in enumerate(written.fields)}
    members: list[tuple[int, Resolve]] = []
    for number, (name, kind) in enumerate(reader.fields):
        inner = f"{path}.{name}" if path else name
        names = (name, *reader.field_aliases[number])
        place = next((places[known] for known in names if known in places), None)
        if place is not None:
            members.append((place, _resolver(written.fields[place][1], kind, inner)))
            continue
        default = reader.defaults[number]
        if default is NO_DEFAULT:
            raise InvalidConfig(
                f"field {inner!r} is not in the writer's schema, and has no default in the reader's"
            )
        value = pa.array([default_value(kind, default, inner)], kind.arrow)
        members.append((0, _constant(value)))
    fields = list(reader.arrow)

    def record(values: pa.StructArray, exists: Flags) -> Resolved:
        is_null = _nulls(values)
        inside = exists & ~is_null
        columns: list[pa.Array] = []
        faults: list[ResolutionFault] = []
        for place, resolve in members:
            found = resolve(values.field(place), inside)
            columns.append(found.values)
            faults += found.faults
        # The plain layout: a field without nulls may have some where there is no record.
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
        kind = pa.struct(fields)
        array = pa.Array.from_buffers(kind, len(values), [validity], children=columns)
        return Resolved(array, faults)

    return record


def _constant(value: pa.Array) -> Resolve:
    return lambda values, _: Resolved(value.take(pa.array(np.zeros(len(values), np.int64))))


def _items(written: AvroType, items: AvroType, reader: AvroType, path: str) -> Resolve:
    """Resolve the items of a list, or the values of a map."""
    resolve = _resolver(written, items, f"{path}[]")
    is_map = reader.kind == "map"

    def all_items(values: pa.Array, exists: Flags) -> Resolved:
        ends = values.offsets.to_numpy(zero_copy_only=False)
        content = values.items if is_map else values.values
        found = resolve(content, np.ones(len(content), np.bool_))
        children = found.values
        if is_map:
            pair = [reader.arrow.key_field, reader.arrow.item_field]
            children = pa.StructArray.from_arrays([values.keys, children], fields=pair)
        buffers = [values.buffers()[0], values.buffers()[1]]
        array = pa.Array.from_buffers(reader.arrow, len(values), buffers, children=[children])
        faults = [
            ResolutionFault(exists & _owners(fault.entries, ends), fault.reason)
            for fault in found[1]
        ]
        return Resolved(array, faults)

    return all_items


def _owners(items: Flags, ends: NDArray[Any]) -> Flags:
    """Return which lists have one of the items."""
    before = np.concatenate([[0], np.cumsum(items)])
    owners: Flags = before[ends[1:]] > before[ends[:-1]]
    return owners


def _branches(written: AvroType, reader: AvroType, path: str) -> Resolve:
    """Take the branch that each value has; one that the reader does not have is a fault."""
    plans: list[tuple[int, Resolve]] = []
    refusals: list[tuple[int, str]] = []
    null = next((place for place, kind in enumerate(written.branches) if kind.kind == "null"), None)
    for place, branch in enumerate(written.branches):
        if place == null:
            continue
        try:
            if not _is_named_alike(branch, reader):
                raise _mismatch(branch, reader, path)
            plans.append((place, _plain(branch, reader, path)))
        except InvalidConfig as error:
            refusals.append((place, str(error)))
    if not plans and (null is None or not reader.is_nullable):
        raise InvalidConfig(refusals[0][1])
    null_reason = (
        f"{_shown(path, reader)}the value is null, which the reader's schema does not allow"
    )

    def branches(values: pa.StructArray, exists: Flags) -> Resolved:
        result = pa.nulls(len(values), reader.arrow)
        faults: list[ResolutionFault] = []
        has_value = np.zeros(len(values), np.bool_)
        takes = np.zeros(len(values), np.int64)
        parts = [result]
        for place, resolve in plans:
            column = values.field(place)
            present = ~_nulls(column)
            found = resolve(column, exists & present)
            faults += found.faults
            has_value |= present
            takes[present] = len(values) * len(parts) + np.flatnonzero(present)
            parts.append(found.values)
        for place, reason in refusals:
            present = ~_nulls(values.field(place))
            has_value |= present
            faults += _fault(exists & present, reason)
        if not reader.is_nullable:
            faults += _fault(exists & ~has_value, null_reason)
        return Resolved(pa.concat_arrays(parts).take(pa.array(takes)), faults)

    return branches


def _is_named_alike(written: AvroType, reader: AvroType) -> bool:
    if not written.name or not reader.name:
        return True
    last = written.name.rpartition(".")[2]
    return last in {name.rpartition(".")[2] for name in (reader.name, *reader.aliases)}


def default_value(kind: AvroType, given: object, path: str) -> object:
    """Return the default of a field, written in JSON, as a value that Arrow takes."""
    if given is None:
        if kind.is_nullable:
            return None
    elif kind.kind == "record" and isinstance(given, dict):
        return _default_record(kind, given, path)
    elif kind.items is not None:
        return _default_items(kind, kind.items, given, path)
    elif kind.kind in ("bytes", "fixed") and isinstance(given, str):
        return _default_bytes(kind, given, path)
    elif _is_plain(kind, given):
        return given
    elif kind.kind in _NUMBERS and isinstance(given, int | float) and not isinstance(given, bool):
        return _default_number(kind, given, path)
    raise _bad_default(kind, given, path)


def _is_plain(kind: AvroType, given: object) -> bool:
    """Whether a default in JSON is the value itself."""
    if kind.kind == "enum":
        return given in kind.symbols
    types = {"string": str, "boolean": bool}
    return kind.kind in types and isinstance(given, types[kind.kind])


def _default_record(kind: AvroType, given: dict[str, object], path: str) -> object:
    return {
        name: default_value(field, given.get(name, default), f"{path}.{name}")
        for (name, field), default in zip(kind.fields, kind.defaults, strict=True)
    }


def _default_items(kind: AvroType, items: AvroType, given: object, path: str) -> object:
    if kind.kind == "array" and isinstance(given, list):
        return [default_value(items, item, f"{path}[]") for item in given]
    if kind.kind == "map" and isinstance(given, dict):
        return [(name, default_value(items, item, f"{path}[]")) for name, item in given.items()]
    raise _bad_default(kind, given, path)


def _default_bytes(kind: AvroType, given: str, path: str) -> object:
    try:
        octets = given.encode("latin-1")
    except UnicodeEncodeError:
        raise _bad_default(kind, given, path) from None
    if kind.kind == "fixed" and len(octets) != kind.size:
        raise _bad_default(kind, given, path)
    if not pa.types.is_decimal(kind.arrow):
        return octets
    number = int.from_bytes(octets, "big", signed=True)
    if abs(number) >= 10**kind.arrow.precision:
        raise _bad_default(kind, given, path)
    return _DECIMALS.scaleb(Decimal(number), -kind.arrow.scale)


def _default_number(kind: AvroType, given: float, path: str) -> object:
    if kind.kind in ("float", "double"):
        return float(given)
    bits = 31 if kind.kind == "int" else 63
    if not isinstance(given, int) or not -(2**bits) <= given < 2**bits:
        raise _bad_default(kind, given, path)
    try:
        number = pa.array([given * kind.factor], pa.int64())
        small = number.cast(pa.int32()) if kind.kind == "int" else number
        return small.cast(kind.arrow)[0].as_py()
    except (pa.ArrowInvalid, OverflowError, ValueError):
        raise _bad_default(kind, given, path) from None


def _bad_default(kind: AvroType, given: object, path: str) -> InvalidConfig:
    shown = "nothing" if given is NO_DEFAULT else repr(given)
    return InvalidConfig(f"field {path!r}: default must be a value of {kind.kind}, got {shown}")


def _mismatch(written: AvroType, reader: AvroType, path: str) -> InvalidConfig:
    return InvalidConfig(
        f"{f'field {path!r}' if path else 'record'}: {_named(written)} of the writer's schema"
        f" cannot be read as {_named(reader)}"
    )


def _named(kind: AvroType) -> str:
    if pa.types.is_decimal(kind.arrow):
        return f"{kind.kind} of decimal({kind.arrow.precision},{kind.arrow.scale})"
    size = f"({kind.size})" if kind.size else ""
    return f"{kind.kind} {kind.name}{size}".rstrip() if kind.name else f"{kind.kind}{size}"


def _shown(path: str, kind: AvroType) -> str:
    return f"field {path} ({kind.arrow}): " if path else ""


def _fault(entries: Flags, reason: str) -> Sequence[ResolutionFault]:
    return [ResolutionFault(entries, reason)] if entries.any() else ()


def _nulls(values: pa.Array) -> Flags:
    return _flags(values.is_null())


def _flags(values: pa.BooleanArray) -> Flags:
    flags: Flags = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags

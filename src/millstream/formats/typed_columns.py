"""Typed columns of a topic: their names, and their values as record values."""

from __future__ import annotations

import pyarrow as pa

from millstream.errors import InvalidConfig, InvalidRecord
from millstream.formats.names import COLUMN_NAMES
from millstream.formats.value_format import ValueFormat

ERROR_COLUMN = "_error"
"""Column with the reason why a row is bad, if bad rows are kept."""

VALUE_PREFIX = "valuePrefix"
"""Option: prefix for the names of typed columns."""


def typed_fields(value_format: ValueFormat, *, prefix: str = "") -> list[pa.Field]:
    """Return the typed columns of a format.

    Raises `InvalidConfig` if two columns have the same name. Case is ignored, as Spark ignores it.
    """
    fields = [field.with_name(prefix + field.name) for field in value_format.schema]
    taken = {name.lower() for name in (*COLUMN_NAMES, ERROR_COLUMN)}
    for field in fields:
        if field.name.lower() in taken:
            raise InvalidConfig(
                f"typed column {field.name!r} has the name of another column: set the option"
                f" {VALUE_PREFIX} (now {prefix!r}) to give typed columns a prefix"
            )
        taken.add(field.name.lower())
    return fields


def encode_values(
    batch: pa.RecordBatch, value_format: ValueFormat, *, prefix: str = ""
) -> pa.BinaryArray:
    """Return the record value of each row, encoded from its typed columns, which are found by name.

    A missing column counts as null. A column of another type is cast if no value changes by that;
    otherwise raises `InvalidRecord`.
    """
    columns = []
    for field in typed_fields(value_format, prefix=prefix):
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRecord(
                f"column {field.name!r} must be of type {field.type}, got {column.type}: {error}"
            ) from None
    return value_format.encode(columns)

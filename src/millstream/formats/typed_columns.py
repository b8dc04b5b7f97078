"""The typed columns of a topic beside those that every topic has: their names, and the way back."""

from __future__ import annotations

import pyarrow as pa

from millstream.errors import InvalidConfig, InvalidRecord
from millstream.formats.names import COLUMN_NAMES
from millstream.formats.value_format import ValueFormat

ERROR_COLUMN = "_error"
"""Why a row could not be read, where such rows are kept."""

VALUE_PREFIX = "valuePrefix"
"""The option for what is put in front of the names of typed columns."""


def typed_fields(value_format: ValueFormat, *, prefix: str = "") -> list[pa.Field]:
    """Return the typed columns of a format.

    Raises `InvalidConfig` where one has the name of a column that is there already. Spark does not
    tell capitals apart, so neither does this.
    """
    fields = [field.with_name(prefix + field.name) for field in value_format.schema]
    taken = {name.lower() for name in (*COLUMN_NAMES, ERROR_COLUMN)}
    for field in fields:
        if field.name.lower() in taken:
            raise InvalidConfig(
                f"typed column {field.name!r} has the name of another column: set the option"
                f" {VALUE_PREFIX}, which is {prefix!r}, to what typed columns shall begin with"
            )
        taken.add(field.name.lower())
    return fields


def encode_values(
    batch: pa.RecordBatch, value_format: ValueFormat, *, prefix: str = ""
) -> pa.BinaryArray:
    """Return the value of each row from its typed columns, which are found by name.

    Every row gets a value. A column that is missing counts as null; one that is of another type is
    converted where no value changes by that. Raises `InvalidRecord` with the column where not.
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
                f"column {field.name!r} is of type {column.type}, declared is {field.type}: {error}"
            ) from None
    return value_format.encode(columns)

"""Arrow types of typed columns, as Spark has them.

Spark compares the schema of the batches that a source returns with the schema it expects. Names
and nullability inside lists and maps therefore have to be the ones that Spark itself chooses.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.errors import InvalidConfig

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""A point in time."""
TIMESTAMP_NTZ = pa.timestamp("us")
"""A date and a time of day without a time zone."""

PRECISION_MAX = 38


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return the type of a decimal; raises `InvalidConfig` if Spark has no such type."""
    if not (1 <= precision <= PRECISION_MAX and 0 <= scale <= precision):
        raise InvalidConfig(
            f"DECIMAL precision must be between 1 and {PRECISION_MAX} and its scale between 0 and"
            f" the precision, got DECIMAL({precision},{scale})"
        )
    return pa.decimal128(precision, scale)


def list_type(element: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of a list; `nullable` is about its elements."""
    return pa.list_(pa.field("element", element, nullable=nullable))


def map_type(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of a map; `nullable` is about its values."""
    return pa.map_(
        pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable)
    )

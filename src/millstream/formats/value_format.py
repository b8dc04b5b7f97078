"""Interface of value formats, and the format of raw values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from millstream.http1.registered_schema import RegisteredSchema

if TYPE_CHECKING:  # Processes that only read options do not load Numba.
    from millstream.records.kernels.compiler import Int64s, Octets


class TypedColumns(NamedTuple):
    """Typed columns of a batch. Each column has one row per value, in the same order."""

    columns: Sequence[pa.Array]
    """Columns of the format's schema. All are null in a row that is bad or has no value."""
    bad: Int64s
    """Row numbers of the values that could not be decoded, ascending."""
    reasons: pa.StringArray
    """The reason for each row in `bad`."""


class ValueFormat(Protocol):
    """Codec between record values and typed columns. Immutable, so threads may share one."""

    name: str
    """Name in the option and in the topic's config."""

    @property
    def schema(self) -> pa.Schema:
        """Typed columns. All are nullable, because a record may have no value."""
        ...

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """Decode all values. A value that cannot be decoded makes its own row bad, and no other.

        A null is a record without a value: not bad, and null in all columns.
        """
        ...

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Return one value per row of `columns`, which have the types of `schema`.

        Raises `InvalidRecord`, with the row, if a value is not allowed by the schema.
        """
        ...


class SchemaLookup(Protocol):
    """Schemas that values were written with, by the id in front of each: a schema registry."""

    def find(self, schema_ids: Sequence[int]) -> Mapping[int, RegisteredSchema]:
        """Return the schemas that exist; raises `Unavailable` if nobody can say."""
        ...


class RawFormat:
    """Values without a schema: no typed columns."""

    name = "raw"
    schema = pa.schema([])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:  # noqa: ARG002 - part of the protocol.
        """Return no columns; no row is bad."""
        return TypedColumns([], np.empty(0, np.int64), pa.array([], pa.string()))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Return the only column."""
        (values,) = columns
        return values.cast(pa.binary())


class ValueBuffers(NamedTuple):
    """Values as kernels read them."""

    source: Octets
    ends: Int64s
    """Value `i` is `source[ends[i] : ends[i + 1]]`."""
    is_null: Octets


def open_values(values: pa.BinaryArray) -> ValueBuffers:
    """Return the buffers of a column, without copying its bytes."""
    values = values.cast(pa.binary())
    _, offsets, data = values.buffers()
    first, count = values.offset, len(values)
    ends = (
        np.frombuffer(offsets, np.int32)[first : first + count + 1].astype(np.int64)
        if count
        else np.zeros(1, np.int64)
    )
    source = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
    is_null = values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
    return ValueBuffers(source, ends, is_null)

"""What every format of values can do, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:  # Not every process that reads options needs a compiler.
    from millstream.records.kernels.compiler import Int64s, Octets


class TypedColumns(NamedTuple):
    """The typed columns of a batch. Every column has a row for each value, in the same order."""

    columns: Sequence[pa.Array]
    """As in the format's schema. A row is null in all of them if it is bad, or has no value."""
    bad: Int64s
    """The rows that could not be read, rising."""
    reasons: pa.StringArray
    """Why, for each of them."""


class ValueFormat(Protocol):
    """How the values of a topic become typed columns, and back. A value; threads may share one."""

    name: str
    """How the option and the topic's config call it."""

    @property
    def schema(self) -> pa.Schema:
        """The typed columns. All are nullable, since a record may have no value at all."""
        ...

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """Read every value. One that cannot be read makes its own row bad and no other.

        A null is a record without a value: not bad, and null in all columns.
        """
        ...

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Return one value for each row of columns that are as in `schema`.

        Raises `InvalidRecord` with the row where there is one that the schema does not allow.
        """
        ...


class RawFormat:
    """Values of which nothing is known: no typed columns."""

    name = "raw"
    schema = pa.schema([])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:  # noqa: ARG002 - as the protocol has it.
        """Return no columns; no row is bad."""
        return TypedColumns([], np.empty(0, np.int64), pa.array([], pa.string()))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Return the one column that there is, as it is."""
        (values,) = columns
        return values.cast(pa.binary())


class ValueBuffers(NamedTuple):
    """Values as compiled loops see them."""

    source: Octets
    ends: Int64s
    """Value `i` lies from `ends[i]` to `ends[i + 1]`."""
    is_null: Octets


def open_values(values: pa.BinaryArray) -> ValueBuffers:
    """Look into the buffers of a column, without a copy of its bytes."""
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

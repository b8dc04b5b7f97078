"""Kafka's default partitioner for Arrow columns, and rows grouped by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.errors import RequestError
from millstream.records.arrow.encoder import check_type
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.murmur2 import murmur2

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Int32s: TypeAlias = NDArray[np.int32]
    Int64s: TypeAlias = NDArray[np.int64]

NO_PARTITION = -1
"""Partition of a row without a key: the writer may choose one."""

_COUNT_MAX = 2**31 - 1


class RowsByPartition(NamedTuple):
    """Row numbers grouped by partition, ascending within each."""

    rows: Int64s
    bounds: Int64s
    """Partition p has the rows from `bounds[p]` up to, not including, `bounds[p + 1]`."""

    def of(self, partition: int) -> Int64s:
        """Return the rows of one partition."""
        return self.rows[self.bounds[partition] : self.bounds[partition + 1]]


def partitions_of(keys: pa.Array, count: int) -> Int32s:
    """Return the partition of each key, out of `count`; `NO_PARTITION` for null."""
    _check_count(count)
    check_type("key", keys.type)
    partitions: Int32s = _PARTITIONS_OF.choose(len(keys))(keys, count)
    return partitions


def rows_by_partition(partitions: Int32s, count: int) -> RowsByPartition:
    """Group row numbers by partition; each partition must be less than `count`."""
    _check_count(count)
    if len(partitions) and not 0 <= partitions.min() <= partitions.max() < count:
        raise RequestError(
            f"partitions must be between 0 and {count - 1},"
            f" got {partitions.min()} to {partitions.max()}"
        )
    rows: RowsByPartition = _ROWS_BY_PARTITION.choose(len(partitions))(partitions, count)
    return rows


def partitions_python(keys: pa.Array, count: int) -> Int32s:
    """Reference in plain Python for `partitioner_vectorized.partitions`."""
    import numpy as np  # noqa: PLC0415 - an extra: the log itself does without.

    cells = (key.as_buffer() for key in keys)
    partitions = (
        NO_PARTITION if cell is None else (murmur2(bytes(cell)) & 0x7FFFFFFF) % count
        for cell in cells
    )
    return np.fromiter(partitions, np.int32, count=len(keys))


def rows_python(partitions: Int32s, count: int) -> RowsByPartition:
    """Reference without a kernel for `partitioner_vectorized.rows`."""
    import numpy as np  # noqa: PLC0415 - an extra: the log itself does without.

    rows = np.argsort(partitions, kind="stable")
    return RowsByPartition(rows, np.searchsorted(partitions[rows], np.arange(count + 1)))


def _check_count(count: int) -> None:
    if not 1 <= count <= _COUNT_MAX:
        raise RequestError(f"number of partitions must be between 1 and {_COUNT_MAX}, got {count}")


def _compiled_partitions() -> Any:
    from millstream.records.arrow.partitioner_vectorized import partitions  # noqa: PLC0415 - slow to load.

    return partitions


def _compiled_rows() -> Any:
    from millstream.records.arrow.partitioner_vectorized import rows  # noqa: PLC0415 - slow to load.

    return rows


_PARTITIONS_OF = KernelDispatch(partitions_python, _compiled_partitions)
_ROWS_BY_PARTITION = KernelDispatch(rows_python, _compiled_rows)

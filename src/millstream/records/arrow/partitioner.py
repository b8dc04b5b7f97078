"""Which partition a key goes to, as Kafka's clients in Java decide it, and rows by partition.

The hash is murmur2 in 32 bits, seeded as Kafka does; without its sign, modulo the number of
partitions. So records written here lie where those of other producers with the same key lie.
Clients built on librdkafka spread keys differently unless told to use `murmur2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.errors import RequestError
from millstream.records.arrow.encoder import check_type
from millstream.records.kernels.dispatch import KernelDispatch

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Int32s: TypeAlias = NDArray[np.int32]
    Int64s: TypeAlias = NDArray[np.int64]

NO_PARTITION = -1
"""What a row without a key gets: whoever writes it may choose."""

_COUNT_MAX = 2**31 - 1

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


class RowsByPartition(NamedTuple):
    """Row numbers, those of partition 0 first, then those of 1; in each partition they rise."""

    rows: Int64s
    bounds: Int64s
    """Partition p has the rows from `bounds[p]` to before `bounds[p + 1]`."""

    def of(self, partition: int) -> Int64s:
        """Return the rows of one partition."""
        return self.rows[self.bounds[partition] : self.bounds[partition + 1]]


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key, as 32 bits without a sign."""
    hashed = _SEED ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _UINT32
        word = (word ^ word >> 24) * _FACTOR & _UINT32
        hashed = hashed * _FACTOR & _UINT32 ^ word
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _UINT32
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _UINT32
    return hashed ^ hashed >> 15


def partitions_of(keys: pa.Array, count: int) -> Int32s:
    """Return the partition of each key, out of `count`; `NO_PARTITION` where it is null."""
    _check_count(count)
    check_type("key", keys.type)
    found: Int32s = _PARTITIONS_OF.choose(len(keys))(keys, count)
    return found


def rows_by_partition(partitions: Int32s, count: int) -> RowsByPartition:
    """Order the numbers of rows by the partition of each, which must be one of `count`."""
    _check_count(count)
    if len(partitions) and not 0 <= partitions.min() <= partitions.max() < count:
        found = f"{partitions.min()}-{partitions.max()}"
        raise RequestError(f"partitions are {found}, allowed is 0-{count - 1}")
    found_rows: RowsByPartition = _ROWS_BY_PARTITION.choose(len(partitions))(partitions, count)
    return found_rows


def partitions_python(keys: pa.Array, count: int) -> Int32s:
    """Do in plain Python what `partition_vectors.partitions` does with kernels."""
    import numpy as np  # noqa: PLC0415 - an extra: the log itself does without.

    cells = (key.as_buffer() for key in keys)
    found = (
        NO_PARTITION if cell is None else (murmur2(bytes(cell)) & 0x7FFFFFFF) % count
        for cell in cells
    )
    return np.fromiter(found, np.int32, count=len(keys))


def rows_python(partitions: Int32s, count: int) -> RowsByPartition:
    """Do without a kernel what `partition_vectors.rows` does with one."""
    import numpy as np  # noqa: PLC0415 - an extra: the log itself does without.

    rows = np.argsort(partitions, kind="stable")
    return RowsByPartition(rows, np.searchsorted(partitions[rows], np.arange(count + 1)))


def _check_count(count: int) -> None:
    if not 1 <= count <= _COUNT_MAX:
        raise RequestError(f"number of partitions is {count}, allowed is 1-{_COUNT_MAX}")


def _compiled_partitions() -> Any:
    from millstream.records.arrow.partitioner_vectorized import partitions  # noqa: PLC0415 - slow to load.

    return partitions


def _compiled_rows() -> Any:
    from millstream.records.arrow.partitioner_vectorized import rows  # noqa: PLC0415 - slow to load.

    return rows


_PARTITIONS_OF = KernelDispatch(partitions_python, _compiled_partitions)
_ROWS_BY_PARTITION = KernelDispatch(rows_python, _compiled_rows)

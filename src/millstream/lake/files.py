"""Parquet files of a lake table, with the statistics by which readers skip them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from millstream.config.schema import MIB
from millstream.lake.table import LakeFile

ROW_GROUP_BYTES = 32 * MIB
"""Bytes of rows, in memory, that become one row group."""

_TRACKED = ("partition", "offset", "timestamp")
"""Columns with statistics: those that queries select ranges of."""

_DICTIONARY = ["partition", "timestampType", "key", "headers.list.element.key"]
"""Columns whose values repeat."""


class LakeFileWriter:
    """Writes one file, row group by row group. Memory is bounded by a row group."""

    def __init__(self, filesystem: pa.fs.FileSystem, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._sink = filesystem.open_output_stream(path)
        self._parquet = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
            write_statistics=[name for name in _TRACKED if name in schema.names],
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._nulls: dict[str, int] = dict.fromkeys(_TRACKED, 0)

    @property
    def size(self) -> int:
        """Bytes that were written, without the rows that wait for their row group."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        for name in _TRACKED:
            self._track(name, rows.column(name))
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> LakeFile:
        """Finish the file."""
        self._flush()
        self._parquet.close()
        size = self.size
        self._sink.close()
        return LakeFile(self._path, size, self._statistics())

    def _flush(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_bytes = [], 0

    def _track(self, name: str, column: pa.Array) -> None:
        self._nulls[name] += column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is None:
            return
        least, most = self._ranges.get(name, (found["min"], found["max"]))
        self._ranges[name] = min(least, found["min"]), max(most, found["max"])

    def _statistics(self) -> dict[str, Any]:
        return {
            "numRecords": self._rows,
            "minValues": {name: _bound(least) for name, (least, _) in self._ranges.items()},
            "maxValues": {
                name: _bound(most, is_upper=True) for name, (_, most) in self._ranges.items()
            },
            "nullCount": self._nulls,
        }


def _bound(value: Any, *, is_upper: bool = False) -> Any:
    """Return a bound as Delta writes it: times in milliseconds, rounded away from the values."""
    if not isinstance(value, datetime.datetime):
        return value
    if is_upper and value.microsecond % 1000:
        value += datetime.timedelta(milliseconds=1)
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"


def write_files(
    filesystem: pa.fs.FileSystem,
    batches: Iterable[pa.RecordBatch],
    names: Iterator[str],
    *,
    schema: pa.Schema,
    file_bytes: int,
) -> list[LakeFile]:
    """Write rows to as many files as needed, each of about `file_bytes` at most."""
    files: list[LakeFile] = []
    writer: LakeFileWriter | None = None
    for rows in (piece for batch in batches for piece in _pieces(batch)):
        if writer is None:
            writer = LakeFileWriter(filesystem, next(names), schema)
        writer.write(rows)
        if writer.size >= file_bytes:
            files.append(writer.close())
            writer = None
    if writer is not None:
        files.append(writer.close())
    return files


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of about a row group, so that files do not become much larger."""
    count = -(-batch.nbytes // ROW_GROUP_BYTES)
    step = max(1, -(-batch.num_rows // max(1, count)))
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)

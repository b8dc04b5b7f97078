"""The history of a topic: which files of a table have which offsets, and reading them.

    version of the table ─► files with their ranges of offsets ─► rows of a partition, by range

Files of one partition have ranges of offsets that do not overlap, until a compaction of the table
has merged files of several partitions. So a file may have more than what a range asks for, and the
rows of a range are not sorted by offset then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from millstream.clients.partition import OffsetBounds
from millstream.errors import LakeError
from millstream.lake.deletions import PendingDeletion, without
from millstream.lake.table import RECORD_COLUMNS, LakeTable, open_filesystem

_OFFSET_MAX = 2**63 - 1
_BATCH_ROWS = 64 * 1024

_DECODED = {"timestampType": "timestamp_type"}
"""Columns of a table with another name among decoded records."""


class HistoryFile(NamedTuple):
    """A file of a table, and bounds of what it has."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partitions: tuple[int, int]
    """The least and the greatest one."""
    offsets: tuple[int, int]
    """The same, over all partitions of the file."""
    time_us_max: int | None
    """The greatest timestamp; `None` if it is not known."""


class PartitionHistory:
    """The files with records of one partition, by offset."""

    def __init__(self, files: Sequence[HistoryFile]) -> None:
        self._files = sorted(files, key=lambda file: file.offsets)
        self._firsts = [file.offsets[0] for file in self._files]
        self._lasts = list(accumulate((file.offsets[1] for file in self._files), max))

    @property
    def start(self) -> int | None:
        """The least offset that may be there; `None` without files."""
        return self._firsts[0] if self._firsts else None

    def between(self, start: int, end: int) -> list[HistoryFile]:
        """Return the files that may have offsets from `start` up to, not including, `end`."""
        first, last = bisect_left(self._lasts, start), bisect_left(self._firsts, end)
        return [file for file in self._files[first:last] if file.offsets[1] >= start]

    def offset_bytes(self, start: int, end: int) -> float:
        """Return the approximate bytes of an offset in a range."""
        files = self.between(start, end)
        count = sum(file.offsets[1] - file.offsets[0] + 1 for file in files)
        return sum(file.size for file in files) / count if count else 1.0


class TableHistory:
    """What one version of a table has of each partition."""

    def __init__(
        self, table: LakeTable, partitions: int, deletions: Sequence[PendingDeletion] = ()
    ) -> None:
        self.table = table
        self.deletions = tuple(deletions)
        """Those that the rows of this version do not have behind them: readers leave out more."""
        self.uri = table.uri
        self.version = table.version
        self.positions = table.positions(partitions)
        """Where the table ends and the log goes on, by partition."""
        self._starts = {number: table.start(number) for number in self.positions}
        files = _files(table)
        self._partitions = {
            number: PartitionHistory(
                [file for file in files if file.partitions[0] <= number <= file.partitions[1]]
            )
            for number in self.positions
        }

    def start(self, partition: int) -> int:
        """Return the first offset that was written to the table, or that it has."""
        start = self._starts[partition]
        if start is None:  # Of a table that an older release has begun.
            start = self._partitions[partition].start
        return self.positions[partition] if start is None else start

    def files(self, partition: int, start: int, end: int) -> tuple[str, ...]:
        """Return the paths of the files that may have offsets of a range."""
        return tuple(file.path for file in self._partitions[partition].between(start, end))

    def offset_bytes(self, partition: int, start: int, end: int) -> float:
        """Return the approximate bytes of an offset in a range."""
        return self._partitions[partition].offset_bytes(start, end)

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset with this timestamp or a later one; `None` if there is none."""
        found: int | None = None
        time_us = timestamp_ms * 1000
        for file in self._partitions[partition].between(0, self.positions[partition]):
            if found is not None and file.offsets[0] >= found:
                break
            # Statistics have milliseconds, and some writers round them down.
            if file.time_us_max is not None and file.time_us_max + 1000 < time_us:
                continue
            rows = _scanned(
                self.uri,
                (file.path,),
                ["offset", "timestamp"],
                pc.field("partition") == partition,
            )
            for batch in rows:
                late = pc.greater_equal(batch.column("timestamp").cast(pa.int64()), time_us)
                first = pc.min(batch.filter(late).column("offset")).as_py()
                if first is not None and (found is None or first < found):
                    found = first
        return found


def history_rows(
    uri: str,
    files: Sequence[str],
    partition: int,
    offsets: OffsetBounds,
    *,
    columns: Sequence[str],
    deletions: Sequence[PendingDeletion] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, as `arrow_batches` yields the records of a log.

    `columns` are names of decoded records. Timestamps are in milliseconds.
    """
    stored = {_DECODED.get(name, name): name for name in RECORD_COLUMNS.names}
    wanted = pc.field("partition") == partition
    offset = pc.field("offset")
    within = wanted & (offset >= offsets.start) & (offset < offsets.end)
    is_kept = without(deletion for deletion in deletions if deletion.partition == partition)
    if is_kept is not None:
        within &= is_kept
    names = [stored[name] for name in columns]
    for batch in _scanned(uri, files, names, within):
        if batch.num_rows:
            arrays = [_decoded(batch.column(name)) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pc.divide(column.cast(pa.int64()), 1000)
    return column


def _scanned(
    uri: str, files: Sequence[str], columns: Sequence[str], condition: pc.Expression
) -> Iterator[pa.RecordBatch]:
    if not files:
        return
    try:
        dataset = pyarrow.dataset.dataset(
            list(files), schema=RECORD_COLUMNS, filesystem=open_filesystem(uri), format="parquet"
        )
        yield from dataset.to_batches(
            columns=list(columns), filter=condition, batch_size=_BATCH_ROWS, batch_readahead=2
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise LakeError(
            f"files of {uri} cannot be read: {error}; if a vacuum has removed them since the query"
            " was planned, run it again"
        ) from error


def _files(table: LakeTable) -> list[HistoryFile]:
    """Return the files of a table. What has no statistics may have anything."""
    actions = table.file_actions()
    return [
        HistoryFile(
            path,
            size,
            _or(rows, 0),
            (_or(first_partition, 0), _or(last_partition, _OFFSET_MAX)),
            (_or(first, 0), _or(last, _OFFSET_MAX)),
            time_max,
        )
        for path, size, rows, first_partition, last_partition, first, last, time_max in zip(
            _column(actions, "path"),
            _column(actions, "size_bytes"),
            _column(actions, "num_records"),
            _column(actions, "min.partition"),
            _column(actions, "max.partition"),
            _column(actions, "min.offset"),
            _column(actions, "max.offset"),
            _column(actions, "max.timestamp"),
            strict=True,
        )
    ]


def _column(actions: pa.Table, name: str) -> list[Any]:
    if name not in actions.schema.names:
        return [None] * actions.num_rows
    column = actions.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _or(value: int | None, default: int) -> int:
    return default if value is None else value

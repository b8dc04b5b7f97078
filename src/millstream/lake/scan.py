"""Union reads: the history of a topic from its lake table, the rest from its log.

    version of the table ─► positions ─┬─► rows of that version          (offsets before)
                                       └─► records of the log from there (offsets after)

Both parts are fixed when the scan is made: one version of the table, and the end of the log then.
So no record is missing and none is there twice, whatever is written, compacted or deleted
meanwhile; what cannot be read any more raises an error. A scan can be read several times.

    with scan("orders", table="./lake/orders", bootstrap="127.0.0.1:9092") as orders:
        orders.polars().group_by("key").len().collect()
        orders.duckdb().sql("SELECT count(*) FROM orders").show()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.dataset

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import OffsetBounds, RecordSource
from millstream.config.schema import MIB
from millstream.errors import DataLost, InvalidRequest
from millstream.lake.deletions import TopicDeletions, without
from millstream.lake.table import LakeTable
from millstream.lake.topic_log import TopicLog, open_log
from millstream.lake.topic_table import table_of
from millstream.records.topic_partition import TopicPartition

if TYPE_CHECKING:
    import duckdb
    import polars

TAIL_BYTES_MAX = 1024 * MIB
"""Bytes of the log that `dataset` holds in memory. A lake that is written often has far less."""


class LakeScan:
    """One version of a table, and the records of the log after it."""

    def __init__(
        self,
        source: RecordSource,
        topic: str,
        table: LakeTable,
        *,
        tail_bytes_max: int = TAIL_BYTES_MAX,
    ) -> None:
        self._source = source
        self._log: TopicLog = open_log(source, topic)
        self._table = table
        self._tail_bytes_max = tail_bytes_max
        table.check_topic(topic, self._log.topic.id)
        bounds = self._log.bounds()
        self.positions: Mapping[int, int] = table.positions(self._log.topic.partitions)
        """Where the table ends and the log goes on, by partition."""
        self.tail: dict[int, OffsetBounds] = {}
        """Offsets that are read from the log."""
        for number, (first, last) in bounds.items():
            start = self.positions.get(number, first)
            self._log.check_start(number, start, OffsetBounds(first, last))
            self.tail[number] = OffsetBounds(start, last)
        self._is_kept = without(TopicDeletions(source, topic).pending(table))
        self.schema = pa.unify_schemas([table.schema, self._log.schema])
        """Columns of both. Typed columns that the table does not have yet are null in its rows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the node. Datasets and frames of the scan stay valid."""
        self._source.close()

    @property
    def version(self) -> int:
        """Version of the table that is read."""
        return self._table.version

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return all rows as a stream, in bounded memory: history first, then the log."""
        wanted = self.schema if columns is None else _selected(self.schema, columns)

        def batches() -> Iterator[pa.RecordBatch]:
            known = [name for name in wanted.names if name in self._table.schema.names]
            for batch in self._table.dataset().to_batches(columns=known, filter=self._is_kept):
                yield _fitted(batch, wanted)
            for batch in self._tail_rows():
                yield _fitted(batch, wanted)

        return pa.RecordBatchReader.from_batches(wanted, batches())

    def dataset(self) -> pa.dataset.Dataset:
        """Return all rows as a dataset of Arrow, with the log after the table in memory.

        Raises `InvalidRequest` if the log after the table is too large for that.
        """
        sizes = self._source.offset_bytes(
            {
                TopicPartition(self._log.topic.name, number): bounds
                for number, bounds in self.tail.items()
                if bounds.start < bounds.end
            }
        )
        total = sum(
            size * (self.tail[partition.partition].end - self.tail[partition.partition].start)
            for partition, size in sizes.items()
        )
        if total > self._tail_bytes_max:
            raise InvalidRequest(
                f"the log after the table has about {total / MIB:.0f} MiB, limit is"
                f" {self._tail_bytes_max / MIB:.0f}: write the lake first, or use reader()"
            )
        tail = pa.Table.from_batches(
            [_fitted(batch, self.schema) for batch in self._tail_rows()], self.schema
        )
        history = self._table.dataset().replace_schema(self.schema)
        rows = pyarrow.dataset.dataset([history, pyarrow.dataset.dataset(tail)])
        return rows if self._is_kept is None else rows.filter(self._is_kept)

    def polars(self) -> polars.LazyFrame:
        """Return all rows as a lazy frame of Polars, which skips files by its filters."""
        import polars as pl  # noqa: PLC0415 - optional.

        return pl.scan_pyarrow_dataset(self.dataset())

    def duckdb(self, name: str | None = None) -> duckdb.DuckDBPyConnection:
        """Return a connection of DuckDB with all rows as a table, by default under its topic."""
        import duckdb  # noqa: PLC0415 - optional.

        connection = duckdb.connect()
        connection.register(name or self._log.topic.name, self.dataset())
        return connection

    def _tail_rows(self) -> Iterator[pa.RecordBatch]:
        for number, (start, end) in self.tail.items():
            if start < end:
                yield from self._log.rows(number, start, end)


def scan(
    topic: str,
    *,
    table: str | None = None,
    bootstrap: str = "127.0.0.1:9092",
    version: int | None = None,
    **client: Any,
) -> LakeScan:
    """Read a topic as one table: history from the lake, the rest from the log.

    `table` is by default the one in the config of the topic. `client` are further arguments of
    `KafkaClient`, such as `security`.
    """
    source = KafkaClient(bootstrap, **client)
    try:
        opened = LakeTable.open(table_of(source, topic, table), version=version)
        while True:
            try:
                return LakeScan(source, topic, opened)
            except DataLost:
                # Unless the lake was written, and retention went on, since the table was opened.
                newest = LakeTable.open(opened.uri)
                if version is not None or newest.version == opened.version:
                    raise
                opened = newest
    except BaseException:
        source.close()
        raise


def _selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    if unknown := [name for name in columns if name not in schema.names]:
        raise InvalidRequest(f"columns must be some of {schema.names}, got {unknown}")
    return pa.schema([schema.field(name) for name in columns])


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`; those that a batch does not have are null."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

"""Task of a sink: writes rows as batches of a transaction of its own.

Readers of committed records do not see a task's records before the driver has published them. Of a
repeated task, only the attempt that Spark reports is published (`writer.py`). A task that fails
aborts its transaction: the driver may not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import MIB
from millstream.errors import InvalidRecord, MillstreamError
from millstream.formats.typed_columns import encode_values
from millstream.spark.catalog import read_only_columns
from millstream.spark.options import WriteOptions
from millstream.spark.topic_values import TopicValues
from millstream.spark.write.row_sender import RowSender
from millstream.spark.write.sink_schema import part_of
from millstream.spark.write.task_transaction import TaskTransaction

logger = logging.getLogger(__name__)

GATHERED_BYTES_MAX = 16 * MIB
"""Bytes of rows encoded together: enough that each partition of a topic gets full batches."""


def write_rows(
    node: KafkaClient,
    rows: Iterable[pa.RecordBatch],
    *,
    transactional_id: str,
    options: WriteOptions,
    values: TopicValues,
) -> TaskTransaction | None:
    """Write rows in one transaction and leave it open; return `None` if there are no rows.

    If that fails, the transaction is aborted.
    """
    sender: RowSender | None = None
    value_format = values.format() if values.is_typed else None
    try:
        for merged in merge_batches(rows):
            given = _insertable(merged, options.topic) if options.is_table else merged
            table = _as_parts(given, is_typed=values.is_typed)
            if sender is None:
                sender = RowSender(
                    node,
                    transactional_id,
                    timeout_ms=min(options.transaction_lease_ms, options.transaction_timeout_ms),
                    codec=options.codec,
                    batch_bytes=options.batch_bytes,
                )
            if value_format is not None and "value" not in table.schema.names:
                encoded = encode_values(table, value_format, prefix=options.value.prefix)
                table = table.append_column("value", encoded)
            for topic, part in _by_topic(table, options.topic):
                sender.send(topic, part)
        if sender is None:
            return None
        sender.finish()
    except BaseException:  # Also the end of the process that Spark asks for.
        if sender is not None:
            _abort(sender)
        raise
    return TaskTransaction(transactional_id, sender.producer.identity, sender.count)


def _abort(sender: RowSender) -> None:
    """Abort the transaction of a task that failed; if that is not possible, it expires."""
    try:
        sender.abort()
    except MillstreamError as error:
        logger.warning("the transaction of a failed task could not be aborted: %s", error)


def _insertable(table: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Return rows of a table without columns that have no meaning in an INSERT, and are null."""
    left_out = read_only_columns(table.schema.names)
    for name in left_out:
        if table.column(name).null_count < table.num_rows:
            raise InvalidRecord(
                f"column {name} of a table cannot be written, and must be null: name the columns"
                " to insert, as in INSERT INTO orders (key, value) SELECT ..."
            )
    if topic is not None and "topic" in table.schema.names:
        others = (
            table.column("topic")
            .drop_null()
            .filter(pc.not_equal(table.column("topic").drop_null(), topic))
        )
        if len(others):
            raise InvalidRecord(
                f"a row has topic {others[0].as_py()!r}, and the table writes to topic {topic!r}:"
                " leave topic out of the columns to insert"
            )
    return table.drop_columns(left_out)


def _as_parts(table: pa.RecordBatch, *, is_typed: bool) -> pa.RecordBatch:
    """Return rows with the names of the parts of a record."""
    names = [part_of(name, is_typed=is_typed) for name in table.schema.names]
    return table if names == table.schema.names else table.rename_columns(names)


def merge_batches(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches of rows."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        pending.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES_MAX:
            yield pa.concat_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_batches(pending)


def _by_topic(table: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic."""
    if "topic" not in table.schema.names:
        assert default is not None, "checked when the write was planned"
        yield default, table
        return
    topics = table.column("topic")
    if topics.null_count:
        if default is None:
            raise InvalidRecord(
                f"{topics.null_count} rows have no topic, and the option topic is not set"
            )
        topics = topics.fill_null(default)
    for topic in topics.unique().to_pylist():
        yield topic, table.filter(pc.equal(topics, topic))

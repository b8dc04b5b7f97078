"""Rows to records: each to its partition, in batches that kernels build.

A partition is the one that the row says; else what Kafka's own clients would choose for its key;
else each in turn.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.clock import Clock, SystemClock
from millstream.errors import InvalidRecord
from millstream.records.arrow.encoder import RecordColumns, encode_batches
from millstream.records.arrow.partitioner import partitions_of, rows_by_partition
from millstream.records.compression import Codec
from millstream.spark.options import BATCH_BYTES


class RowSender:
    """Sends rows through one producer: in a transaction, if it has an id for that."""

    def __init__(
        self,
        node: KafkaClient,
        transactional_id: str | None,
        *,
        timeout_ms: int,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._is_transactional = transactional_id is not None
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._clock = clock or SystemClock()
        self.producer = TransactionalProducer(node, transactional_id, timeout_ms=timeout_ms)
        self.count = 0
        """How many rows were sent."""

    def send(self, topic: str, table: pa.RecordBatch) -> None:
        """Send rows to a topic; returns before they are acknowledged."""
        count = self._node.ensure_topic(topic).partitions
        columns = _columns(table)
        places = _partitions(table, columns, topic, count, first_turn=self.count)
        rows = rows_by_partition(places, count)
        for partition in np.unique(places):
            self._send(topic, int(partition), columns, rows.of(partition))
        self.count += table.num_rows

    def _send(
        self, topic: str, partition: int, columns: RecordColumns, rows: NDArray[np.int64]
    ) -> None:
        producer_id, producer_epoch = self.producer.identity
        for batch in encode_batches(
            columns,
            rows=rows,
            now_ms=self._clock.wall_ms(),
            size_max=self._batch_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self.producer.next_sequence(topic, partition),
            is_transactional=self._is_transactional,
            codec=self._codec,
        ):
            self.producer.send(topic, partition, batch.data, batch.record_count)

    def finish(self) -> None:
        """Return when all rows are safe. A transaction stays open."""
        self.producer.flush()
        self.producer.close()


def _columns(table: pa.RecordBatch) -> RecordColumns:
    found = {name: table.column(name) for name in table.schema.names}
    timestamps = found.get("timestamp")
    if timestamps is not None and pa.types.is_timestamp(timestamps.type):
        timestamps = pc.divide(timestamps.cast(pa.int64()), 1000)
    return RecordColumns(
        key=found.get("key"),
        value=found.get("value"),
        headers=found.get("headers"),
        timestamp=timestamps,
    )


def _partitions(
    table: pa.RecordBatch, columns: RecordColumns, topic: str, count: int, *, first_turn: int
) -> NDArray[np.int32]:
    """Return where each row goes: where it says, else by its key, else to all in turn."""
    chosen = np.full(table.num_rows, -1, np.int32)
    if "partition" in table.schema.names:
        said = table.column("partition")
        chosen = said.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        is_said = said.is_valid().to_numpy(zero_copy_only=False)
        if (wrong := is_said & ((chosen < 0) | (chosen >= count))).any():
            raise InvalidRecord(
                f"a row goes to partition {chosen[wrong.argmax()]}, {topic} has 0 to {count - 1}"
            )
    if columns.key is not None:
        chosen = np.where(chosen < 0, partitions_of(columns.key, count), chosen)
    if (keyless := chosen < 0).any():
        chosen[keyless] = (np.arange(keyless.sum()) + first_turn) % count
    return chosen

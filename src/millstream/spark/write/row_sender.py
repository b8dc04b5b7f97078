"""Sender of rows as records: assigns partitions and builds batches with kernels.

The partition of a row is its column `partition`; without one, the partition that Kafka's clients
choose for its key; without a key, the partitions take turns. A sender asks once for the partitions
of a topic, so that new ones are used by the next task. Its turns begin at a partition that follows
from its producer id and epoch, which change with every task and micro-batch: small writes are
spread too.
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
    """Sends rows through one producer, in a transaction if it has a transactional id."""

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
        """Number of rows sent."""
        self._partition_counts: dict[str, int] = {}

    def send(self, topic: str, table: pa.RecordBatch) -> None:
        """Send rows to a topic, without waiting for acknowledgement."""
        count = self._partition_count(topic)
        columns = _columns(table)
        first_turn = sum(self.producer.identity) + self.count
        partitions = _partitions(table, columns, topic, count, first_turn=first_turn)
        rows = rows_by_partition(partitions, count)
        for partition in np.unique(partitions):
            self._send(topic, int(partition), columns, rows.of(partition))
        self.count += table.num_rows

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            described = self._node.ensure_topic(topic, is_fresh=True)
            self._partition_counts[topic] = described.partitions
        return self._partition_counts[topic]

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
        """Wait until all rows are acknowledged. A transaction stays open."""
        self.producer.flush()
        self.producer.close()

    def abort(self) -> None:
        """Abort the transaction, if it is open."""
        try:
            self.producer.abort()
        finally:
            self.producer.close()


def _columns(table: pa.RecordBatch) -> RecordColumns:
    columns = {name: table.column(name) for name in table.schema.names}
    timestamps = columns.get("timestamp")
    if timestamps is not None and pa.types.is_timestamp(timestamps.type):
        timestamps = pc.divide(timestamps.cast(pa.int64()), 1000)
    return RecordColumns(
        key=columns.get("key"),
        value=columns.get("value"),
        headers=columns.get("headers"),
        timestamp=timestamps,
    )


def _partitions(
    table: pa.RecordBatch, columns: RecordColumns, topic: str, count: int, *, first_turn: int
) -> NDArray[np.int32]:
    """Return the partition of each row: as given, else by key, else in turn."""
    chosen = np.full(table.num_rows, -1, np.int32)
    if "partition" in table.schema.names:
        given_partitions = table.column("partition")
        chosen = given_partitions.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        is_given = given_partitions.is_valid().to_numpy(zero_copy_only=False)
        if (invalid := is_given & ((chosen < 0) | (chosen >= count))).any():
            raise InvalidRecord(
                f"partition of a row for topic {topic} must be between 0 and {count - 1}, got"
                f" {chosen[invalid.argmax()]}"
            )
    if columns.key is not None:
        chosen = np.where(chosen < 0, partitions_of(columns.key, count), chosen)
    if (keyless := chosen < 0).any():
        chosen[keyless] = (np.arange(keyless.sum()) + first_turn) % count
    return chosen

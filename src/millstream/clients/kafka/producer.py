"""Producer of whole batches: idempotent, and transactional if it has a transactional id.

producer = TransactionalProducer(client, "orders/7/0", timeout_ms=60_000)
batch = build_batch(records, now_ms=..., is_transactional=True,
                    producer_id=producer.identity.producer_id,
                    producer_epoch=producer.identity.producer_epoch,
                    base_sequence=producer.next_sequence("orders", 7))
producer.send("orders", 7, batch, len(records))
producer.commit()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from millstream.clients.kafka.batch_sender import BatchSender
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.coordinator import (
    ClientProducerId,
    TransactionProtocol,
    add_partition,
    end_transaction,
    init_producer,
)
from millstream.clients.kafka.deadline import Deadline
from millstream.errors import CorruptBatch, InvalidBatch, InvalidConfig, InvalidRequest
from millstream.records.batch import Bytes, decode_header
from millstream.records.topic_partition import TopicPartition

IN_FLIGHT_MAX: Final = 5
"""Number of recent batches of a producer that a node can recognise as repeated, as in Kafka."""

_SEQUENCE_COUNT = 2**31
_PRODUCE_VERSION_BEFORE_JOINING = 11


class TransactionalProducer:
    """One producer, for one thread. With `transactional_id=None`, an idempotent one.

    With an id, earlier producers of that id are fenced when this one is created. The first `send`
    begins a transaction; `commit` or `abort` ends it, and the next `send` begins another. A batch
    is built with the current `identity` and `next_sequence`; both may change when a transaction
    ends.

    Permanent errors (`ProducerFenced`, `InvalidProducerEpoch`, `OutOfOrderSequence` and similar)
    are raised by the call that sees them and by all later ones, up to `abort`.
    """

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str | None,
        *,
        timeout_ms: int,
        in_flight_max: int = IN_FLIGHT_MAX,
        on_acknowledged: Callable[[TopicPartition, int], None] | None = None,
    ) -> None:
        """Get a producer id from the node.

        `on_acknowledged` is called for each batch, in the order of its partition, with its first
        offset. That is -1 (`batch_sender.NO_OFFSET`) if the node does not remember it.
        """
        if not 1 <= in_flight_max <= IN_FLIGHT_MAX:
            raise InvalidConfig(
                f"in_flight_max must be between 1 and {IN_FLIGHT_MAX}, got {in_flight_max}"
            )
        self._cluster = client.cluster
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._sequences: dict[TopicPartition, int] = {}
        self._is_open = False
        self._identity, self._protocol = init_producer(
            self._cluster, transactional_id, timeout_ms=timeout_ms
        )
        joins_by_produce = (
            transactional_id is None or self._protocol is TransactionProtocol.EPOCH_EACH
        )
        self._sender = BatchSender(
            self._cluster,
            transactional_id=transactional_id,
            in_flight_max=in_flight_max,
            version_max=None if joins_by_produce else _PRODUCE_VERSION_BEFORE_JOINING,
            before_first=self._join,
            on_acknowledged=on_acknowledged,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> ClientProducerId:
        """Producer id and epoch for the next batch."""
        return self._identity

    def next_sequence(self, topic: str, partition: int) -> int:
        """Return the base sequence of the next batch to a partition."""
        return self._sequences.get(TopicPartition(topic, partition), 0)

    def send(self, topic: str, partition: int, batch: Bytes, record_count: int) -> None:
        """Send one batch without waiting for its acknowledgement; `flush` waits.

        The batch is not copied: the caller must not change it until `flush`, `commit` or `abort`
        returns, because it may have to be sent again.
        """
        topic_partition = TopicPartition(topic, partition)
        data = memoryview(batch).cast("B")
        self._check_batch(topic_partition, data, record_count)
        self._is_open = self._transactional_id is not None
        self._sender.send(topic_partition, data)
        sequence = self.next_sequence(topic, partition)
        self._sequences[topic_partition] = (sequence + record_count) % _SEQUENCE_COUNT

    def flush(self) -> None:
        """Wait until all batches are acknowledged. They are durable, but not committed."""
        self._sender.flush()

    def commit(self) -> None:
        """Commit the transaction; returns when the decision is durable."""
        transactional_id = self._id()
        self._sender.flush()
        if not self._is_open:
            return
        self._start_next(
            end_transaction(
                self._cluster, transactional_id, self._identity, self._protocol, is_commit=True
            )
        )

    def abort(self) -> None:
        """Abort the transaction. The producer can be used again, even after an error."""
        transactional_id = self._id()
        self._sender.settle()
        if not self._is_open:
            return
        if self._protocol is TransactionProtocol.EPOCH_EACH:
            identity = end_transaction(
                self._cluster, transactional_id, self._identity, self._protocol, is_commit=False
            )
        else:
            # It is unknown which sequence numbers arrived. This aborts the transaction, and
            # sequences of the new epoch start at 0.
            identity, _ = init_producer(
                self._cluster,
                transactional_id,
                timeout_ms=self._timeout_ms,
                current=self._identity,
            )
        self._start_next(identity)

    def close(self) -> None:
        """Release the connections.

        An open transaction stays open until its timeout: another process may publish it.
        """
        self._sender.close()

    def _id(self) -> str:
        if self._transactional_id is None:
            raise InvalidRequest("a producer without a transactional id has no transactions")
        return self._transactional_id

    def _start_next(self, identity: ClientProducerId) -> None:
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()
        self._is_open = False
        self._sender.reset()

    def _join(self, partition: TopicPartition, deadline: Deadline) -> None:
        if self._transactional_id is not None and self._protocol is TransactionProtocol.EPOCH_KEPT:
            add_partition(
                self._cluster, self._transactional_id, self._identity, partition, deadline
            )

    def _check_batch(self, partition: TopicPartition, data: memoryview, record_count: int) -> None:
        """Raise for a batch that the node would reject or mistake for another."""
        try:
            header = decode_header(data)
        except CorruptBatch as error:
            raise InvalidBatch(f"{partition}: {error}") from None
        actual = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset_delta + 1,
            header.is_transactional,
        )
        expected = (
            *self._identity,
            self.next_sequence(*partition),
            record_count,
            self._transactional_id is not None,
        )
        if actual != expected or header.size != len(data):
            raise InvalidBatch(
                f"{partition}: batch of {len(data)} bytes has the size {header.size} in its header;"
                " its producer id, epoch, sequence, record count and transactional flag are"
                f" {actual}, expected {expected}"
            )

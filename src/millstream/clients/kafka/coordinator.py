"""Requests of a producer to its transaction coordinator. All of them may be repeated."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.retry import raise_for_code
from millstream.protocols.kafka.messages.produce import ProduceRequest
from millstream.protocols.kafka.messages.producers import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.protocols.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
)
from millstream.records.topic_partition import TopicPartition

NO_PRODUCER: Final = -1

_FEATURE = "transaction.version"
_FEATURE_LEVEL = 2
_PRODUCE_JOINS_SINCE = 12
_END_BUMPS_SINCE = 5
_END_MAX_BEFORE_BUMP = 4
_ADD_MAX = 3
"""Newest version of AddPartitionsToTxn for clients; later ones are for brokers only."""


class ClientProducerId(NamedTuple):
    """Producer id and epoch, as in each of its batches."""

    producer_id: int
    producer_epoch: int


class TransactionProtocol(enum.Enum):
    """Version of the transaction protocol that a cluster uses."""

    EPOCH_EACH = "epoch each"
    """A produce request adds its partition; each transaction has its own epoch (KIP-890)."""
    EPOCH_KEPT = "epoch kept"
    """Partitions are added before batches are sent; the epoch stays. Kafka before 4.0."""


def init_producer(
    cluster: KafkaCluster,
    transactional_id: str | None,
    *,
    timeout_ms: int,
    current: ClientProducerId | None = None,
) -> tuple[ClientProducerId, TransactionProtocol]:
    """Return the producer id to use from now on, and the transaction protocol of the cluster.

    With a transactional id, earlier producers with the same id are fenced and their open
    transaction is aborted.
    """
    producer_id, epoch = current or (NO_PRODUCER, NO_PRODUCER)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )

    def attempt(deadline: Deadline) -> tuple[ClientProducerId, TransactionProtocol]:
        address = (
            cluster.controller(deadline)  # Any node would do.
            if transactional_id is None
            else cluster.coordinator(transactional_id, deadline)
        )
        with cluster.borrow(address, deadline) as connection:
            answer: InitProducerIdResponse = connection.call(request, deadline=deadline)
            raise_for_code(
                answer.error_code, f"{address} on initialising producer {transactional_id!r}"
            )
            return ClientProducerId(answer.producer_id, answer.producer_epoch), _protocol_of(
                connection
            )

    return cluster.call_with_retries(attempt)


def add_partition(
    cluster: KafkaCluster,
    transactional_id: str,
    identity: ClientProducerId,
    partition: TopicPartition,
    deadline: Deadline,
) -> None:
    """Add a partition to the transaction, if produce requests do not do that."""
    address = cluster.coordinator(transactional_id, deadline)
    topic = AddPartitionsToTxnRequestTopic(name=partition.topic, partitions=(partition.partition,))
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=(topic,),
    )
    with cluster.borrow(address, deadline) as connection:
        answer: AddPartitionsToTxnResponse = connection.call(
            request, version_max=_ADD_MAX, deadline=deadline
        )
        for result in answer.results_by_topic_v3_and_below:
            for part in result.results_by_partition:
                raise_for_code(
                    part.partition_error_code, f"{address} on adding {partition} to a transaction"
                )


def end_transaction(
    cluster: KafkaCluster,
    transactional_id: str,
    identity: ClientProducerId,
    protocol: TransactionProtocol,
    *,
    is_commit: bool,
) -> ClientProducerId:
    """Commit or abort; return the producer id of the next transaction."""
    bumps_epoch = protocol is TransactionProtocol.EPOCH_EACH
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=is_commit,
    )
    version_max = None if bumps_epoch else _END_MAX_BEFORE_BUMP

    def attempt(deadline: Deadline) -> EndTxnResponse:
        address = cluster.coordinator(transactional_id, deadline)
        wanted = "committing" if is_commit else "aborting"
        with cluster.borrow(address, deadline) as connection:
            answer: EndTxnResponse = connection.call(
                request, version_max=version_max, deadline=deadline
            )
            raise_for_code(
                answer.error_code, f"{address} on {wanted} a transaction of {transactional_id!r}"
            )
            return answer

    answer = cluster.call_with_retries(attempt)
    return ClientProducerId(answer.producer_id, answer.producer_epoch) if bumps_epoch else identity


def _protocol_of(connection: BrokerConnection) -> TransactionProtocol:
    bumps_epoch = (
        connection.features.get(_FEATURE, 0) >= _FEATURE_LEVEL
        and connection.supports(EndTxnRequest, version_min=_END_BUMPS_SINCE)
        and connection.supports(ProduceRequest, version_min=_PRODUCE_JOINS_SINCE)
    )
    return TransactionProtocol.EPOCH_EACH if bumps_epoch else TransactionProtocol.EPOCH_KEPT

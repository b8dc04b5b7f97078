"""What a producer asks the coordinator of its transactions. All of it may be repeated."""

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
_JOINING_PRODUCE_SINCE = 12
_BUMPING_END_SINCE = 5
_END_MAX_BEFORE = 4
_ADD_MAX = 3
"""Version of AddPartitionsToTxn from which on nodes alone use it."""


class ClientProducerId(NamedTuple):
    """Who a producer is; every batch of it says so."""

    producer_id: int
    producer_epoch: int


class TransactionProtocol(enum.Enum):
    """How a cluster runs transactions."""

    EPOCH_EACH = "epoch each"
    """A batch adds its partition, and every transaction has an epoch of its own (KIP-890)."""
    EPOCH_KEPT = "epoch kept"
    """Partitions are added before batches are sent; the epoch stays. Kafka before 4.0."""


def init_producer(
    cluster: KafkaCluster,
    transactional_id: str | None,
    *,
    timeout_ms: int,
    present: ClientProducerId | None = None,
) -> tuple[ClientProducerId, TransactionProtocol]:
    """Return who the producer is from now on, and how transactions run here.

    With a transactional id, whoever had it before is fenced, and what it left open aborted.
    """
    producer_id, epoch = present or (NO_PRODUCER, NO_PRODUCER)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )

    def ask(deadline: Deadline) -> tuple[ClientProducerId, TransactionProtocol]:
        address = (
            cluster.controller(deadline)  # Any node would do.
            if transactional_id is None
            else cluster.coordinator(transactional_id, deadline)
        )
        with cluster.lent(address, deadline) as connection:
            answer: InitProducerIdResponse = connection.call(request, deadline=deadline)
            raise_for_code(
                answer.error_code, f"{address} on initialising producer {transactional_id!r}"
            )
            return ClientProducerId(answer.producer_id, answer.producer_epoch), _protocol_of(
                connection
            )

    return cluster.retrying(ask)


def add_partition(
    cluster: KafkaCluster,
    transactional_id: str,
    identity: ClientProducerId,
    where: TopicPartition,
    deadline: Deadline,
) -> None:
    """Make a partition part of the transaction, where batches do not do that themselves."""
    address = cluster.coordinator(transactional_id, deadline)
    topic = AddPartitionsToTxnRequestTopic(name=where.topic, partitions=(where.partition,))
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=(topic,),
    )
    with cluster.lent(address, deadline) as connection:
        answer: AddPartitionsToTxnResponse = connection.call(
            request, version_max=_ADD_MAX, deadline=deadline
        )
        for found in answer.results_by_topic_v3_and_below:
            for part in found.results_by_partition:
                raise_for_code(
                    part.partition_error_code, f"{address} on adding {where} to a transaction"
                )


def end_transaction(
    cluster: KafkaCluster,
    transactional_id: str,
    identity: ClientProducerId,
    protocol: TransactionProtocol,
    *,
    is_commit: bool,
) -> ClientProducerId:
    """Commit or abort; return who the producer is in its next transaction."""
    is_bumping = protocol is TransactionProtocol.EPOCH_EACH
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=is_commit,
    )
    version_max = None if is_bumping else _END_MAX_BEFORE

    def ask(deadline: Deadline) -> EndTxnResponse:
        address = cluster.coordinator(transactional_id, deadline)
        wanted = "committing" if is_commit else "aborting"
        with cluster.lent(address, deadline) as connection:
            answer: EndTxnResponse = connection.call(
                request, version_max=version_max, deadline=deadline
            )
            raise_for_code(
                answer.error_code, f"{address} on {wanted} a transaction of {transactional_id!r}"
            )
            return answer

    answer = cluster.retrying(ask)
    return ClientProducerId(answer.producer_id, answer.producer_epoch) if is_bumping else identity


def _protocol_of(connection: BrokerConnection) -> TransactionProtocol:
    is_each = (
        connection.features.get(_FEATURE, 0) >= _FEATURE_LEVEL
        and connection.speaks(EndTxnRequest, version_min=_BUMPING_END_SINCE)
        and connection.speaks(ProduceRequest, version_min=_JOINING_PRODUCE_SINCE)
    )
    return TransactionProtocol.EPOCH_EACH if is_each else TransactionProtocol.EPOCH_KEPT

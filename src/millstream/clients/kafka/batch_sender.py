"""Delivery of batches to partition leaders: in order, pipelined, with retries.

    waiting ──► connection of the leader, at most `in_flight_max` ──► acknowledged
       ▲                        │
       └── connection lost, or a retriable error: all batches in flight on it, in order

Rules:

1. Batches of a partition are sent, and sent again, in the order in which they came. The node
   detects repeated ones by their sequence numbers.
2. A partition stays on its connection until that is lost. Otherwise a batch could overtake the one
   before it when the leader moves.
3. The first batch of a partition is sent alone. If the node refused it temporarily, it would take
   the second one for the first, because it does not know the producer yet.
4. If a partition gets no acknowledgement for the client's timeout, the delivery fails; each
   acknowledgement restarts the time.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from millstream.clients.kafka.address import BrokerAddress
from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.retry import Backoff, RetriableError, raise_for_code
from millstream.errors import MalformedAnswer, MillstreamError, NodeUnreachable, UnknownTopicId
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from millstream.records.topic_partition import TopicPartition

NO_OFFSET: Final = -1
"""Offset of an acknowledged batch that the node did not tell."""

_ALL: Final = -1  # Acknowledged by all in-sync replicas.
_TOPIC_ID_SINCE: Final = 13


class _Batch(NamedTuple):
    partition: TopicPartition
    data: memoryview


class _Stall(NamedTuple):
    """Deadline and backoff of a partition that makes no progress."""

    deadline: Deadline
    backoff: Backoff


class _LeaderConnection:
    """Connection to a leader, and the batches in flight on it."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.in_flight: deque[_Batch] = deque()
        self.is_lost = False

    def send(
        self, batch: _Batch, request: ProduceRequest, version_max: int | None, deadline: Deadline
    ) -> None:
        self.is_lost = True  # Until the call succeeds.
        self.connection.send(request, version_max=version_max, deadline=deadline)
        self.in_flight.append(batch)
        self.is_lost = False

    def receive(self, deadline: Deadline) -> tuple[TopicPartition, int]:
        """Return the partition whose oldest batch was just acknowledged, and its first offset."""
        self.is_lost = True
        partition = self.in_flight[0].partition
        answer: ProduceResponse = self.connection.receive(deadline=deadline)
        results = [part for topic in answer.responses for part in topic.partition_responses]
        message = f"{self.connection.address} on producing to {partition}"
        if len(results) != 1 or results[0].index != partition.partition:
            indexes = [part.index for part in results]
            raise MalformedAnswer(f"{message}: the response is for partitions {indexes}")
        code, reason = results[0].error_code, results[0].error_message
        offset = results[0].base_offset
        # A duplicate is stored, but too far back for the node to return its offset.
        if code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            raise_for_code(code, f"{message}: {reason}" if reason else message)
        else:
            offset = NO_OFFSET
        self.in_flight.popleft()
        self.is_lost = False
        return partition, offset


class BatchSender:
    """All unacknowledged batches of one producer. Not thread-safe.

    Batches are not copied: the caller must not change them until `flush` returns. After an error,
    nothing is in flight, and every call raises it until `reset`.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        transactional_id: str | None,
        in_flight_max: int,
        version_max: int | None,
        before_first: Callable[[TopicPartition, Deadline], None],
        on_acknowledged: Callable[[TopicPartition, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._in_flight_max = in_flight_max
        self._version_max = version_max
        self._before_first = before_first
        self._on_acknowledged = on_acknowledged
        self._waiting: deque[_Batch] = deque()
        self._leaders: dict[BrokerAddress, _LeaderConnection] = {}
        self._leader_addresses: dict[TopicPartition, BrokerAddress] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._prepared: set[TopicPartition] = set()
        self._acknowledged: set[TopicPartition] = set()
        self._stalls: dict[TopicPartition, _Stall] = {}
        self._failure: MillstreamError | None = None

    def send(self, partition: TopicPartition, data: memoryview) -> None:
        """Send a batch. Waits for older ones if too many are in flight."""
        self.check()
        self._waiting.append(_Batch(partition, data))
        while self._waiting:
            self._attempt(self._send_next)

    def flush(self) -> None:
        """Wait until all batches are acknowledged."""
        self.check()
        while True:
            if self._waiting:
                self._attempt(self._send_next)
            elif (leader := self._busy_leader()) is not None:
                self._attempt(partial(self._receive, leader))
            else:
                return

    def check(self) -> None:
        """Raise the error that made the delivery fail, if there is one."""
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait until nothing is in flight, whatever the outcome."""
        self._waiting.clear()
        while (leader := self._busy_leader()) is not None:
            try:
                self._receive(leader)
            except (MillstreamError, RetriableError):
                self._drop(leader)

    def reset(self) -> None:
        """Clear all state for the next transaction or epoch."""
        self._waiting.clear()
        self._prepared.clear()
        self._acknowledged.clear()
        self._stalls.clear()
        self._failure = None

    def close(self) -> None:
        """Release the connections."""
        self._waiting.clear()
        for leader in self._leaders.values():
            self._cluster.release(leader.connection)
        self._leaders.clear()
        self._leader_addresses.clear()

    # Steps and retries.

    def _attempt(self, step: Callable[[], None]) -> None:
        error: MillstreamError
        self._requeue_lost()
        try:
            step()
        except RetriableError as retriable:
            error = retriable.error
        except NodeUnreachable as lost:
            error = lost
        except MillstreamError as fatal:
            self._fail(fatal)
            raise
        else:
            return
        self._requeue_lost()
        if not self._stall(self._waiting[0].partition).backoff.wait():
            self._fail(error)
            raise error
        self._cluster.forget()

    def _requeue_lost(self) -> None:
        """Put the batches of lost connections back in front of the waiting ones."""
        for leader in [leader for leader in self._leaders.values() if leader.is_lost]:
            self._waiting.extendleft(reversed(leader.in_flight))
            self._drop(leader)

    def _drop(self, leader: _LeaderConnection) -> None:
        address = leader.connection.address
        self._cluster.release(leader.connection)  # Closes it if anything is in flight.
        leader.in_flight.clear()
        del self._leaders[address]
        self._leader_addresses = {
            partition: leader_address
            for partition, leader_address in self._leader_addresses.items()
            if leader_address != address
        }

    def _fail(self, error: MillstreamError) -> None:
        self._failure = error
        self._waiting.clear()
        for leader in list(self._leaders.values()):
            self._drop(leader)

    def _stall(self, partition: TopicPartition) -> _Stall:
        if partition not in self._stalls:
            deadline = self._cluster.deadline()
            self._stalls[partition] = _Stall(deadline, self._cluster.backoff(deadline))
        return self._stalls[partition]

    def _deadline(self, partition: TopicPartition) -> Deadline:
        stall = self._stalls.get(partition)
        return self._cluster.deadline() if stall is None else stall.deadline

    # Sending.

    def _send_next(self) -> None:
        batch = self._waiting[0]
        partition, deadline = batch.partition, self._deadline(batch.partition)
        leader = self._leader_of(partition, deadline)
        if partition not in self._prepared:
            self._before_first(partition, deadline)
            self._prepared.add(partition)
        while len(leader.in_flight) >= self._in_flight_max or self._is_first_in_flight(
            leader, partition
        ):
            self._receive(leader)
        topic_id = self._topic_ids[partition.topic]
        leader.send(batch, self._request(batch, topic_id), self._version(topic_id), deadline)
        self._waiting.popleft()

    def _is_first_in_flight(self, leader: _LeaderConnection, partition: TopicPartition) -> bool:
        return partition not in self._acknowledged and any(
            sent.partition == partition for sent in leader.in_flight
        )

    def _leader_of(self, partition: TopicPartition, deadline: Deadline) -> _LeaderConnection:
        address = self._leader_addresses.get(partition)
        if address is None:
            address = self._cluster.leader(partition, deadline)
            self._check_topic(partition, deadline)
        leader = self._leaders.get(address)
        if leader is None:
            leader = self._leaders[address] = _LeaderConnection(
                self._cluster.acquire(address, deadline)
            )
        # Not before there is a connection: a dead node would be tried until it comes back.
        self._leader_addresses[partition] = address
        return leader

    def _check_topic(self, partition: TopicPartition, deadline: Deadline) -> None:
        """Raise if the topic was deleted and created again: sequences do not continue there."""
        current = self._cluster.topic(partition.topic, deadline).topic_id
        if (known := self._topic_ids.setdefault(partition.topic, current)) != current:
            raise UnknownTopicId(
                f"{partition}: the topic was deleted and created again (id {known}, now {current})"
            )

    def _request(self, batch: _Batch, topic_id: uuid.UUID) -> ProduceRequest:
        part = ProduceRequestPartition(index=batch.partition.partition, records=batch.data)
        topic = ProduceRequestTopic(
            name=batch.partition.topic, topic_id=topic_id, partition_data=(part,)
        )
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL,
            timeout_ms=int(self._cluster.deadline().seconds * 1000),
            topic_data=(topic,),
        )

    def _version(self, topic_id: uuid.UUID) -> int | None:
        if topic_id == NO_ID and self._version_max is None:
            return _TOPIC_ID_SINCE - 1
        return self._version_max

    # Receiving.

    def _busy_leader(self) -> _LeaderConnection | None:
        return next((leader for leader in self._leaders.values() if leader.in_flight), None)

    def _receive(self, leader: _LeaderConnection) -> None:
        partition, offset = leader.receive(self._deadline(leader.in_flight[0].partition))
        self._acknowledged.add(partition)
        self._stalls.pop(partition, None)
        if self._on_acknowledged is not None:
            self._on_acknowledged(partition, offset)

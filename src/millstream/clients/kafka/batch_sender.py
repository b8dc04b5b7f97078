"""Batches on their way to nodes: in order, several at a time, again where that is needed.

    waiting ──► lane of the leader, at most `in_flight_max` ──► acknowledged
       ▲                        │
       └── connection lost, or "try again": all that the lane holds, in order

Rules:

1. Batches of a partition are sent in the order in which they came, and sent again in that order.
   The node knows by their sequence numbers which it has already.
2. A partition stays with the lane it is in until that is lost. Else, when a leader moves, a batch
   could overtake the one before.
3. The first batch into a partition goes alone. A node that refused it for now would take the second
   one for the first, as long as it knows nothing of the producer.
4. A partition that gets nothing acknowledged for as long as the node's timeout ends the delivery;
   one acknowledgement is progress, and starts the time anew.
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

_ALL: Final = -1  # Answered when the batch is safe.
_TOPIC_ID_SINCE: Final = 13


class _Batch(NamedTuple):
    where: TopicPartition
    data: memoryview


class _Trouble(NamedTuple):
    """A partition that does not get on."""

    deadline: Deadline
    pauses: Backoff


class _Lane:
    """One connection to a leader, and the batches that it has not acknowledged."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.in_flight: deque[_Batch] = deque()
        self.is_lost = False

    def send(
        self, batch: _Batch, request: ProduceRequest, version_max: int | None, deadline: Deadline
    ) -> None:
        self.is_lost = True  # Unless it goes well.
        self.connection.send(request, version_max=version_max, deadline=deadline)
        self.in_flight.append(batch)
        self.is_lost = False

    def receive(self, deadline: Deadline) -> TopicPartition:
        """Return the partition whose oldest batch is safe now."""
        self.is_lost = True
        where = self.in_flight[0].where
        answer: ProduceResponse = self.connection.receive(deadline=deadline)
        results = [part for topic in answer.responses for part in topic.partition_responses]
        message = f"{self.connection.address} on producing to {where}"
        if len(results) != 1 or results[0].index != where.partition:
            indexes = [part.index for part in results]
            raise MalformedAnswer(f"{message}: answered for partitions {indexes}")
        code, reason = results[0].error_code, results[0].error_message
        if code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # It is there, so long that Kafka wonders.
            raise_for_code(code, f"{message}: {reason}" if reason else message)
        self.in_flight.popleft()
        self.is_lost = False
        return where


class BatchSender:
    """All batches of one producer that are not acknowledged. For one thread.

    A batch that was handed in is not copied: it stays as it is until `flush` returned. After an
    error, nothing is on its way any more, and every call raises it until `reset`.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        transactional_id: str | None,
        in_flight_max: int,
        version_max: int | None,
        before_first: Callable[[TopicPartition, Deadline], None],
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._in_flight_max = in_flight_max
        self._version_max = version_max
        self._before_first = before_first
        self._waiting: deque[_Batch] = deque()
        self._lanes: dict[BrokerAddress, _Lane] = {}
        self._homes: dict[TopicPartition, BrokerAddress] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._prepared: set[TopicPartition] = set()
        self._begun: set[TopicPartition] = set()
        self._troubles: dict[TopicPartition, _Trouble] = {}
        self._failure: MillstreamError | None = None

    def send(self, where: TopicPartition, data: memoryview) -> None:
        """Send a batch; waits for older ones to be acknowledged where too many are not."""
        self.check()
        self._waiting.append(_Batch(where, data))
        while self._waiting:
            self._try(self._send_next)

    def flush(self) -> None:
        """Return when all batches are acknowledged."""
        self.check()
        while True:
            if self._waiting:
                self._try(self._send_next)
            elif (lane := self._busy_lane()) is not None:
                self._try(partial(self._receive, lane))
            else:
                return

    def check(self) -> None:
        """Raise what made the delivery fail, if anything did."""
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Return when nothing is on its way any more, whatever became of it."""
        self._waiting.clear()
        while (lane := self._busy_lane()) is not None:
            try:
                self._receive(lane)
            except (MillstreamError, RetriableError):
                self._drop(lane)

    def reset(self) -> None:
        """Begin anew: another transaction, or another epoch."""
        self._waiting.clear()
        self._prepared.clear()
        self._begun.clear()
        self._troubles.clear()
        self._failure = None

    def close(self) -> None:
        """Let go of the connections."""
        self._waiting.clear()
        for lane in self._lanes.values():
            self._cluster.give(lane.connection)
        self._lanes.clear()
        self._homes.clear()

    # One step, and what follows from its failing.

    def _try(self, step: Callable[[], None]) -> None:
        error: MillstreamError
        self._take_back()
        try:
            step()
        except RetriableError as again:
            error = again.error
        except NodeUnreachable as lost:
            error = lost
        except MillstreamError as fatal:
            self._fail(fatal)
            raise
        else:
            return
        self._take_back()
        if not self._trouble(self._waiting[0].where).pauses.wait():
            self._fail(error)
            raise error
        self._cluster.forget()

    def _take_back(self) -> None:
        """Have all that lost lanes hold wait again, before what came later."""
        for lane in [lane for lane in self._lanes.values() if lane.is_lost]:
            self._waiting.extendleft(reversed(lane.in_flight))
            self._drop(lane)

    def _drop(self, lane: _Lane) -> None:
        address = lane.connection.address
        self._cluster.give(lane.connection)  # Which closes it, unless nothing is on its way.
        lane.in_flight.clear()
        del self._lanes[address]
        self._homes = {where: home for where, home in self._homes.items() if home != address}

    def _fail(self, error: MillstreamError) -> None:
        self._failure = error
        self._waiting.clear()
        for lane in list(self._lanes.values()):
            self._drop(lane)

    def _trouble(self, where: TopicPartition) -> _Trouble:
        if where not in self._troubles:
            deadline = self._cluster.deadline()
            self._troubles[where] = _Trouble(deadline, self._cluster.pauses(deadline))
        return self._troubles[where]

    def _deadline(self, where: TopicPartition) -> Deadline:
        trouble = self._troubles.get(where)
        return self._cluster.deadline() if trouble is None else trouble.deadline

    # Sending.

    def _send_next(self) -> None:
        batch = self._waiting[0]
        where, deadline = batch.where, self._deadline(batch.where)
        lane = self._lane(where, deadline)
        if where not in self._prepared:
            self._before_first(where, deadline)
            self._prepared.add(where)
        while len(lane.in_flight) >= self._in_flight_max or self._is_first_on_its_way(lane, where):
            self._receive(lane)
        topic_id = self._topic_ids[where.topic]
        lane.send(batch, self._request(batch, topic_id), self._version(topic_id), deadline)
        self._waiting.popleft()

    def _is_first_on_its_way(self, lane: _Lane, where: TopicPartition) -> bool:
        return where not in self._begun and any(sent.where == where for sent in lane.in_flight)

    def _lane(self, where: TopicPartition, deadline: Deadline) -> _Lane:
        address = self._homes.get(where)
        if address is None:
            address = self._cluster.leader(where, deadline)
            self._check_topic(where, deadline)
            self._homes[where] = address
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = _Lane(self._cluster.take(address, deadline))
        return lane

    def _check_topic(self, where: TopicPartition, deadline: Deadline) -> None:
        """Refuse a topic that was made anew under its name: sequences would not go on there."""
        found = self._cluster.topic(where.topic, deadline).topic_id
        if (known := self._topic_ids.setdefault(where.topic, found)) != found:
            raise UnknownTopicId(f"{where}: topic {known} is gone, that name has {found} now")

    def _request(self, batch: _Batch, topic_id: uuid.UUID) -> ProduceRequest:
        part = ProduceRequestPartition(index=batch.where.partition, records=batch.data)
        topic = ProduceRequestTopic(
            name=batch.where.topic, topic_id=topic_id, partition_data=(part,)
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

    # Being answered.

    def _busy_lane(self) -> _Lane | None:
        return next((lane for lane in self._lanes.values() if lane.in_flight), None)

    def _receive(self, lane: _Lane) -> None:
        where = lane.receive(self._deadline(lane.in_flight[0].where))
        self._begun.add(where)
        self._troubles.pop(where, None)

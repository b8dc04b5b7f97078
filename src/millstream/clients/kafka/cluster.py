"""Metadata and connections of a cluster: partition leaders, and a connection to each node.

Topic metadata is cached until a response contradicts it. Then another node is asked: one that is
cut off from the cluster does not know of elections, and would give the same answer again. A
connection has one user at a time: a reader keeps its connection until it is done, and other callers
get another one to the same node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.clients.kafka.address import BrokerAddress, parse_bootstrap
from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.login import KafkaLogin
from millstream.clients.kafka.retry import (
    Backoff,
    RetriableError,
    call_with_retries,
    raise_for_code,
)
from millstream.clock import Clock
from millstream.errors import MalformedAnswer, NodeUnreachable, UnknownTopic
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import error_of
from millstream.protocols.kafka.messages.coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.protocols.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from millstream.records.topic_partition import TopicPartition

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_TRANSACTION = 1  # Kafka's coordinator type.


class KafkaCluster:
    """Nodes of a cluster. Not thread-safe."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        timeout_s: float,
        clock: Clock,
        pause: Callable[[float], None],
        tls: ssl.SSLContext | None = None,
        login: KafkaLogin | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._pause = pause
        self._tls = tls
        self._login = login
        self._idle: dict[BrokerAddress, BrokerConnection] = {}
        self._nodes: dict[int, BrokerAddress] = {}
        self._controller: BrokerAddress | None = None
        self._topics: dict[str, MetadataResponseTopic] = {}
        self._source: BrokerAddress | None = None
        """The node that answered for the cluster last."""
        self._doubted: dict[BrokerAddress, None] = {}
        """Nodes whose answers did not help, the last one at the end."""

    def deadline(self) -> Deadline:
        """Return the deadline of a call that starts now."""
        return Deadline(self._timeout_s, clock=self._clock)

    def backoff(self, deadline: Deadline) -> Backoff:
        """Return the pauses between attempts that end at `deadline`."""
        return Backoff(deadline, pause=self._pause)

    def call_with_retries(self, work: Callable[[Deadline], T], *, is_repeatable: bool = True) -> T:
        """Call `work` and return its result; retry with fresh metadata while that may help."""
        deadline = self.deadline()
        return call_with_retries(
            lambda: work(deadline),
            backoff=self.backoff(deadline),
            before_next=self.forget,
            is_repeatable=is_repeatable,
        )

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.popitem()[1].close()

    # Connections.

    def acquire(self, address: BrokerAddress, deadline: Deadline) -> BrokerConnection:
        """Return a connection with nothing in flight. The caller releases or closes it."""
        idle = self._idle.pop(address, None)
        if idle is not None:
            if idle.is_usable():
                return idle
            idle.close()
        return BrokerConnection(
            *address,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
            clock=self._clock,
            deadline=deadline,
            tls=self._tls,
            login=self._login,
        )

    def release(self, connection: BrokerConnection) -> None:
        """Return a connection to the pool for the next call to the same node."""
        if connection.in_flight or connection.address in self._idle:
            connection.close()
        else:
            self._idle[connection.address] = connection

    @contextlib.contextmanager
    def borrow(self, address: BrokerAddress, deadline: Deadline) -> Iterator[BrokerConnection]:
        """Lend a connection for a `with` block; it is closed if the block raises."""
        connection = self.acquire(address, deadline)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.release(connection)

    # Metadata.

    def forget(self) -> None:
        """Drop the cached topic metadata, and ask the node that it came from last."""
        self._topics.clear()
        if self._source is not None:
            self._doubted.pop(self._source, None)
            self._doubted[self._source] = None
            self._source = None

    def describe(
        self, names: Sequence[str] | None, deadline: Deadline, *, may_create: bool = False
    ) -> MetadataResponse:
        """Fetch the metadata of these topics, or of all.

        With `may_create`, the node creates missing topics, if that is enabled.
        """
        topics = None
        if names is not None:
            topics = tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=may_create)
        answer = self._call_any(request, deadline)
        assert isinstance(answer, MetadataResponse)
        raise_for_code(answer.error_code, "metadata of topics cannot be fetched")
        self._nodes = {node.node_id: BrokerAddress(node.host, node.port) for node in answer.brokers}
        self._controller = self._nodes.get(answer.controller_id)
        for topic in answer.topics:
            if topic.name is not None and not topic.error_code:
                self._topics[topic.name] = topic
        return answer

    def cached_topic(self, name: str) -> MetadataResponseTopic | None:
        """Return the cached metadata of a topic; `None` if there is none."""
        return self._topics.get(name)

    def topic(self, name: str, deadline: Deadline) -> MetadataResponseTopic:
        """Return the metadata of a topic, fetched if it is not cached."""
        if (known := self.cached_topic(name)) is not None:
            return known
        for topic in self.describe([name], deadline).topics:
            if topic.name == name:
                return _checked(topic, name)
        raise MalformedAnswer(f"the response has no metadata of topic {name!r}")

    def leader(self, topic_partition: TopicPartition, deadline: Deadline) -> BrokerAddress:
        """Return the address of a partition's leader; `RetriableError` if it has none now."""
        topic = self.topic(topic_partition.topic, deadline)
        for partition in topic.partitions:
            if partition.partition_index == topic_partition.partition:
                if (address := self._nodes.get(partition.leader_id)) is not None:
                    return address
                code = partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE
                raise RetriableError(error_of(code, f"{topic_partition} has no leader"))
        raise UnknownTopic(f"{topic_partition}: the topic has {len(topic.partitions)} partitions")

    def controller(self, deadline: Deadline) -> BrokerAddress:
        """Return the address of the controller, which creates topics."""
        self.describe([], deadline)
        if self._controller is None:
            code = ErrorCode.BROKER_NOT_AVAILABLE
            raise RetriableError(error_of(code, "the cluster has no controller"))
        return self._controller

    def coordinator(self, transactional_id: str, deadline: Deadline) -> BrokerAddress:
        """Return the address of the coordinator of a transactional id."""
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=_TRANSACTION, coordinator_keys=(transactional_id,)
        )
        answer = self._call_any(request, deadline)
        assert isinstance(answer, FindCoordinatorResponse)
        # One coordinator up to version 3, a list from version 4.
        coordinator = answer.coordinators[0] if answer.coordinators else answer
        message = (
            coordinator.error_message or f"the coordinator of {transactional_id!r} is not known"
        )
        raise_for_code(coordinator.error_code, message)
        if not coordinator.host:
            raise MalformedAnswer(f"coordinator of {transactional_id!r} has no host")
        return BrokerAddress(coordinator.host, coordinator.port)

    def addresses(self) -> tuple[BrokerAddress, ...]:
        """Return all known addresses, in the order in which they are asked about the cluster.

        Those with an idle connection come first, and those whose answers did not help come last.
        """
        known = dict.fromkeys((*self._idle, *self._nodes.values(), *self._bootstrap))
        doubted = [address for address in self._doubted if address in known]
        return (*(address for address in known if address not in self._doubted), *doubted)

    def _call_any(self, request: object, deadline: Deadline) -> object:
        """Return the response of the first node that can be reached."""
        lost: list[str] = []
        addresses = self.addresses()
        for at, address in enumerate(addresses):
            share = deadline.share(len(addresses) - at)
            try:
                with self.borrow(address, share) as connection:
                    answer = connection.call(request, deadline=share)
            except NodeUnreachable as error:
                lost.append(f"{error.address}: {error.reason}")
            else:
                self._source = address
                return answer
        names = ", ".join(str(address) for address in self._bootstrap)
        raise NodeUnreachable(names, f"no node can be reached ({'; '.join(lost)})")


def _checked(topic: MetadataResponseTopic, name: str) -> MetadataResponseTopic:
    """Return the topic, or raise its error."""
    code = topic.error_code
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"topic {name!r} does not exist")
    raise_for_code(code, f"topic {name!r} cannot be described")
    return topic

"""The context of a request: what a handler gets beside the request itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import Principal
from millstream.broker.access.resources import (
    CLUSTER,
    OPERATIONS,
    Operation,
    Resource,
    ResourceType,
    group,
    topic,
    transactional_id,
)
from millstream.config.schema import KafkaConfig
from millstream.errors import MillstreamError, UnknownTopic, UnknownTopicId
from millstream.servers.kafka.access_table import OPEN, ApiNeeds

if TYPE_CHECKING:
    from millstream.broker.access.access import Access
    from millstream.broker.broker import Broker
    from millstream.broker.quotas import QuotaKind
    from millstream.broker.topics.topic import Topic
    from millstream.servers.kafka.fetch_session import FetchSessions
    from millstream.servers.kafka.logins import ConnectionLogin
    from millstream.servers.kafka.response_memory import ResponseMemory


@dataclass(slots=True)
class RequestContext:
    broker: Broker
    config: KafkaConfig
    fetch_sessions: FetchSessions
    version: int
    """The version of the request, and so of its response."""
    client_id: str
    caller: Caller = NOBODY
    host: str = ""
    response_memory: ResponseMemory | None = None
    """The memory for responses of all connections; unlimited in tests without a listener."""
    throttle_ms: int = 0
    """How long the client has to wait before its next request, as known so far."""
    access: Access | None = None
    """The gate; `None` if everyone may do everything."""
    needs: ApiNeeds = OPEN
    """Which operations the API does."""
    login: ConnectionLogin | None = None
    """The logins of the connection, for requests that log in; `None` on a node without logins."""

    @property
    def principal(self) -> Principal:
        """Who sends the request."""
        return self.caller.principal

    def charge(self, kind: QuotaKind, amount: float) -> int:
        """Charge the client for what it used; return how long it has to wait now, in total."""
        quotas = self.broker.quotas
        if not quotas.is_empty:
            now = self.broker.clock.monotonic()
            wait_ms = quotas.charge(kind, self.principal.name, self.client_id, amount, now)
            self.throttle_ms = max(self.throttle_ms, wait_ms)
        return self.throttle_ms

    # Rights.

    def require_topic(self, name: str) -> None:
        """Raise unless the caller may do to the topic what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.TOPIC), topic(name))

    def require_topic_by_id(self, found: Topic) -> None:
        """Raise unless the caller may do that to a topic which it named by id.

        If the caller may not know of the topic, the error is that of an unknown id.
        """
        try:
            self.require_topic(found.name)
        except UnknownTopic:
            raise unknown_id(found.id) from None

    def require_group(self, name: str) -> None:
        """Raise unless the caller may do to the group what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.GROUP), group(name))

    def require_transactional_id(self, name: str) -> None:
        """Raise unless the caller may do to the transactional id what the API does."""
        if self.access is not None:
            operation = self.needs.on(ResourceType.TRANSACTIONAL_ID)
            self.access.require(self.caller, operation, transactional_id(name))

    def require_cluster(self) -> None:
        """Raise unless the caller may do to the cluster what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.CLUSTER), CLUSTER)

    def cluster_refusal(self) -> MillstreamError | None:
        """Return the error if the caller may not do to the cluster what the API does."""
        try:
            self.require_cluster()
        except MillstreamError as error:
            return error
        return None

    def require_creation(self, name: str) -> None:
        """Raise unless the caller may create the topic, or any topic."""
        access, caller = self.access, self.caller
        if access is None or access.check(caller, Operation.CREATE, CLUSTER):
            return
        access.require(caller, Operation.CREATE, topic(name))

    def note_change(self, resource: Resource, operation: Operation | None = None) -> None:
        """Record that the caller has changed a resource, by what the API does to it if not said."""
        if self.access is not None:
            done = operation or self.needs.on(resource.kind)
            self.access.note_change(self.caller, done, resource)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the caller may do an operation; for lists that are filtered."""
        return self.access is None or self.access.check(self.caller, operation, resource)

    def may_describe_topic(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, topic(name))

    def operations_on(self, resource: Resource) -> int:
        """Return the operations that the caller may do on a resource, as Kafka's set of bits."""
        among = OPERATIONS[resource.kind]
        if self.access is None:
            return bits_of(among)
        return self.access.operations_on(self.caller, resource, among)


def bits_of(operations: Iterable[Operation]) -> int:
    """Return operations as Kafka's set of bits."""
    return sum(1 << operation for operation in operations)


def unknown_id(topic_id: UUID) -> UnknownTopicId:
    """Return the error of a topic id that does not exist, in the words of `Topics.by_id`."""
    return UnknownTopicId(f"topic with id {topic_id} does not exist")

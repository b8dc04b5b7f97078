"""The context of a request: what a handler gets beside the request itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.resources import OPERATIONS, Operation, Resource
from millstream.config.schema import KafkaConfig
from millstream.errors import UnknownTopic, UnknownTopicId
from millstream.servers.api_needs import OPEN, ApiNeeds
from millstream.servers.caller_context import CallerContext

if TYPE_CHECKING:
    from millstream.broker.access.access import Access
    from millstream.broker.broker import Broker
    from millstream.broker.topics.topic import Topic
    from millstream.servers.kafka.fetch_session import FetchSessions
    from millstream.servers.kafka.logins import ConnectionLogin
    from millstream.servers.response_memory import ResponseMemory


@dataclass(slots=True)
class RequestContext(CallerContext):
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

    def require_topic_by_id(self, found: Topic) -> None:
        """Raise unless the caller may do that to a topic which it named by id.

        If the caller may not know of the topic, the error is that of an unknown id.
        """
        try:
            self.require_topic(found.name)
        except UnknownTopic:
            raise unknown_id(found.id) from None

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

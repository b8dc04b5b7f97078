"""A node with consumer groups: topics that have partitions, and helpers for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millstream.broker.groups.consumer.member import ConsumerHeartbeat, ConsumerHeartbeatResult
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.errors import UnknownTopicId
from tests.broker.groups.group_node import Node

from .consumer_clients import Client, subscription_fields


@dataclass
class FakeTopic:
    """The properties of a topic that groups use."""

    name: str
    id: UUID
    partition_count: int


class Topics:
    """Topics that tests create, grow and delete, and that can be watched."""

    def __init__(self, **partition_counts: int) -> None:
        self._topics: dict[str, FakeTopic] = {}
        self._callbacks: list[Callable[[TopicChange], None]] = []
        self._next_id = 100
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._next_id += 1
        self._topics[name] = FakeTopic(name, UUID(int=self._next_id), count)
        self._tell(name, TopicEvent.CREATED)

    def grow(self, name: str, count: int) -> None:
        self._topics[name].partition_count = count
        self._tell(name, TopicEvent.GROWN)

    def alter(self, name: str) -> None:
        self._tell(name, TopicEvent.ALTERED)

    def delete(self, name: str) -> None:
        topic = self._topics[name]
        del self._topics[name]
        self._tell(topic, TopicEvent.DELETED)

    def find(self, name: str) -> Any:
        return self._topics.get(name)

    def by_id(self, topic_id: UUID) -> Any:
        for topic in self._topics.values():
            if topic.id == topic_id:
                return topic
        raise UnknownTopicId(f"topic with id {topic_id} does not exist")

    def all(self) -> list[Any]:
        return list(self._topics.values())

    def on_change(self, callback: Callable[[TopicChange], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _tell(self, topic: Any, event: TopicEvent) -> None:
        changed = self._topics[topic] if isinstance(topic, str) else topic
        for callback in self._callbacks:
            callback(TopicChange(changed, event))


class ConsumerNode(Node):
    """A node with topics of some size, and helpers for clients."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: Any = Topics(apple=4)

    async def send(self, beat: ConsumerHeartbeat, group_id: str = "g") -> ConsumerHeartbeatResult:
        return await self.groups.consumers.heartbeat(group_id, beat)

    async def beat(self, client: Client, group_id: str = "g") -> ConsumerHeartbeatResult:
        answer = await self.send(client.beat(), group_id)
        client.on_response(answer)
        return answer

    async def join(self, member_id: str, group_id: str = "g", **fields: Any) -> Client:
        client = Client(
            member_id, subscription=subscription_fields(topic_names=frozenset({"apple"})), **fields
        )
        await self.beat(client, group_id)
        return client

    def of(self, *numbers: int) -> dict[UUID, frozenset[int]]:
        return {self.topics.find("apple").id: frozenset(numbers)}


Work = Callable[[ConsumerNode], Coroutine[Any, Any, None]]


def on_a_node(work: Work) -> Callable[[], None]:
    """Make a test of a coroutine that takes a running node."""

    def test() -> None:
        async def live() -> None:
            node = ConsumerNode()
            await node.start()
            await work(node)
            await node.stop()

        asyncio.run(live())

    test.__name__ = work.__name__
    return test

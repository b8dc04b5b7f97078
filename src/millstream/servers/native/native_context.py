"""The context of a native request: what a handler gets beside the frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.broker.access.caller import Caller
from millstream.broker.topics.topic_numbers import DEFAULT_NUMBER, TopicNumbers
from millstream.config.schema import NativeConfig
from millstream.errors import UnknownTopic
from millstream.servers.api_needs import ApiNeeds
from millstream.servers.caller_context import CallerContext
from millstream.servers.native.counters import NativeCounters
from millstream.servers.native.subscriptions import Subscriptions
from millstream.servers.response_memory import ResponseMemory

if TYPE_CHECKING:
    from millstream.broker.access.access import Access
    from millstream.broker.broker import Broker
    from millstream.broker.topics.topic import Topic
    from millstream.servers.native.native_protocol import NativeProtocol

CLIENT_ID = "native"
"""The client id of all native clients, for quotas: the protocol has none."""


@dataclass(slots=True)
class NativeContext(CallerContext):
    broker: Broker
    config: NativeConfig
    numbers: TopicNumbers
    subscriptions: Subscriptions
    counters: NativeCounters
    response_memory: ResponseMemory
    connection: NativeProtocol
    caller: Caller
    access: Access | None
    needs: ApiNeeds
    client_id: str = CLIENT_ID
    throttle_ms: int = 0

    def topic(self, number: int) -> Topic:
        """Return the topic with a number; raise unless the caller may do what the request does.

        If the caller may not know of the topic, the error is that of a deleted one.
        """
        if number == DEFAULT_NUMBER:
            name = self.config.default_topic
            self.require_topic(name)
            return self.broker.topics.get(name)
        topic = self.numbers.find(number).topic
        try:
            self.require_topic(topic.name)
        except UnknownTopic:
            raise self.numbers.unknown(number) from None
        if topic.is_internal:
            raise self.numbers.unknown(number)
        return topic

"""Subscriptions of native consumers: who reads which topic, and where.

A subscription lasts until the client ends it or its connection does. What a consumer has committed
is kept as the offset of a group, so it is as durable, expires as they do, and is shown with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.servers.native.native_protocol import NativeProtocol

GROUP_PREFIX = "native-"
"""Prefix of the groups that keep the offsets of consumers."""

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one connection: a client has one for each topic that it reads."""


def group_of(consumer_id: int) -> str:
    """Return the group that keeps the offsets of a consumer."""
    return f"{GROUP_PREFIX}{consumer_id:016x}"


@dataclass(slots=True)
class Subscription:
    """A consumer that reads a topic."""

    topic: str
    topic_id: uuid.UUID
    consumer_id: int
    offset: int
    """Of the next record that it fetches."""
    active_at: float
    """When it last fetched, by the monotonic clock."""
    host: str


class Subscriptions:
    """The subscriptions of all connections. Used on the event loop only."""

    def __init__(self) -> None:
        self._by_connection: dict[NativeProtocol, dict[tuple[uuid.UUID, int], Subscription]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_connection.values()))

    def __iter__(self) -> Iterator[Subscription]:
        for subscriptions in self._by_connection.values():
            yield from subscriptions.values()

    def count_of(self, connection: NativeProtocol) -> int:
        """Return how many subscriptions a connection has."""
        return len(self._by_connection.get(connection, ()))

    def add(self, connection: NativeProtocol, subscription: Subscription) -> None:
        """Add a subscription; one of the same consumer and topic is replaced."""
        key = subscription.topic_id, subscription.consumer_id
        self._by_connection.setdefault(connection, {})[key] = subscription

    def drop(self, connection: NativeProtocol, topic_id: uuid.UUID, consumer_id: int) -> None:
        """End a subscription, if there is one."""
        subscriptions = self._by_connection.get(connection)
        if subscriptions is not None:
            subscriptions.pop((topic_id, consumer_id), None)
            if not subscriptions:
                del self._by_connection[connection]

    def drop_all(self, connection: NativeProtocol) -> None:
        """End the subscriptions of a connection."""
        self._by_connection.pop(connection, None)

    def note_fetch(
        self, connection: NativeProtocol, topic_id: uuid.UUID, offset: int, now: float
    ) -> None:
        """Note where the consumers of a connection are in a topic: fetches name no consumer."""
        for subscription in self._by_connection.get(connection, {}).values():
            if subscription.topic_id == topic_id:
                subscription.offset, subscription.active_at = offset, now

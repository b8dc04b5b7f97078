"""A topic, as a client that blocks has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.values import Placed, TopicState

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client
    from millstream.clients.http.sync.readers import Follower, Reader


class ClientTopic:
    """A topic of a node, by its name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def describe(self) -> TopicState:
        """Tell what it is set to, and how far its partitions reach."""
        return self._client.run(calls.describe_topic(self._client.around, self.name))

    def delete(self) -> None:
        """Delete it with all its records. Raises `UnknownTopic` where there is none."""
        self._client.run(calls.delete_topic(self._client.around, self.name))

    def append(self, value: Any, **options: Any) -> Placed:
        """Append a record, as `Client.append` does."""
        return self._client.append(self.name, value, **options)

    def read(self, **options: Any) -> Reader:
        """Read it, as `Client.read` does."""
        return self._client.read(self.name, **options)

    def follow(self, **options: Any) -> Follower:
        """Follow it, as `Client.follow` does."""
        return self._client.follow(self.name, **options)

    def __repr__(self) -> str:
        return f"<topic {self.name!r} at {self._client.address}>"

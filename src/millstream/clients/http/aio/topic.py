"""A topic, as a client that awaits has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.values import Placed, TopicState

if TYPE_CHECKING:
    from millstream.clients.http.aio.client import AsyncClient
    from millstream.clients.http.aio.readers import AsyncFollower, AsyncReader


class AsyncTopic:
    """A topic of a node, by its name."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def describe(self) -> TopicState:
        """Tell what it is set to, and how far its partitions reach."""
        return await self._client.run(calls.describe_topic(self._client.around, self.name))

    async def delete(self) -> None:
        """Delete it with all its records. Raises `UnknownTopic` where there is none."""
        await self._client.run(calls.delete_topic(self._client.around, self.name))

    async def append(self, value: Any, **options: Any) -> Placed:
        """Append a record, as `AsyncClient.append` does."""
        return await self._client.append(self.name, value, **options)

    def read(self, **options: Any) -> AsyncReader:
        """Read it, as `AsyncClient.read` does."""
        return self._client.read(self.name, **options)

    def follow(self, **options: Any) -> AsyncFollower:
        """Follow it, as `AsyncClient.follow` does."""
        return self._client.follow(self.name, **options)

    def __repr__(self) -> str:
        return f"<topic {self.name!r} at {self._client.address}>"

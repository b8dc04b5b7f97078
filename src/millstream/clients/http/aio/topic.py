"""Topics of the asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.clients.http.core import operations
from millstream.clients.http.core.values import Placed, TopicState

if TYPE_CHECKING:
    from millstream.clients.http.aio.client import AsyncClient
    from millstream.clients.http.aio.readers import AsyncFollower, AsyncReader


class AsyncTopic:
    """Handle of a topic."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def describe(self) -> TopicState:
        """Return the settings of the topic and the offsets of its partitions."""
        return await self._client.run(operations.describe_topic(self._client.context, self.name))

    async def delete(self) -> None:
        """Delete the topic with all its records. Raises `UnknownTopic` if it does not exist."""
        await self._client.run(operations.delete_topic(self._client.context, self.name))

    async def append(self, value: Any, **options: Any) -> Placed:
        """Append a record, as `AsyncClient.append` does."""
        return await self._client.append(self.name, value, **options)

    def read(self, **options: Any) -> AsyncReader:
        """Read the topic, as `AsyncClient.read` does."""
        return self._client.read(self.name, **options)

    def follow(self, **options: Any) -> AsyncFollower:
        """Follow the topic, as `AsyncClient.follow` does."""
        return self._client.follow(self.name, **options)

    def __repr__(self) -> str:
        return f"<topic {self.name!r} at {self._client.address}>"

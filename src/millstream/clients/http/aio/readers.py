"""Reading and following, for those who await."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Self

from millstream.clients.http.core import operations
from millstream.clients.http.core.follow_state import RETRIABLE, FollowState
from millstream.clients.http.core.read_state import ReadState
from millstream.clients.http.core.steps import Steps, send_with_retries
from millstream.clients.http.core.values import Item
from millstream.clients.http.transport.async_connection_pool import AsyncResponseStream

if TYPE_CHECKING:
    from millstream.clients.http.aio.client import AsyncClient


class AsyncReader:
    """Gives what a topic has from a cursor on, until its head. For one task."""

    def __init__(self, client: AsyncClient, starting: Steps[ReadState]) -> None:
        self._client = client
        self._starting = starting
        self._reading: ReadState | None = None
        self._items = self._read()

    @property
    def cursor(self) -> str:
        """Where to go on later: all that was handed out lies before. Known from the first on."""
        return self._reading.cursor if self._reading is not None else ""

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def _read(self) -> AsyncIterator[Item]:
        self._reading = reading = await self._client.run(self._starting)
        while (request := reading.next_request()) is not None:
            page = reading.take(
                await self._client.run(send_with_retries(self._client.context, request))
            )
            for item in page.items:
                reading.passed(item)
                yield item
            reading.finish(page)


class AsyncFollower:
    """Gives what is new in topics, and waits for more. For one task."""

    def __init__(
        self, client: AsyncClient, topics: Sequence[str], *, from_: str, exclude_node: str | None
    ) -> None:
        self._client = client
        self._following = FollowState(
            client.context, topics, from_=from_, exclude_node=exclude_node
        )
        self._stream: AsyncResponseStream | None = None
        self._is_begun = False
        self._is_closed = False
        self._items = self._follow()

    @property
    def cursor(self) -> str:
        """Where to go on later: all that was handed out lies before."""
        return self._following.cursor

    async def begin(self) -> Self:
        """Find out where it begins; else that is done when the first item is asked for."""
        if not self._is_begun:
            await self._client.run(
                operations.start_following(self._client.context, self._following)
            )
            self._is_begun = True
        return self

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def close(self) -> None:
        """End: who waits for more hears that there is none."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.hang_up()
        with contextlib.suppress(RuntimeError):  # Another task is in it, and ends it.
            await self._items.aclose()

    async def _follow(self) -> AsyncGenerator[Item, None]:
        await self.begin()
        while not self._is_closed:
            try:
                async with contextlib.aclosing(self._connected()) as items:
                    async for item in items:
                        yield item
            except RETRIABLE as error:
                if self._is_closed:
                    return
                await self._client.pause(self._following.lost(error))

    async def _connected(self) -> AsyncGenerator[Item, None]:
        """Give what comes over one connection, until it is lost."""
        request = self._following.request()
        self._stream = stream = await self._client.connections.stream(request)
        try:
            self._following.opened(stream.answer)
            while not self._is_closed:
                data = await stream.receive(self._client.config.silence_s_max)
                for item in self._following.feed(data):
                    yield item
        finally:
            self._stream = None
            stream.close()

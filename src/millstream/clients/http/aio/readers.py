"""Readers and followers of the asyncio client."""

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
    """Iterator over a topic from a cursor up to its head. For one task."""

    def __init__(self, client: AsyncClient, start: Steps[ReadState]) -> None:
        self._client = client
        self._start = start
        self._state: ReadState | None = None
        self._items = self._read()

    @property
    def cursor(self) -> str:
        """Position after all items that were yielded; empty before the first one."""
        return self._state.cursor if self._state is not None else ""

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def _read(self) -> AsyncIterator[Item]:
        self._state = state = await self._client.run(self._start)
        while (request := state.next_request()) is not None:
            page = state.take(
                await self._client.run(send_with_retries(self._client.context, request))
            )
            for item in page.items:
                state.advance(item)
                yield item
            state.finish(page)


class AsyncFollower:
    """Iterator over new items of topics, without an end. For one task."""

    def __init__(
        self, client: AsyncClient, topics: Sequence[str], *, from_: str, exclude_node: str | None
    ) -> None:
        self._client = client
        self._state = FollowState(client.context, topics, from_=from_, exclude_node=exclude_node)
        self._stream: AsyncResponseStream | None = None
        self._address = client.context.address
        """The node of the last connection."""
        self._is_started = False
        self._is_closed = False
        self._items = self._follow()

    @property
    def cursor(self) -> str:
        """Position after all items that were yielded."""
        return self._state.cursor

    async def begin(self) -> Self:
        """Fetch the start position now, instead of when the first item is requested."""
        if not self._is_started:
            await self._client.run(operations.start_following(self._client.context, self._state))
            self._is_started = True
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
        """End the iteration; a task that waits for an item stops waiting."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.hang_up()
        with contextlib.suppress(RuntimeError):  # Another task is iterating, and ends it.
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
                pause_s = self._state.retry_pause_s(error)
                self._client.context.addresses.move_on(self._address)
                await self._client.pause(pause_s)

    async def _connected(self) -> AsyncGenerator[Item, None]:
        """Yield the items of one connection until it is lost."""
        request = self._state.request()
        self._address = self._client.context.address
        self._stream = stream = await self._client.connections(self._address).stream(request)
        try:
            self._state.check_response(stream.answer)
            while not self._is_closed:
                data = await stream.receive(self._client.config.silence_s_max)
                for item in self._state.feed(data):
                    yield item
        finally:
            self._stream = None
            stream.close()

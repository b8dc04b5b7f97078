"""Readers and followers of the blocking client."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from millstream.clients.http.core import operations
from millstream.clients.http.core.follow_state import RETRIABLE, FollowState
from millstream.clients.http.core.read_state import ReadState
from millstream.clients.http.core.steps import Steps, send_with_retries
from millstream.clients.http.core.values import Item
from millstream.clients.http.transport.connection_pool import ResponseStream

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client


class Reader:
    """Iterator over a topic from a cursor up to its head. For one thread."""

    def __init__(self, client: Client, start: Steps[ReadState]) -> None:
        self._client = client
        self._state = client.run(start)
        self._items = self._read()

    @property
    def cursor(self) -> str:
        """Position after all items that were yielded."""
        return self._state.cursor

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def _read(self) -> Iterator[Item]:
        state = self._state
        while (request := state.next_request()) is not None:
            page = state.take(self._client.run(send_with_retries(self._client.context, request)))
            for item in page.items:
                state.advance(item)
                yield item
            state.finish(page)


class Follower:
    """Iterator over new items of topics, without an end. For one thread; any may close it."""

    def __init__(
        self, client: Client, topics: Sequence[str], *, from_: str, exclude_node: str | None
    ) -> None:
        self._client = client
        self._state = FollowState(client.context, topics, from_=from_, exclude_node=exclude_node)
        client.run(operations.start_following(client.context, self._state))
        self._stream: ResponseStream | None = None
        self._address = client.context.address
        """The node of the last connection."""
        self._is_closed = False
        self._items = self._follow()

    @property
    def cursor(self) -> str:
        """Position after all items that were yielded."""
        return self._state.cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """End the iteration; a thread that waits for an item stops waiting."""
        self._is_closed = True
        if (stream := self._stream) is not None:
            stream.hang_up()
        with contextlib.suppress(ValueError):  # Another thread is iterating, and ends it.
            self._items.close()

    def _follow(self) -> Generator[Item, None, None]:
        while not self._is_closed:
            try:
                yield from self._connected()
            except RETRIABLE as error:
                if self._is_closed:
                    return
                pause_s = self._state.retry_pause_s(error)
                self._client.context.addresses.move_on(self._address)
                self._client.pause(pause_s)

    def _connected(self) -> Iterator[Item]:
        """Yield the items of one connection until it is lost."""
        self._address = self._client.context.address
        connections = self._client.connections(self._address)
        self._stream = stream = connections.stream(self._state.request())
        try:
            self._state.check_response(stream.answer)
            while not self._is_closed:
                data = stream.receive(self._client.config.silence_s_max)
                yield from self._state.feed(data)
        finally:
            self._stream = None
            stream.close()

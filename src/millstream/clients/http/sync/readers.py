"""Reading and following, for those who block."""

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
    """Gives what a topic has from a cursor on, until its head. For one thread."""

    def __init__(self, client: Client, starting: Steps[ReadState]) -> None:
        self._client = client
        self._reading = client.run(starting)
        self._items = self._read()

    @property
    def cursor(self) -> str:
        """Where to go on later: all that was handed out lies before."""
        return self._reading.cursor

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def _read(self) -> Iterator[Item]:
        reading = self._reading
        while (request := reading.next_request()) is not None:
            page = reading.take(self._client.run(send_with_retries(self._client.context, request)))
            for item in page.items:
                reading.passed(item)
                yield item
            reading.finish(page)


class Follower:
    """Gives what is new in topics, and waits for more. For one thread; any may close it."""

    def __init__(
        self, client: Client, topics: Sequence[str], *, from_: str, exclude_node: str | None
    ) -> None:
        self._client = client
        self._following = FollowState(
            client.context, topics, from_=from_, exclude_node=exclude_node
        )
        client.run(operations.start_following(client.context, self._following))
        self._stream: ResponseStream | None = None
        self._is_closed = False
        self._items = self._follow()

    @property
    def cursor(self) -> str:
        """Where to go on later: all that was handed out lies before."""
        return self._following.cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """End: who waits for more hears that there is none."""
        self._is_closed = True
        if (stream := self._stream) is not None:
            stream.hang_up()
        with contextlib.suppress(ValueError):  # Another thread is in it, and ends it.
            self._items.close()

    def _follow(self) -> Generator[Item, None, None]:
        while not self._is_closed:
            try:
                yield from self._connected()
            except RETRIABLE as error:
                if self._is_closed:
                    return
                self._client.pause(self._following.lost(error))

    def _connected(self) -> Iterator[Item]:
        """Give what comes over one connection, until it is lost."""
        self._stream = stream = self._client.connections.stream(self._following.request())
        try:
            self._following.opened(stream.answer)
            while not self._is_closed:
                data = stream.receive(self._client.config.silence_s_max)
                yield from self._following.feed(data)
        finally:
            self._stream = None
            stream.close()

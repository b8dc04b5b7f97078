"""Requests that were sent to a peer: one with a response, one with a stream of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.protocols.peer.apis import PeerApi
from millstream.protocols.peer.frame import STREAM_WINDOW_BYTES

if TYPE_CHECKING:
    from millstream.clients.peer.connection import PeerConnection

Settled = Callable[[str], None]
"""Called once, with how a request ended: one of `CALL_OUTCOMES`, or `broken` if the connection
failed or the response did not come in time.
"""


class SentRequest:
    """A request that was sent, and its response."""

    __slots__ = ("_connection", "_future", "_settled", "_timer", "api", "number", "version")

    def __init__(
        self,
        connection: PeerConnection,
        number: int,
        api: PeerApi,
        version: int,
        settled: Settled,
    ) -> None:
        self._connection = connection
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._settled: Settled | None = settled
        self._timer: asyncio.TimerHandle | None = None
        self.number = number
        """The correlation id."""
        self.api = api
        self.version = version

    def expire_at(self, deadline: float, seconds: float) -> None:
        """Give up at a time on the loop's clock, which is `seconds` away."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(deadline, self._expire, seconds)

    async def response(self) -> Any:
        """Return the response, or raise what the peer answered or the connection met."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self._give_up("cancelled")
            raise

    # Called by the connection.

    def receive(self, response: Any, _size: int, *, is_last: bool) -> None:
        """Take the response."""
        if is_last:
            self._settle("answered")
            _set_result(self._future, response)
        else:
            self._give_up("unknown")
            name = self.api.name
            self._raise(OutcomeUnknown(f"{name} was answered with a stream, expected a response"))

    def end(self) -> None:
        """Take the end of a stream without items."""
        self._settle("unknown")
        self._raise(OutcomeUnknown(f"{self.api.name} was answered with nothing"))

    def fail(self, error: MillstreamError, outcome: str) -> None:
        """Take an error."""
        self._settle(outcome)
        self._raise(error)

    def _expire(self, seconds: float) -> None:
        self._give_up("broken")
        text = f"{self._connection.name}: no response to {self.api.name} within {seconds:.3g} s"
        self._raise(OutcomeUnknown(f"{text}; it may have been executed"))

    def _give_up(self, outcome: str) -> None:
        if self._settled is not None:
            self._settle(outcome)
            self._connection.abandon(self.number)

    def _settle(self, outcome: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(outcome)

    def _raise(self, error: MillstreamError) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            # The caller may have been cancelled in this turn of the loop.
            self._future.exception()


class PeerStream:
    """A request that was sent, and a stream of responses. Iterate it, and close it.

        async with stream:
            async for response in stream:
                ...

    The peer sends ahead of the reader by a bounded number of bytes. A stream that does not end as
    the peer meant it to raises an error: a shortened one is not taken for a complete one.
    """

    __slots__ = (
        "_connection",
        "_error",
        "_idle_s",
        "_is_ended",
        "_items",
        "_loop",
        "_settled",
        "_timer",
        "_unread_bytes",
        "_waiter",
        "_window",
        "api",
        "number",
        "version",
    )

    def __init__(
        self,
        connection: PeerConnection,
        number: int,
        api: PeerApi,
        version: int,
        settled: Settled,
        *,
        idle_s: float,
    ) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._settled: Settled | None = settled
        self._idle_s = idle_s
        self._items: deque[tuple[Any, int]] = deque()
        self._error: MillstreamError | None = None
        self._is_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._window = STREAM_WINDOW_BYTES
        """Bytes that the peer may still send."""
        self._unread_bytes = 0
        """Bytes that were read by the caller, and not reported to the peer yet."""
        self.number = number
        self.api = api
        self.version = version

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item, size = self._items.popleft()
        self._unread_bytes += size
        if not self._is_ended and self._unread_bytes >= STREAM_WINDOW_BYTES // 2:
            self._window += self._unread_bytes
            self._connection.send_credit(self.number, self._unread_bytes)
            self._unread_bytes = 0
        return item

    def close(self) -> None:
        """End the stream: the peer stops its work."""
        self._items.clear()
        self._give_up("cancelled")

    def expire_at(self, deadline: float, seconds: float) -> None:
        """Give up at a time on the loop's clock, if nothing has arrived."""
        self._timer = self._loop.call_at(deadline, self._expire, seconds)

    # Called by the connection.

    def receive(self, response: Any, size: int, *, is_last: bool) -> None:
        """Take one item of the stream."""
        self._settle("answered")
        self._window -= size
        self._items.append((response, size))
        if is_last:
            self.end()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._idle_s, self._expire, self._idle_s)
        self._wake()

    @property
    def may_receive(self) -> bool:
        """Whether the peer was allowed to send another item."""
        return self._window > 0

    def end(self) -> None:
        """Take the end of the stream."""
        self._settle("answered")
        self._stop()

    def fail(self, error: MillstreamError, outcome: str) -> None:
        """Take an error, which is raised behind the items that have arrived."""
        self._settle(outcome)
        if not self._is_ended:
            self._error = error
        self._stop()

    def _expire(self, seconds: float) -> None:
        text = f"{self._connection.name}: nothing of {self.api.name} within {seconds:.3g} s"
        self._error = OutcomeUnknown(text)
        self._give_up("broken")

    def _give_up(self, outcome: str) -> None:
        if not self._is_ended:
            self._settle(outcome)
            self._stop()
            self._connection.abandon(self.number)

    def _stop(self) -> None:
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _settle(self, outcome: str) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(outcome)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)

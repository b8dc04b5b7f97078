"""The body of a request, kept while its handler runs, so that the request can be forwarded."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from millstream.errors import BatchTooLarge


class RecordedBody:
    """Passes the messages of a request on, and keeps its body.

    A handler reads no more than its own limit, so that is what is kept.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: list[bytes] = []
        self._is_complete = False
        self._replayed: bytes | None = None

    async def receive(self) -> Message:
        """Return the next message of the request."""
        if self._replayed is not None:
            body, self._replayed = self._replayed, None
            return {"type": "http.request", "body": body, "more_body": not self._is_complete}
        message = await self._receive()
        if message["type"] == "http.request":
            self._pieces.append(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        return message

    async def whole(self, size_max: int) -> bytes:
        """Return the whole body, and read what the handler did not."""
        while not self._is_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if sum(map(len, self._pieces)) > size_max:
                raise BatchTooLarge(f"body must have at most {size_max} bytes to be forwarded")
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def replay(self) -> None:
        """Let the next `receive` return everything again that was received so far."""
        self._replayed = b"".join(self._pieces)

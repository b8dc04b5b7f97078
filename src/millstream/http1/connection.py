"""Connection of an HTTP/1.1 client on the event loop.

Bytes are parsed in the protocol, where they arrive, so a request wakes its task once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from millstream.errors import MalformedAnswer, MillstreamError, NodeUnreachable
from millstream.http1.response_reader import ResponseReader

BUFFERED_BYTES_MAX = 1024 * 1024
"""Bytes of a stream that wait for their reader before receiving is paused."""


class AsyncConnection(asyncio.Protocol):
    """Connection to a server, with one response at a time. `address` is what errors call it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: MillstreamError | None = None
        self._buffered = 0
        self._is_stream = False
        self.is_open = False
        self.used_at = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own classes.
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a response. Unexpected bytes close the connection."""
        reader = self._reader
        if reader is None:
            self.close()
            return
        try:
            reader.feed(data)
        except MalformedAnswer as error:
            self._fail(error)
            return
        self._buffered += len(data)
        if self._is_stream and self._buffered > BUFFERED_BYTES_MAX and self._transport:
            self._transport.pause_reading()
        if reader.is_done or self._is_stream:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.ended.done():
            self.ended.set_result(None)
        reason = f"connection lost: {exc}" if exc else "connection closed before a response"
        self._fail(NodeUnreachable(self._address, reason, may_be_done=True))

    def _fail(self, error: MillstreamError) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by its owner.

    def begin(self, request: Sequence[bytes], reader: ResponseReader, *, is_stream: bool) -> None:
        """Send the pieces of a request; its response goes to `reader`."""
        if self._transport is None or not self.is_open:
            raise NodeUnreachable(self._address, "connection closed before the request")
        self._reader = reader
        self._is_stream = is_stream
        self._buffered = 0
        self._transport.writelines(request)

    async def more(self) -> None:
        """Wait for the response; for a stream, until more bytes arrive."""
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        is_done = self._reader is not None and self._reader.is_done
        if self._error is not None and not is_done:
            raise self._error

    def took(self) -> None:
        """Resume receiving after the buffered bytes of a stream were taken."""
        if self._buffered > BUFFERED_BYTES_MAX and self._transport and self.is_open:
            self._transport.resume_reading()
        self._buffered = 0

    def end(self) -> None:
        """Expect no more bytes of this response."""
        self._reader = None

    def close(self) -> None:
        """Close the connection immediately."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

"""One WebSocket connection, below what it says: how much may wait for it, and for how long.

Uvicorn's protocol does the rest. It answers pings itself, and writes whatever the application
sends; so here reading stops while a client does not read, and one that reads nothing for too long
is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from millstream.config.schema import HttpConfig

CLOSE_SECONDS = 0.5
"""How long a client has, when the node stops, to say that it has heard so."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """The protocol of one WebSocket connection. All of it runs on the event loop."""

    def __init__(self, *args: Any, limits: HttpConfig, **named: Any) -> None:
        super().__init__(*args, **named)
        self._output_seconds = limits.output_ms_max / 1000
        self._output_deadline: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """More waits to be read than the transport likes: take nothing from the client either."""
        super().pause_writing()
        self.transport.pause_reading()
        self._output_deadline = self.loop.call_later(self._output_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It was read."""
        super().resume_writing()
        self._end_deadline()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived, unless answers to it could not be read."""
        super().data_received(data)
        if not self.writable.is_set() and not self.transport.is_closing():
            self.transport.pause_reading()

    def handle_text(self, event: Frame) -> None:
        """Pass text on as the bytes that it came as: whether they are UTF-8 is checked with it."""
        self.handle_bytes(event)

    def shutdown(self) -> None:
        """End soon: who serves the client was told, and closes with a word to it.

        A client that would not read that is cut off.
        """
        self.stop_keepalive()
        self.close_timeout = CLOSE_SECONDS
        if not self.writable.is_set():
            self.transport.abort()
        elif self.close_sent or not self.handshake_complete:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back."""
        self._end_deadline()
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._output_deadline is not None:
            self._output_deadline.cancel()
            self._output_deadline = None

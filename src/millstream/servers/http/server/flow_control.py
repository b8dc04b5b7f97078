"""What flows through a connection: when it is read, and what its answers see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

from millstream.servers.http.counters import HttpCounters


class PausableFlowControl(FlowControl):
    """Uvicorn's flow control, which may be held: the application then cannot resume reading."""

    is_held = False

    def hold(self) -> None:
        """Read nothing, whoever asks for it."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Read again."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, unless held."""
        if not self.is_held:
            super().resume_reading()


class ResponseTransport:
    """What the answers of a connection see of its transport."""

    def __init__(
        self, transport: asyncio.Transport, counters: HttpCounters, close: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._counters = counters
        self._close = close

    def write(self, data: bytes) -> None:
        """Send something."""
        self._counters.sent_bytes += len(data)
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """End the connection behind the answer."""
        self._close()

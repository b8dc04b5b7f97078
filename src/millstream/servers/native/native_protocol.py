"""One connection of a native client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS
from millstream.servers.native.native_receiver import NativeReceiver
from millstream.servers.request_connection import RequestConnection

if TYPE_CHECKING:
    from millstream.config.schema import NativeConfig
    from millstream.servers.native.listener import NativeListener


class NativeProtocol(RequestConnection):
    """The protocol of one connection. Runs on the event loop."""

    FIRST_REQUEST = "frame"

    _listener: NativeListener
    _config: NativeConfig

    def __init__(self, listener: NativeListener) -> None:
        receiver = NativeReceiver(listener.blocks, frame_size_max=listener.config.frame_size_max)
        super().__init__(listener, receiver)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; nobody sends large frames before the login."""
        super().connection_made(transport)
        if self._listener.access is not None and self.caller.principal == ANONYMOUS:
            self._receiver.frame_size_max = min(
                self._config.frame_size_max, self._config.login_frame_size_max
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, and end the subscriptions."""
        super().connection_lost(exc)
        self._listener.subscriptions.drop_all(self)

    def log_in(self, caller: Caller, session_ms: int) -> None:
        """Let a caller send requests from now on, for so long if it is not 0."""
        super().log_in(caller, session_ms)
        self._receiver.frame_size_max = self._config.frame_size_max

    @property
    def is_closed(self) -> bool:
        """Whether nobody waits for answers any more."""
        return self._is_closing

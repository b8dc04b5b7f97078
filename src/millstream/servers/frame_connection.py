"""One connection on which requests are frames: what connections of all kinds have in common.

It stops reading while it has a backlog or memory is short, so that TCP informs the client, and is
closed when one of its deadlines passes. What a frame means is up to the server.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, cast

from millstream.servers.client_host import client_host
from millstream.servers.frame_receiver import FrameReceiver

if TYPE_CHECKING:
    from millstream.servers.frame_listener import FrameListener


class FrameConnection(asyncio.BufferedProtocol, ABC):
    """The protocol of one connection. Runs on the event loop."""

    FIRST_REQUEST: ClassVar[str] = "request"
    """What has to arrive soon after connecting."""

    UNSENT_BYTES_MAX: ClassVar[int]
    """Bytes that may wait for the socket before the client counts as one that does not read."""

    def __init__(self, listener: FrameListener[Any], receiver: FrameReceiver) -> None:
        self._listener = listener
        self._config = listener.config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = receiver
        self._is_reading = True
        self._is_waiting_for_memory = False
        self._is_closing = False
        self.host = ""
        self.connected_at = self.active_at = self._loop.time()
        self._has_sent_request = False
        self._frame_started_at: float | None = None
        self.stalled_since: float | None = None
        """When the client last read something, if it does not read its responses now."""
        self._unread = 0
        """Bytes that the socket had not taken when that was last checked."""

    @property
    @abstractmethod
    def request_count(self) -> int:
        """Number of requests in flight."""

    @property
    def name(self) -> str:
        """The client, for the log."""
        return self.host

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it if the node stops."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self.host = client_host(transport.get_extra_info("peername"))
        if not self._listener.admit(self):
            self._is_closing = True
            transport.abort()
            return
        # Whatever the socket did not take is counted until all of it is sent: the last byte of a
        # response keeps all of it in memory.
        # Transports of TLS take a buffer for full from its limit on: with a limit of 0, an empty
        # one too, and never say that it was read.
        is_tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=max(self.UNSENT_BYTES_MAX, int(is_tls)), low=0)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's.
        """Release everything. What was appended stays appended."""
        self._is_closing = True
        self._listener.forget(self)
        self._receiver.close()

    def close(self, reason: str) -> None:
        """Close the connection at once."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        logger = logging.getLogger(type(self).__module__)  # So that it names the server.
        logger.info("%s: closed: %s", self.name, reason)
        self._listener.counters.closed_by_us += 1
        self._transport.abort()

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's.
        """Return the memory for the next bytes."""
        return self._receiver.space()

    def eof_received(self) -> bool:
        """Close when the client closes its side: no client half-closes."""
        return False

    @abstractmethod
    def _may_read(self) -> bool:
        """Return whether the state of the connection allows it to read."""

    def _update_flow_control(self) -> None:
        """Pause or resume reading, depending on how much is in flight."""
        if self._is_closing or self._transport is None:
            return
        may_read = not self._receiver.has_backlog and self._may_read() and self._has_memory()
        if may_read and not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        elif not may_read and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _has_memory(self) -> bool:
        if self._receiver.has_capacity():
            return True
        if not self._is_waiting_for_memory:
            self._is_waiting_for_memory = True
            self._listener.blocks.when_free(self._memory_freed)
        return False

    def _memory_freed(self) -> None:
        self._is_waiting_for_memory = False
        self._loop.call_soon(self._update_flow_control)

    # Writing.

    def pause_writing(self) -> None:
        """Note that the client does not read its responses."""
        self.stalled_since = self._loop.time()

    def resume_writing(self) -> None:
        """Note that the client has read its responses."""
        self.stalled_since = None
        self._unread = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def note_progress(self, now: float) -> bool:
        """Return whether the client has read some output since the last call, and remember it."""
        before, self._unread = self._unread, self.unsent_bytes
        is_read_from = self._unread < before
        if is_read_from:
            self.stalled_since = now
        return is_read_from

    # Deadlines.

    def check_deadlines(self, now: float) -> None:
        """Close the connection if one of its deadlines has passed."""
        config = self._config
        if self.stalled_since is not None:
            is_stalled = not self.note_progress(now)
            if is_stalled and now - self.stalled_since > config.output_ms_max / 1000:
                self.close(f"read nothing for {config.output_ms_max} ms while responses wait")
        elif not self._has_sent_request:
            if now - self.connected_at > config.handshake_ms_max / 1000:
                limit = config.handshake_ms_max
                self.close(f"no {self.FIRST_REQUEST} within {limit} ms of connecting")
        elif self._frame_started_at is not None:
            if now - self._frame_started_at > config.request_ms_max / 1000:
                self.close(f"a request took longer than {config.request_ms_max} ms to arrive")
        elif not self.request_count and now - self.active_at > config.idle_ms_max / 1000:
            self.close(f"no request for {config.idle_ms_max} ms")

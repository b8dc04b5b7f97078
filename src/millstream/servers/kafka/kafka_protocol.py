"""One connection of a Kafka client.

    bytes ──► receiver ──► backlog ──► at work ──► answers, in the order of the requests ──► bytes
                 │            │           │                          │
                 └────────────┴───────────┴── reading stops ◄────────┘
                                              while any of them holds too much

A request begins when those before it have: a produce has then taken its place in the log, and the
next may follow; what has to wait for something else holds up the requests behind it. Answers that
are ready in one turn of the loop go out in one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from millstream.broker.quota_rules import ANONYMOUS
from millstream.errors import MalformedRequest, MillstreamError
from millstream.records.batch import Bytes
from millstream.servers.kafka.fast_produce import PendingFastProduce
from millstream.servers.kafka.frame_receiver import Frame, FrameReceiver
from millstream.servers.kafka.pending_request import PendingRequest

if TYPE_CHECKING:
    from millstream.servers.kafka.listener import KafkaListener

logger = logging.getLogger(__name__)

TURN_REQUESTS_MAX = 64
"""Requests of one connection that are begun in one turn of the loop; then others have theirs."""


class KafkaProtocol(asyncio.BufferedProtocol):
    """The protocol of one connection. All of it runs on the event loop."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._config = listener.config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(
            listener.blocks, frame_size_max=self._config.request_size_max
        )
        self._backlog: deque[Frame] = deque()
        self._exchanges: deque[PendingRequest | PendingFastProduce] = deque()
        self._held_by = 0
        self._is_flush_scheduled = False
        self._is_work_scheduled = False
        self._unsent_bytes = 0
        """Of answers that are ready, and wait for those before them or for the end of the turn."""
        self._is_reading = True
        self._is_writing_paused = False
        self._is_waiting_for_memory = False
        self._is_closing = False
        self._muted_until = 0.0
        self.host = ""
        self.principal = ANONYMOUS
        self.connected_at = self.active_at = self._loop.time()
        self._frame_began_at: float | None = None
        self._stalled_since: float | None = None
        self._unread = 0
        self._has_spoken = False

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it where there are too many."""
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        if not self._listener.admit(self):
            self._is_closing = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._config.output_bytes_max)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's.
        """Give everything back. What was appended stays appended."""
        self._is_closing = True
        self._listener.forget(self)
        self._receiver.close()
        for _, block in self._backlog:
            block.release()
        self._backlog.clear()
        for exchange in self._exchanges:
            exchange.cancel()
        self._exchanges.clear()

    def close(self, reason: str) -> None:
        """End the connection at once."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        logger.info("%s: closed: %s", self.host, reason)
        self._listener.counters.closed_by_us += 1
        self._transport.abort()

    def drain(self) -> None:
        """Read no more, answer what is under way, then close."""
        self._is_reading = False
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()
            for _, block in self._backlog:
                block.release()
            self._backlog.clear()
            self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._listener.is_draining and not self._exchanges and self._transport is not None:
            self._is_closing = True
            self._transport.close()

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's.
        """Say where the next bytes go."""
        return self._receiver.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what has arrived."""
        if self._is_closing:
            return
        self._listener.counters.received_bytes += nbytes
        try:
            frames = self._receiver.received(nbytes)
        except MalformedRequest as error:
            self.close(str(error))
            return
        if frames:
            self.active_at = self._loop.time()
            self._has_spoken = True
            self._frame_began_at = None
            self._backlog.extend(frames)
            self._work_off()
        if self._receiver.is_within_frame:
            if self._frame_began_at is None:
                self._frame_began_at = self._loop.time()
            self._pace()
        elif self._backlog or self._muted_until:
            self._pace()

    def eof_received(self) -> bool:
        """Close when the client has nothing more to say: no Kafka client half-closes."""
        return False

    def _pace(self) -> None:
        """Read on, or not, by how much is under way."""
        if self._is_closing or self._transport is None:
            return
        is_free = not self._backlog and not self._is_muted() and self._has_memory()
        if is_free and not self._is_reading and not self._listener.is_draining:
            self._is_reading = True
            self._transport.resume_reading()
        elif not is_free and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _has_memory(self) -> bool:
        if self._receiver.has_room():
            return True
        if not self._is_waiting_for_memory:
            self._is_waiting_for_memory = True
            self._listener.blocks.when_free(self._memory_freed)
        return False

    def _memory_freed(self) -> None:
        self._is_waiting_for_memory = False
        self._loop.call_soon(self._pace)

    # Working.

    def _work_off(self) -> None:
        """Begin as many requests as may be under way, and leave others their turn of the loop."""
        begin = self._listener.dispatcher.begin
        for _ in range(TURN_REQUESTS_MAX):
            if not self._backlog or self._is_closing or not self._may_begin():
                return
            data, block = self._backlog.popleft()
            try:
                self._exchanges.append(begin(self, data, block))
            except MillstreamError as error:
                block.release()
                self.close(str(error))
        if self._backlog and not self._is_work_scheduled:
            self._is_work_scheduled = True
            self._loop.call_soon(self._resume_work)

    def _resume_work(self) -> None:
        self._is_work_scheduled = False
        self._go_on()

    def _may_begin(self) -> bool:
        return (
            not self._held_by
            and not self._is_writing_paused
            and self._unsent_bytes < self._config.output_bytes_max
            and len(self._exchanges) < self._config.requests_in_flight_max
            and not self._muted_until
        )

    def hold(self) -> None:
        """Begin no other request until `let_go`."""
        self._held_by += 1

    def let_go(self) -> None:
        """Let the next request begin."""
        self._held_by -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._backlog:
            self._work_off()
        self._pace()

    # Throttling.

    def mute(self, seconds: float) -> None:
        """Begin no request for a while: the client was told how long, and may not listen."""
        counters = self._listener.counters
        counters.throttled += 1
        counters.throttle_seconds += seconds
        until = self._loop.time() + seconds
        if until > self._muted_until:
            self._muted_until = until
            self._loop.call_at(until, self._unmute, until)
            self._pace()

    def _unmute(self, until: float) -> None:
        # The timer says that the time is over; the loop's clock may stand a hair before it.
        if until == self._muted_until:
            self._muted_until = 0.0
            self._go_on()

    def _is_muted(self) -> bool:
        return self._muted_until > 0.0

    # Answering.

    def answered(self, size: int) -> None:
        """Take note of an answer of `size` bytes: it goes out with others of this turn."""
        self._unsent_bytes += size
        if not self._is_flush_scheduled and not self._is_closing:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers of requests before which none waits."""
        self._is_flush_scheduled = False
        if self._is_closing or self._transport is None:
            return
        out: list[Bytes] = []
        exchanges = self._exchanges
        while exchanges and (parts := exchanges[0].parts) is not None:
            exchanges.popleft()
            out += parts
        if out:
            size = sum(map(len, out))
            self._unsent_bytes -= size
            self._listener.counters.sent_bytes += size
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
        if self._backlog:
            self._work_off()
        if not self._is_reading:
            self._pace()
        if self._listener.is_draining:
            self._close_if_drained()

    def pause_writing(self) -> None:
        """Begin no more requests: the client does not read their answers."""
        self._is_writing_paused = True
        self._stalled_since = self._loop.time()

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self._is_writing_paused = False
        self._stalled_since = None
        self._go_on()

    # Deadlines.

    def check_deadlines(self, now: float) -> None:
        """Close the connection if it has kept us waiting for too long."""
        config = self._config
        if self._stalled_since is not None:
            if self._is_read_from():
                self._stalled_since = now
            elif now - self._stalled_since > config.output_ms_max / 1000:
                self.close(f"read nothing for {config.output_ms_max} ms while answers wait")
        elif not self._has_spoken:
            if now - self.connected_at > config.handshake_ms_max / 1000:
                self.close(f"no request within {config.handshake_ms_max} ms of connecting")
        elif self._frame_began_at is not None:
            if now - self._frame_began_at > config.request_ms_max / 1000:
                self.close(f"a request took longer than {config.request_ms_max} ms to arrive")
        elif not self._exchanges and now - self.active_at > config.idle_ms_max / 1000:
            self.close(f"no request for {config.idle_ms_max} ms")

    def _is_read_from(self) -> bool:
        """Whether the client has read some of what waits for it since this was last asked."""
        assert self._transport is not None
        size, before = self._transport.get_write_buffer_size(), self._unread
        self._unread = size
        return size < before

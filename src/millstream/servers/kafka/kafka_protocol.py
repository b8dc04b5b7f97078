"""One connection of a Kafka client.

    bytes ──► receiver ──► backlog ──► in flight ──► responses, in order of requests ──► bytes
                 │            │            │                       │
                 └────────────┴────────────┴── reading pauses ◄────┘
                                               while any of them holds too much

A request starts when those before it have started: a produce then has its place in the log, and the
next request may follow; a request that has to wait for something else delays those behind it.
Responses that are ready in one turn of the loop are sent in one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from millstream.broker.quota_rules import ANONYMOUS
from millstream.errors import MalformedRequest, MillstreamError
from millstream.records.batch import Bytes
from millstream.servers.frame_receiver import FrameReceiver
from millstream.servers.kafka.backlogs import ARRIVAL_REQUESTS_MAX, TURN_REQUESTS_MAX
from millstream.servers.kafka.fast_produce import PendingFastProduce
from millstream.servers.kafka.pending_request import PendingRequest

if TYPE_CHECKING:
    from millstream.servers.kafka.listener import KafkaListener

logger = logging.getLogger(__name__)

SMALL_PART_BYTES = 1024
"""Parts of responses are joined if they are smaller than this on average: if they have to wait,
many small ones would need several times their size in memory.
"""


class KafkaProtocol(asyncio.BufferedProtocol):
    """The protocol of one connection. Runs on the event loop."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._config = listener.config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(
            listener.blocks, frame_size_max=self._config.request_size_max
        )
        self._requests: deque[PendingRequest | PendingFastProduce] = deque()
        self._pauses = 0
        self._is_flush_scheduled = False
        self._is_in_turn = False
        """Whether the connection is in the queue of those with a backlog."""
        self._held_bytes = 0
        """Memory of requests in flight, and of responses that wait for those before them or for the
        end of the turn."""
        self._is_reading = True
        self._is_writing_paused = False
        self._is_waiting_for_memory = False
        self._is_closing = False
        self._throttled_until = 0.0
        self.host = ""
        self.principal = ANONYMOUS
        self.client_id = ""
        """Of the last request that was not a plain produce."""
        self.connected_at = self.active_at = self._loop.time()
        self._frame_started_at: float | None = None
        self.stalled_since: float | None = None
        """When the client last read something, if it does not read its responses now."""
        self._unread = 0
        """Bytes that the socket had not taken when that was last checked."""
        self._unread_bytes = 0
        """Bytes of responses since the socket last had taken all."""
        self._has_sent_request = False

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it if there are too many."""
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        if not self._listener.admit(self):
            self._is_closing = True
            transport.abort()
            return
        # Whatever the socket does not take at once is counted until all of it is sent: the last
        # byte of a response keeps all of it in memory.
        transport.set_write_buffer_limits(high=0, low=0)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's.
        """Release everything. What was appended stays appended."""
        self._is_closing = True
        self._listener.forget(self)
        self._receiver.close()
        self._release_responses()
        for pending in self._requests:
            pending.cancel()
        self._requests.clear()

    @property
    def request_count(self) -> int:
        """Number of requests in flight."""
        return len(self._requests)

    def close(self, reason: str) -> None:
        """Close the connection at once."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        logger.info("%s: closed: %s", self.host, reason)
        self._listener.counters.closed_by_us += 1
        self._release_responses()
        self._transport.abort()

    def _release_responses(self) -> None:
        """Stop counting the memory of a connection that ends."""
        memory = self._listener.response_memory
        memory.held_bytes -= self._held_bytes
        self._held_bytes = 0
        memory.note_read(self)

    def drain(self) -> None:
        """Stop reading, answer the requests in flight, then close."""
        self._is_reading = False
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()
            self._receiver.drop_backlog()
            self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._listener.is_draining and not self._requests and self._transport is not None:
            self._is_closing = True
            self._transport.close()

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's.
        """Return the memory for the next bytes."""
        return self._receiver.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that have arrived."""
        if self._is_closing:
            return
        self._listener.counters.received_bytes += nbytes
        try:
            self._receiver.received(nbytes)
        except MalformedRequest as error:
            self.close(str(error))
            return
        receiver = self._receiver
        if receiver.has_backlog:
            self.active_at = self._loop.time()
            self._has_sent_request = True
            self._frame_started_at = None
            if not self._is_in_turn:
                self._begin_backlog()
        if receiver.is_within_frame:
            if self._frame_started_at is None:
                self._frame_started_at = self._loop.time()
            self._update_flow_control()
        elif receiver.has_backlog or self._throttled_until or not receiver.has_capacity():
            self._update_flow_control()

    def eof_received(self) -> bool:
        """Close when the client closes its side: no Kafka client half-closes."""
        return False

    def _update_flow_control(self) -> None:
        """Pause or resume reading, depending on how much is in flight."""
        if self._is_closing or self._transport is None:
            return
        has_backlog = self._receiver.has_backlog
        may_read = not has_backlog and not self._is_throttled() and self._has_memory()
        if may_read and not self._is_reading and not self._listener.is_draining:
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

    # Requests.

    def _begin_backlog(self) -> None:
        """Start requests outside a turn, or wait for one if that would delay other connections."""
        backlogs = self._listener.backlogs
        if backlogs.is_empty:
            self._process_backlog(TURN_REQUESTS_MAX)
        elif not self._receiver.has_more_frames_than(ARRIVAL_REQUESTS_MAX):
            backlogs.note_arrival()
            self._process_backlog(ARRIVAL_REQUESTS_MAX)
        elif self._may_begin():
            self._is_in_turn = True
            backlogs.add(self)
        else:
            self._receiver.copy_backlog()

    def _process_backlog(self, count_max: int) -> None:
        """Start at most `count_max` requests, and leave others to a later turn of the loop."""
        listener, receiver = self._listener, self._receiver
        begin = listener.dispatcher.begin
        for _ in range(count_max):
            if self._is_closing:
                return
            if not self._may_begin():
                receiver.copy_backlog()  # It may have to wait for long.
                return
            try:
                frame = receiver.next_frame()
            except MalformedRequest as error:
                self.close(str(error))
                return
            if frame is None:
                return
            data, block = frame
            try:
                pending = begin(self, data, block)
            except MillstreamError as error:
                block.release()
                self.close(str(error))
                return
            self._requests.append(pending)
            self._held_bytes += pending.memory_bytes
            listener.response_memory.hold(pending.memory_bytes)
        if receiver.has_backlog and not self._is_in_turn:
            self._is_in_turn = True
            listener.backlogs.add(self)

    def continue_backlog(self, count_max: int) -> None:
        """Start more requests of the backlog: the connection has its turn."""
        self._is_in_turn = False
        if not self._is_closing:
            self._process_backlog(count_max)
            self._update_flow_control()

    def _may_begin(self) -> bool:
        return (
            not self._pauses
            and not self._is_writing_paused
            and self._held_bytes < self._config.output_bytes_max
            and len(self._requests) < self._config.requests_in_flight_max
            and not self._throttled_until
        )

    def pause(self) -> None:
        """Start no other request until `resume`."""
        self._pauses += 1

    def resume(self) -> None:
        """Let the next request start."""
        self._pauses -= 1
        self._continue()

    def _continue(self) -> None:
        if self._receiver.has_backlog and not self._is_in_turn:
            self._begin_backlog()
        self._update_flow_control()

    # Throttling.

    def throttle(self, seconds: float) -> None:
        """Start no request for a while: the client was told to wait, but may not comply."""
        counters = self._listener.counters
        counters.throttled += 1
        counters.throttle_seconds += seconds
        until = self._loop.time() + seconds
        if until > self._throttled_until:
            self._throttled_until = until
            self._loop.call_at(until, self._end_throttle, until)
            self._update_flow_control()

    def _end_throttle(self, until: float) -> None:
        # The timer is authoritative; the loop's clock may be slightly behind it.
        if until == self._throttled_until:
            self._throttled_until = 0.0
            self._continue()

    def _is_throttled(self) -> bool:
        return self._throttled_until > 0.0

    # Responses.

    def answered(self, size: int) -> None:
        """Register a response of `size` bytes, which is sent with others of this turn."""
        if self._is_closing:
            return
        self._held_bytes += size
        self._listener.response_memory.hold(size)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the responses that are ready, up to the first request that is not."""
        self._is_flush_scheduled = False
        if self._is_closing or self._transport is None:
            return
        out: list[Bytes] = []
        requests, freed = self._requests, 0
        while requests and (parts := requests[0].parts) is not None:
            freed += requests.popleft().memory_bytes
            out += parts
        if out:
            size = sum(map(len, out))
            freed += size
            self._listener.counters.sent_bytes += size
            if self._is_writing_paused:
                self._unread_bytes += size
                self._listener.response_memory.note_unread(self, self._unread_bytes)
            else:
                self._unread_bytes = size
            if len(out) == 1:
                self._transport.write(out[0])
            elif size <= SMALL_PART_BYTES * len(out):
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
        if freed:
            self._held_bytes -= freed
            self._listener.response_memory.held_bytes -= freed
        if self._receiver.has_backlog and not self._is_in_turn:
            self._begin_backlog()
        if not self._is_reading:
            self._update_flow_control()
        if self._listener.is_draining:
            self._close_if_drained()

    def pause_writing(self) -> None:
        """Start no more requests: the client does not read its responses."""
        self._is_writing_paused = True
        self.stalled_since = self._loop.time()
        self._listener.response_memory.note_unread(self, self._unread_bytes)

    def resume_writing(self) -> None:
        """Continue: the client reads again."""
        self._is_writing_paused = False
        self.stalled_since = None
        self._unread = 0
        self._listener.response_memory.note_read(self)
        self._continue()

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
                self.close(f"no request within {config.handshake_ms_max} ms of connecting")
        elif self._frame_started_at is not None:
            if now - self._frame_started_at > config.request_ms_max / 1000:
                self.close(f"a request took longer than {config.request_ms_max} ms to arrive")
        elif not self._requests and now - self.active_at > config.idle_ms_max / 1000:
            self.close(f"no request for {config.idle_ms_max} ms")

    def note_progress(self, now: float) -> bool:
        """Return whether the client has read some output since the last call, and remember it."""
        is_read_from = self._is_read_from()
        if is_read_from:
            self.stalled_since = now
        return is_read_from

    def _is_read_from(self) -> bool:
        assert self._transport is not None
        size, before = self._transport.get_write_buffer_size(), self._unread
        self._unread = size
        return size < before

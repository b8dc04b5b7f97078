"""One connection whose requests are answered in their order: what servers of clients share.

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
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import USER, Principal
from millstream.broker.access.user_slots import UserSlots, slot_holder
from millstream.errors import CapExceeded, MalformedRequest, MillstreamError
from millstream.records.batch import Bytes
from millstream.servers.backlogs import ARRIVAL_REQUESTS_MAX, TURN_REQUESTS_MAX
from millstream.servers.frame_connection import FrameConnection
from millstream.servers.frame_receiver import FrameReceiver
from millstream.servers.peer_state import has_peer_gone
from millstream.servers.tls import certificate_holder, close_idle

if TYPE_CHECKING:
    from millstream.config.schema import KafkaConfig, NativeConfig
    from millstream.servers.request_listener import RequestListener

SMALL_PART_BYTES = 1024
"""Parts of responses are joined if they are smaller than this on average: if they have to wait,
many small ones would need several times their size in memory.
"""


class StartedRequest(Protocol):
    """A request in flight, as its connection sees it."""

    @property
    def parts(self) -> list[Bytes] | None:
        """The response; `None` until it is ready, empty if the client wants none."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory that the request takes until its response is sent, about."""
        ...

    def cancel(self) -> None:
        """Stop waiting for the response: the connection is lost."""
        ...

    def abandon(self) -> None:
        """Stop waiting for new records: the client has gone, and reads no response."""
        ...


class RequestConnection(FrameConnection):
    """The protocol of one connection. Runs on the event loop."""

    UNSENT_BYTES_MAX = 0

    _listener: RequestListener[Any]
    _config: KafkaConfig | NativeConfig

    def __init__(self, listener: RequestListener[Any], receiver: FrameReceiver) -> None:
        super().__init__(listener, receiver)
        self._requests: deque[StartedRequest] = deque()
        self._pauses = 0
        self._is_flush_scheduled = False
        self._is_in_turn = False
        """Whether the connection is in the queue of those with a backlog."""
        self._held_bytes = 0
        """Memory of requests in flight, and of responses that wait for those before them or for the
        end of the turn."""
        self._is_writing_paused = False
        self._throttled_until = 0.0
        self._is_ending = False
        self._caps = listener.caps
        self._request_slots: UserSlots | None = None
        """Slots for requests; None before a login, and if their number has no cap. Requests of
        others must not delay a login."""
        self._holder = ""
        """Whom the connection and its requests are counted for; nobody before a login."""
        self.caller = NOBODY
        """Who sends the requests: replaced when the client connects, and when it logs in."""
        self._unread_bytes = 0
        """Bytes of responses since the socket last had taken all."""

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection. The client is whom its certificate names, until it logs in."""
        super().connection_made(transport)
        if self._listener.access is not None:
            self.caller = Caller(host=self.host)
        holder = certificate_holder(transport, self._listener.principal_rules)
        if holder is None or self._is_closing:
            return
        if holder.user is None:
            self.close(f"tls.principal_rules name no user for {holder.name[:200]!r}")
            return
        caller = Caller(Principal(USER, holder.user), self.host)
        try:
            self.log_in(caller, 0)
        except CapExceeded as error:
            self.close(str(error))
            return
        if self._listener.access is not None:
            self._listener.access.note_login(caller, "certificate")

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything. What was appended stays appended."""
        super().connection_lost(exc)
        self._release_responses()
        self._give_back_slots()
        for pending in self._requests:
            pending.cancel()
        self._requests.clear()

    @property
    def request_count(self) -> int:
        """Number of requests in flight."""
        return len(self._requests)

    def close(self, reason: str) -> None:
        """Close the connection at once."""
        super().close(reason)
        self._release_responses()

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
        is_last = self._is_ending or self._listener.is_draining
        if is_last and not self._requests and self._transport is not None:
            self._is_closing = True
            close_idle(self._transport)

    # Logging in.

    def log_in(self, caller: Caller, session_ms: int) -> None:
        """Let a caller send requests from now on, for so long if it is not 0.

        Raises `CapExceeded` if its user has too many connections.
        """
        self._move_slots(slot_holder(caller))
        self.caller = caller
        if session_ms:
            self._loop.call_later(session_ms / 1000, self._end_session, caller)

    def _end_session(self, caller: Caller) -> None:
        if self.caller is caller:
            self.close(f"{caller.principal} has not logged in again in time")

    def _move_slots(self, holder: str) -> None:
        """Count this connection and its requests for someone else."""
        if holder == self._holder or self._is_closing:  # None would be given back any more.
            return
        connections, requests = self._caps.connections, self._caps.requests
        if connections is not None:
            connections.check(holder)
        self._give_back_slots()
        if connections is not None:
            connections.take(holder)
        if requests is not None:
            requests.take(holder, len(self._requests))
        self._holder, self._request_slots = holder, requests

    def _give_back_slots(self) -> None:
        if not self._holder:
            return
        if self._caps.connections is not None:
            self._caps.connections.give_back(self._holder)
        if self._request_slots is not None:
            self._request_slots.forget(self._holder, self)
            self._request_slots.give_back(self._holder, len(self._requests))

    def check_deadlines(self, now: float) -> None:
        """Also stop waiting for new records if the client has gone.

        While requests wait for a slot nothing is read, so that the end of the connection is not
        seen either: fetches could hold the slots of their user for as long as they like. What the
        client has sent before it went still takes effect.
        """
        super().check_deadlines(now)
        is_unseen = self._request_slots is not None and not self._is_reading
        if is_unseen and self._requests and has_peer_gone(self._transport):
            for pending in list(self._requests):
                pending.abandon()

    def end(self) -> None:
        """Start no more requests, and close the connection when the responses are sent."""
        self._is_ending = True

    # Reading.

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

    def _may_read(self) -> bool:
        return not self._throttled_until and not self._listener.is_draining

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
            if self._request_slots is not None:
                self._request_slots.take(self._holder)
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
            and not self._is_ending
            and not self._is_writing_paused
            and self._held_bytes < self._config.output_bytes_max
            and len(self._requests) < self._config.requests_in_flight_max
            and not self._throttled_until
            and (self._request_slots is None or self._has_slot(self._request_slots))
        )

    def _has_slot(self, slots: UserSlots) -> bool:
        """Return whether the user may have one more request in flight; else wait for that."""
        if slots.has_room(self._holder):
            return True
        slots.wait(self._holder, self)
        return False

    def wake(self) -> None:
        """Continue soon: a request of the same user was answered. Part of `SlotWaiter`."""
        self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        if not self._is_closing:
            self._continue()
        if self._request_slots is not None:  # This connection may have had no use for the slot.
            self._request_slots.wake_next(self._holder)

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

    def _flush(self) -> None:  # noqa: PLR0912 - another call would cost each response.
        """Send the responses that are ready, up to the first request that is not."""
        self._is_flush_scheduled = False
        if self._is_closing or self._transport is None:
            return
        out: list[Bytes] = []
        requests, freed = self._requests, 0
        count = len(requests)
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
        if self._request_slots is not None:
            self._request_slots.give_back(self._holder, count - len(requests))
        if freed:
            self._held_bytes -= freed
            self._listener.response_memory.held_bytes -= freed
        if self._receiver.has_backlog and not self._is_in_turn:
            self._begin_backlog()
        if not self._is_reading:
            self._update_flow_control()
        if self._is_ending or self._listener.is_draining:
            self._close_if_drained()

    def pause_writing(self) -> None:
        """Start no more requests: the client does not read its responses."""
        self._is_writing_paused = True
        super().pause_writing()
        self._listener.response_memory.note_unread(self, self._unread_bytes)

    def resume_writing(self) -> None:
        """Continue: the client reads again."""
        self._is_writing_paused = False
        super().resume_writing()
        self._listener.response_memory.note_read(self)
        self._continue()

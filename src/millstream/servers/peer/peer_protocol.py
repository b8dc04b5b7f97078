"""One connection of a peer.

    bytes ──► receiver ──► handshake, once ──► requests in flight ──► responses, in any order
                 │                                    │
                 └── reading pauses while memory is   └── a request beyond the limits is refused,
                     short, or the peer reads             with a code that says that nothing was
                     nothing                              done

Bytes that no peer sends close the connection: there is one line in the log, one more in a counter,
and no effect on any other connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from millstream.errors import MalformedRequest, UnsupportedVersion
from millstream.protocols.kafka.codec.message import decode
from millstream.protocols.kafka.codec.primitives import Buffer
from millstream.protocols.peer.apis import ANNOUNCED, PEER_APIS, PeerApi
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.frame import (
    FrameHeader,
    FrameKind,
    decode_credit,
    decode_frame,
    encode_frame,
)
from millstream.protocols.peer.handshake import (
    HANDSHAKE_SIZE_MAX,
    HandshakeResponse,
    decode_handshake_request,
    encode_handshake,
)
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.frame_connection import FrameConnection
from millstream.servers.frame_receiver import FrameReceiver
from millstream.servers.peer.peer_context import ConnectingPeer, PeerContext
from millstream.servers.peer.pending_call import PendingCall
from millstream.tracing import Span, traced_as

if TYPE_CHECKING:
    from millstream.config.schema import PeerConfig
    from millstream.servers.peer.listener import PeerListener

logger = logging.getLogger(__name__)

TURN_FRAMES_MAX = 64
"""Frames of one connection that are processed in one turn of the loop."""


class PeerProtocol(FrameConnection):
    """The protocol of one connection. Runs on the event loop."""

    FIRST_REQUEST = "handshake"
    UNSENT_BYTES_MAX = 256 * 1024

    _listener: PeerListener
    _config: PeerConfig

    def __init__(self, listener: PeerListener) -> None:
        # Until its handshake, a connection may cost no more than that.
        receiver = FrameReceiver(listener.blocks, frame_size_max=HANDSHAKE_SIZE_MAX)
        super().__init__(listener, receiver)
        self._calls: dict[int, PendingCall] = {}
        self._writable: asyncio.Future[None] | None = None
        """Set while the peer does not read its responses."""
        self._is_scheduled = False
        self.tasks = listener.tasks
        self.peer: ConnectingPeer | None = None
        """None until the handshake."""

    # The connection.

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, and stop the work for this peer."""
        super().connection_lost(exc)
        self._set_writable()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.drop()

    def _close_nonsense(self, error: Exception) -> None:
        if not self._is_closing:
            self._listener.counters.nonsense += 1
            self.close(str(error))

    @property
    def name(self) -> str:
        """The peer, for the log."""
        if self.peer is None:
            return self.host
        return f"node {self.peer.identity.node_id} at {self.host}"

    @property
    def request_count(self) -> int:
        """Number of requests in flight."""
        return len(self._calls)

    # Reading.

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that have arrived."""
        if self._is_closing:
            return
        self._listener.counters.received_bytes += nbytes
        try:
            self._receiver.received(nbytes)
        except MalformedRequest as error:
            self._close_nonsense(error)
            return
        if self._receiver.has_backlog:
            self.active_at = self._loop.time()
            self._frame_started_at = None
            self._process_backlog()
        elif self._frame_started_at is None:
            self._frame_started_at = self._loop.time()
        self._update_flow_control()

    def _process_backlog(self) -> None:
        """Process frames, and leave those beyond a limit to a later turn of the loop."""
        receiver = self._receiver
        for _ in range(TURN_FRAMES_MAX):
            if self._is_closing:
                return
            if self._writable is not None:
                receiver.copy_backlog()
                return
            try:
                frame = receiver.next_frame()
            except MalformedRequest as error:
                self._close_nonsense(error)
                return
            if frame is None:
                return
            data, block = frame
            try:
                is_kept = self._process(data, block)
            except MalformedRequest as error:
                block.release()
                self._close_nonsense(error)
                return
            if not is_kept:
                block.release()
        if receiver.has_backlog and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if not self._is_closing:
            if self._receiver.has_backlog:
                self._process_backlog()
            self._update_flow_control()

    def _may_read(self) -> bool:
        return self._writable is None

    # Frames.

    def _process(self, data: memoryview, block: ReceiveBlock) -> bool:
        """Process one frame; return whether the block is still in use."""
        peer = self.peer
        if peer is None:
            self._shake_hands(data)
            return False
        header, body = decode_frame(data)
        if header.hlc:
            peer.drift_ms = self._listener.observe(header.hlc)
        call = self._calls.get(header.correlation_id)
        match header.kind:
            case FrameKind.REQUEST:
                if call is not None:
                    raise MalformedRequest(f"correlation id {header.correlation_id} is in use")
                return self._begin(peer, header, body, block)
            case FrameKind.CANCEL:
                if call is not None:
                    call.cancel()
            case FrameKind.CREDIT:
                size = decode_credit(body)
                if call is not None:
                    call.add_credit(size)
            case _:
                raise MalformedRequest(f"frame is a {header.kind.name}, which peers do not send")
        return False

    def _begin(
        self, peer: ConnectingPeer, header: FrameHeader, body: memoryview, block: ReceiveBlock
    ) -> bool:
        """Start a request, or refuse it; return True: the call releases the block."""
        listener = self._listener
        api = PEER_APIS.get(header.api_key)
        if api is None:
            raise MalformedRequest(f"unknown API key {header.api_key}")
        if header.version not in api.versions:
            raise MalformedRequest(
                f"version of {api.name} must be between {api.versions.first} and"
                f" {api.versions.last}, got {header.version}"
            )
        try:
            request = decode(api.request, body, header.version)
        except MalformedRequest as error:
            raise MalformedRequest(f"{error}, in {api.name}") from error
        call = PendingCall(self, api, header, block, listener.counters.requests[api.name])
        handler = listener.handlers.get(api.request)
        if handler is None or peer.purpose not in api.purposes:
            purpose = peer.purpose.name.lower()
            text = f"{api.name} is not served here on connections for {purpose}"
            call.refuse(PeerErrorCode.NOT_SERVED, text)
        elif (refusal := self._refusal_of(header)) is not None:
            call.refuse(*refusal)
        else:
            self._calls[header.correlation_id] = call
            context = PeerContext(
                peer,
                header.version,
                self._loop.time() + header.deadline_ms / 1000,
                header.hlc,
                header.traceparent,
            )
            if header.traceparent is None:
                call.run(handler, request, context)
            else:
                call.span = self._begin_span(api, peer, header.traceparent)
                span = call.span
                with traced_as(header.traceparent if span is None else span.traceparent):
                    call.run(handler, request, context)
        return True

    def _begin_span(self, api: PeerApi, peer: ConnectingPeer, traceparent: str) -> Span | None:
        """Begin the span of a request whose caller is traced.

        A forwarded HTTP request gets the span that all HTTP requests have.
        """
        tracer = self._listener.tracer
        if tracer is None or api.request is ForwardRequest:
            return None
        span = tracer.begin(f"Peer {api.name}", traceparent)
        if span is not None:
            span.set_attribute("millstream.peer.node", peer.identity.node_id)
        return span

    def _refusal_of(self, header: FrameHeader) -> tuple[PeerErrorCode, str] | None:
        """Return why a request is not started, if it is not."""
        listener, config = self._listener, self._config
        if not header.deadline_ms:
            return PeerErrorCode.EXPIRED, "the deadline had passed"
        if listener.is_draining:
            return PeerErrorCode.STOPPING, "the node is shutting down"
        if len(self._calls) >= config.requests_in_flight_max:
            limit = config.requests_in_flight_max
            return PeerErrorCode.BUSY, f"{limit} requests are in flight on this connection"
        if (size := listener.unsent_bytes()) > config.output_bytes_max:
            text = f"{size} bytes wait to be read by peers, limit is {config.output_bytes_max}"
            return PeerErrorCode.BUSY, text
        return None

    # The handshake.

    def _shake_hands(self, data: memoryview) -> None:
        """Admit the peer, or refuse it and close."""
        try:
            request = decode_handshake_request(data)
        except UnsupportedVersion as error:
            self._refuse_handshake(PeerErrorCode.UNSUPPORTED_VERSION, str(error))
            return
        peer, code, text = self._listener.check_handshake(request, self.host, self._names())
        if code is not PeerErrorCode.NONE:
            self._refuse_handshake(code, text)
            return
        self.peer = peer
        self._has_sent_request = True
        peer.drift_ms = self._listener.observe(request.hlc)
        self._receiver.frame_size_max = self._config.request_size_max
        self._listener.counters.handshakes += 1
        local = self._listener.local
        response = HandshakeResponse(
            cluster_id=local.cluster_id,
            node_id=local.node_id,
            incarnation=local.incarnation,
            software_version=local.software_version,
            hlc=self._listener.timestamp(),
            apis=ANNOUNCED,
        )
        self.send([encode_handshake(response)])

    def _refuse_handshake(self, code: PeerErrorCode, text: str) -> None:
        """Say why, and nothing of the cluster, to one who may not belong to it."""
        assert self._transport is not None
        logger.warning("%s: handshake refused: %s: %s", self.host, code.name, text)
        self._listener.counters.refused_handshakes[code] += 1
        self.send([encode_handshake(HandshakeResponse(error_code=code, error_message=text))])
        self._is_closing = True
        self._transport.close()

    def _names(self) -> tuple[str, ...]:
        """Return the names in the certificate of the peer."""
        assert self._transport is not None
        certificate: dict[str, Any] = self._transport.get_extra_info("peercert") or {}
        names = [str(value) for _, value in certificate.get("subjectAltName", ())]
        for part in certificate.get("subject", ()):
            names += [str(value) for key, value in part if key == "commonName"]
        return tuple(names)

    # Responses.

    def timestamp(self) -> int:
        """Return the timestamp of a frame that is sent now."""
        return self._listener.timestamp()

    def forget(self, correlation_id: int) -> None:
        """Remove a request that has ended."""
        self._calls.pop(correlation_id, None)
        self.active_at = self._loop.time()

    def send(self, parts: list[Buffer]) -> None:
        """Send a frame. Its buffers are not copied."""
        if self._is_closing or self._transport is None:
            return
        self._listener.counters.sent_bytes += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def pause_writing(self) -> None:
        """Read no more requests: the peer does not read its responses."""
        self._writable = self._loop.create_future()
        super().pause_writing()
        self._listener.slow.add(self)
        self._update_flow_control()

    def resume_writing(self) -> None:
        """Continue: the peer reads again."""
        super().resume_writing()
        self._set_writable()
        self._listener.slow.discard(self)
        self._continue()

    async def wait_until_writable(self) -> None:
        """Return when the peer reads: a stream does not go on before."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def _set_writable(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def go_away(self) -> None:
        """Tell the peer to start no more requests here."""
        if self.peer is None:
            self.close("the node stops")
        else:
            self.send(encode_frame(FrameHeader(FrameKind.GOING_AWAY, 0, hlc=self.timestamp())))

"""One connection to a peer: many requests at a time, with responses in any order.

A request that was handed to the socket and got no response has an unknown outcome:
`OutcomeUnknown`. Before that, and if the peer says so, nothing was done: `PeerUnavailable`.

Records are never copied here: a request is sent from the buffers of its parts, and the records of a
response are views into the memory that it was read into, which they keep.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from millstream.clients.peer.counters import PeerClientCounters
from millstream.clients.peer.frame_reader import FrameReader
from millstream.clients.peer.sent_request import PeerStream, SentRequest, Settled
from millstream.clock import Clock
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import Endpoint, PeerConfig
from millstream.errors import (
    MalformedAnswer,
    MalformedRequest,
    OutcomeUnknown,
    PeerUnavailable,
    UnsupportedVersion,
)
from millstream.protocols.kafka.codec.message import decode, encode_parts
from millstream.protocols.kafka.codec.primitives import Buffer
from millstream.protocols.peer.apis import ANNOUNCED, API_OF_REQUEST, PeerApi
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import UNKNOWN_OUTCOMES, peer_error_of
from millstream.protocols.peer.frame import (
    DEADLINE_MS_MAX,
    FrameHeader,
    FrameKind,
    decode_frame,
    encode_credit,
    encode_frame,
)
from millstream.protocols.peer.handshake import (
    HANDSHAKE_SIZE_MAX,
    HandshakeRequest,
    HandshakeResponse,
    Purpose,
    common_versions,
    decode_handshake_response,
    encode_handshake,
)
from millstream.protocols.peer.identity import PeerIdentity

logger = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""Bytes that may wait for the socket before further requests have to wait."""

_NUMBER_MASK: Final = 2**31 - 1


class PeerConnection(asyncio.BufferedProtocol):
    """A connection to one peer, for one purpose. Belongs to an event loop."""

    def __init__(
        self,
        local: PeerIdentity,
        node_id: int,
        endpoint: Endpoint,
        purpose: Purpose,
        *,
        clock: Clock,
        hlc: HybridClock,
        config: PeerConfig,
        counters: PeerClientCounters,
        on_closed: Callable[[PeerConnection], None] | None = None,
    ) -> None:
        """Create a connection that is not connected; use `connect`."""
        self.node_id = node_id
        self.name = f"node {node_id} at {endpoint}"
        self.purpose = purpose
        self.remote: PeerIdentity | None = None
        """Who was reached; None until the handshake."""
        self.drift_ms = 0
        """How far the peer's clock is ahead of ours, as of its last frame."""
        self._local = local
        self._clock = clock
        self._hlc = hlc
        self._config = config
        self._counters = counters
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(frame_size_max=HANDSHAKE_SIZE_MAX)
        self._versions: Mapping[int, int] = {}
        self._number = 0
        self._sent: dict[int, SentRequest | PeerStream] = {}
        self._abandoned: set[int] = set()
        """Requests that nobody waits for, and whose last frame is still to come."""
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        """Set while the socket takes nothing."""
        self._received_at = 0.0
        self._is_closed = False
        self._is_going_away = False

    # State.

    @property
    def is_usable(self) -> bool:
        """Whether requests can be sent."""
        return self.remote is not None and not self._is_closed and not self._is_going_away

    @property
    def in_flight(self) -> int:
        """Number of requests whose last frame has not arrived."""
        return len(self._sent) + len(self._abandoned)

    def close(self) -> None:
        """Close the connection. The outcome of requests in flight is unknown."""
        self._close("closed by this node")

    # Requests.

    async def call(self, request: Any, *, timeout_s: float, traceparent: str | None = None) -> Any:
        """Send a request and return its response.

        Raises `PeerUnavailable` if nothing was done, `OutcomeUnknown` if that is not known, or the
        error that the peer answered with.
        """
        deadline = self._loop.time() + timeout_s
        await self.wait_until_writable(deadline)
        sent = self.send(request, deadline, settled=_ignore, traceparent=traceparent)
        return await sent.response()

    def send(
        self,
        request: Any,
        deadline: float,
        *,
        settled: Settled,
        traceparent: str | None = None,
    ) -> SentRequest:
        """Send a request; `deadline` is a time on the loop's clock. Raises if it cannot be sent."""
        api, version = self._api_of(request)
        parts, number = self._encode(request, api, version, deadline, traceparent)
        sent = SentRequest(self, number, api, version, settled)
        self._start(sent, parts, deadline)
        return sent

    def stream(
        self,
        request: Any,
        deadline: float,
        *,
        idle_s: float,
        settled: Settled,
        traceparent: str | None = None,
    ) -> PeerStream:
        """Send a request that is answered with a stream.

        The deadline is for its first item; each further one has to arrive within `idle_s`.
        """
        api, version = self._api_of(request)
        parts, number = self._encode(request, api, version, deadline, traceparent)
        stream = PeerStream(self, number, api, version, settled, idle_s=idle_s)
        self._start(stream, parts, deadline)
        return stream

    async def wait_until_writable(self, deadline: float) -> None:
        """Return when the socket takes more; raises `PeerUnavailable` if that is too late."""
        while self._writable is not None and not self._is_closed:
            seconds = deadline - self._loop.time()
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await asyncio.shield(self._writable)
            except TimeoutError:
                raise PeerUnavailable(
                    f"{self.name}: does not read; the request was not sent"
                ) from None

    def _api_of(self, request: Any) -> tuple[PeerApi, int]:
        api = API_OF_REQUEST[type(request)]
        if not self.is_usable:
            reason = "is going away" if self._is_going_away else "connection is closed"
            raise PeerUnavailable(f"{self.name}: {reason}")
        version = self._versions.get(api.key)
        if version is None:
            raise PeerUnavailable(
                f"{self.name}: does not know a version of {api.name} that this node knows",
                code=PeerErrorCode.UNSUPPORTED_VERSION,
            )
        return api, version

    def _encode(
        self, request: Any, api: PeerApi, version: int, deadline: float, traceparent: str | None
    ) -> tuple[list[Buffer], int]:
        deadline_ms = int((deadline - self._loop.time()) * 1000)
        if deadline_ms <= 0:
            raise PeerUnavailable(f"{self.name}: the deadline of {api.name} has passed")
        number = self._next_number()
        header = FrameHeader(
            FrameKind.REQUEST,
            number,
            api.key,
            version,
            min(deadline_ms, DEADLINE_MS_MAX),
            self._timestamp(),
            traceparent=traceparent,
        )
        return encode_frame(header, encode_parts(request, version)), number

    def _next_number(self) -> int:
        while True:
            self._number = (self._number + 1) & _NUMBER_MASK
            if self._number not in self._sent and self._number not in self._abandoned:
                return self._number

    def _start(self, sent: SentRequest | PeerStream, parts: list[Buffer], deadline: float) -> None:
        self._sent[sent.number] = sent
        sent.expire_at(deadline, max(0.0, deadline - self._loop.time()))
        self._write(parts)

    def abandon(self, number: int) -> None:
        """Tell the peer that nobody waits for a response any more."""
        if self._sent.pop(number, None) is not None and not self._is_closed:
            self._abandoned.add(number)
            self._write(encode_frame(FrameHeader(FrameKind.CANCEL, number)))
            # A peer answers a cancellation at once. If it is gone without a word, the kernel may
            # take a quarter of an hour to notice.
            now, seconds = self._loop.time(), self._config.silence_ms_max / 1000
            self._loop.call_later(seconds, self._close_if_silent, number, now)

    def _close_if_silent(self, number: int, since: float) -> None:
        if number in self._abandoned and self._received_at <= since:
            self._close(f"silent for {self._config.silence_ms_max} ms after a request was given up")

    def send_credit(self, number: int, size: int) -> None:
        """Allow the peer to send more of a stream."""
        if not self._is_closed:
            self._write(encode_credit(number, size))

    def _write(self, parts: list[Buffer]) -> None:
        assert self._transport is not None
        self._counters.sent_bytes += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _timestamp(self) -> int:
        return self._hlc.now(self._clock.wall_ms())

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        local = self._local
        request = HandshakeRequest(
            cluster_id=local.cluster_id,
            node_id=local.node_id,
            incarnation=local.incarnation,
            target_node_id=self.node_id,
            software_version=local.software_version,
            purpose=self.purpose,
            hlc=self._timestamp(),
            apis=ANNOUNCED,
        )
        self._write([encode_handshake(request)])

    async def wait_until_ready(self) -> None:
        """Return when the handshake is done; raises `PeerUnavailable` if it was refused."""
        await self._ready

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's.
        """Return the memory for the next bytes."""
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that have arrived."""
        if self._is_closed:
            return
        self._counters.received_bytes += nbytes
        self._received_at = self._loop.time()
        try:
            for frame in self._reader.received(nbytes):
                self._process(frame)
        except (MalformedAnswer, MalformedRequest, UnsupportedVersion) as error:
            self._counters.nonsense += 1
            logger.warning("%s: closed: %s", self.name, error)
            self._close(str(error))

    def eof_received(self) -> bool:
        """Close when the peer closes its side."""
        return False

    def pause_writing(self) -> None:
        """Let further requests wait: the peer does not read."""
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let requests be sent again."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all requests."""
        self._close("connection lost" if exc is None else f"connection lost: {exc}")

    def _close(self, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
        self.resume_writing()
        if not self._ready.done():
            self._ready.set_exception(PeerUnavailable(f"{self.name}: {reason}"))
            self._ready.exception()  # The caller may have given up.
        sent, self._sent = self._sent, {}
        self._abandoned.clear()
        for request in sent.values():
            text = f"{self.name}: {reason}; {request.api.name} may have been executed"
            request.fail(OutcomeUnknown(text), "broken")
        if self._on_closed is not None:
            self._on_closed(self)

    # Frames.

    def _process(self, frame: memoryview) -> None:
        if self._is_closed:
            return
        if self.remote is None:
            self._shake_hands(decode_handshake_response(frame))
            return
        header, body = decode_frame(frame)
        if header.hlc:
            self._observe(header.hlc)
        match header.kind:
            case FrameKind.RESPONSE:
                self._receive(header, body, len(frame) + 4)
            case FrameKind.GOING_AWAY:
                self._is_going_away = True
            case _:
                raise MalformedAnswer(f"frame is a {header.kind.name}, which servers do not send")
        if self._is_going_away and not self.in_flight:
            self._close("the node stops")

    def _receive(self, header: FrameHeader, body: memoryview, size: int) -> None:
        number = header.correlation_id
        sent = self._sent.get(number)
        if sent is None:
            if number not in self._abandoned:
                raise MalformedAnswer(f"response {number} belongs to no request")
            if header.is_last:
                self._abandoned.discard(number)
            return
        if (header.api_key, header.version) != (sent.api.key, sent.version):
            raise MalformedAnswer(
                f"response {number} is of API {header.api_key} version {header.version},"
                f" expected {sent.api.key} version {sent.version}"
            )
        if header.error_code:
            if not header.is_last:
                raise MalformedAnswer(f"error of response {number} is not its last frame")
            del self._sent[number]
            self._receive_error(sent, header.error_code, body)
        elif header.is_last and not len(body):
            del self._sent[number]
            sent.end()
        else:
            if isinstance(sent, PeerStream) and not sent.may_receive:
                raise MalformedAnswer(f"stream {number} sends more than it was allowed to")
            # Malformed, it closes the connection, and the outcome is unknown.
            response = decode(sent.api.response, body, sent.version)
            if header.is_last:
                del self._sent[number]
            sent.receive(response, size, is_last=header.is_last)

    def _receive_error(self, sent: SentRequest | PeerStream, code: int, body: memoryview) -> None:
        text = str(body, "utf-8", "replace")
        error = peer_error_of(code, f"{self.name} on {sent.api.name}: {text}")
        is_unknown = isinstance(error, OutcomeUnknown) or code in UNKNOWN_OUTCOMES
        sent.fail(error, "unknown" if is_unknown else "refused")

    def _shake_hands(self, response: HandshakeResponse) -> None:
        if response.error_code:
            error = _refused(self.name, response)
            self._ready.set_exception(error)
            self._ready.exception()
            self._close(str(error))
            return
        if (response.cluster_id, response.node_id) != (self._local.cluster_id, self.node_id):
            raise MalformedAnswer(
                f"handshake of node {response.node_id} of cluster {response.cluster_id!r},"
                f" expected node {self.node_id} of cluster {self._local.cluster_id!r}"
            )
        self.remote = PeerIdentity(
            response.cluster_id, response.node_id, response.incarnation, response.software_version
        )
        self._versions = common_versions(ANNOUNCED, response.apis)
        self._reader.frame_size_max = self._config.response_size_max
        self._observe(response.hlc)
        if not self._ready.done():
            self._ready.set_result(None)

    def _observe(self, hlc: int) -> None:
        self.drift_ms = self._hlc.observe(hlc, self._clock.wall_ms())


def _refused(name: str, response: HandshakeResponse) -> PeerUnavailable:
    try:
        code = PeerErrorCode(response.error_code).name
    except ValueError:
        code = f"error {response.error_code}"
    text = f"{name}: handshake refused: {code}: {response.error_message}"
    return PeerUnavailable(text, code=response.error_code)


def _ignore(_outcome: str) -> None:
    pass


async def connect(
    make: Callable[[], PeerConnection],
    endpoint: Endpoint,
    *,
    timeout_s: float,
    ssl_context: ssl.SSLContext | None = None,
) -> PeerConnection:
    """Connect, and shake hands, within `timeout_s`. Raises `PeerUnavailable`."""
    loop = asyncio.get_running_loop()
    connection: PeerConnection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                make, endpoint.host, endpoint.port, ssl=ssl_context
            )
            await connection.wait_until_ready()
    except TimeoutError:
        if connection is not None:
            connection.close()
        text = f"{endpoint}: no connection within {timeout_s:g} s"
        raise PeerUnavailable(text) from None
    except OSError as error:
        raise PeerUnavailable(f"{endpoint}: cannot connect: {error}") from None
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection

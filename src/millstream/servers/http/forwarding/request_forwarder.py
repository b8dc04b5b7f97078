"""Sends HTTP requests to the nodes that are responsible for them, and passes their responses on.

    handler ──► NotLeader, NotCoordinator: nothing was done, and another node is named
                    │
                    ▼
    ForwardRequest to that node ──► response: passed on as it comes
                    │
                    └── refused too, and names a third node: sent there, once

A request is forwarded once (`FORWARD_HOPS_MAX`); the node that gets it answers or refuses. If it is
not known whether a request that changes something was executed, the client is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS
from millstream.broker.quotas import QuotaKind
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.errors import (
    LeaderNotAvailable,
    MalformedAnswer,
    MillstreamError,
    NotCoordinator,
    NotLeader,
    OutcomeUnknown,
    PeerUnavailable,
)
from millstream.protocols.http.errors import ErrorAnswer, error_of
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import (
    ForwardHeader,
    ForwardRequest,
    ForwardResponse,
)
from millstream.servers.http.routing.callers import CALLER
from millstream.servers.http.routing.operations import (
    TAKEOVER_SECONDS,
    TAKEOVER_SECONDS_MAX,
    HttpOperation,
)
from millstream.servers.http.routing.recorded_body import RecordedBody
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.usage import DELIVERY_QUOTAS, ClientUsage

logger = logging.getLogger(__name__)

T = TypeVar("T")

API = "request"

FIRST_SECONDS_MAX = 60.0
"""How long the head of a response may take: longer than clients may ask to wait."""

IDLE_HEARTBEATS = 4
"""Heartbeats without which a stream counts as broken."""

REDIRECTS_MAX = 1
"""How often a request follows a refusal to another node."""

HOLD_SECONDS_MAX = 10.0
"""Longest time until the quota of a held stream is checked again."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_LEFT_OUT = frozenset(
    {
        b"authorization",
        b"connection",
        b"expect",
        b"keep-alive",
        b"sec-websocket-protocol",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that are about the connection, not about the request; and the secret of the caller, who
is named to the other node instead."""

Refusal = NotLeader | NotCoordinator
"""Says that this node did nothing, and which one is responsible."""


class ForwardedStream(Protocol):
    """Responses of a peer, in order."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def __anext__(self) -> Any: ...

    def close(self) -> None:
        """End the stream: the peer stops its work."""
        ...


class PeerStreams(Protocol):
    """Requests to other nodes that are answered with streams: `PeerPool`."""

    async def stream(
        self, node_id: int, purpose: Purpose, request: Any, *, timeout_s: float, idle_s: float
    ) -> ForwardedStream:
        """Send a request to a node; return the stream of its responses."""
        ...


def responsible_node(refusal: Refusal) -> int:
    """Return the node that a refusal names; -1 if it names none."""
    return refusal.leader if isinstance(refusal, NotLeader) else refusal.coordinator


class RequestForwarder:
    """Forwards the requests of one node's clients."""

    def __init__(
        self,
        node_id: int,
        peers: PeerStreams,
        counters: ForwardCounters,
        *,
        body_size_max: int,
        heartbeat_seconds: float,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._counters = counters
        self._body_size_max = body_size_max
        self._idle_seconds = heartbeat_seconds * IDLE_HEARTBEATS

    def may_forward(self, refusal: Refusal) -> bool:
        """Return whether a refusal names another node."""
        return responsible_node(refusal) not in (-1, self._node_id)

    async def forward(
        self, request: HttpRequest, operation: HttpOperation, body: RecordedBody, refusal: Refusal
    ) -> Response | None:
        """Return the response of the responsible node; None if this node is it by now."""
        try:
            data = await body.whole(self._body_size_max)
            message = forward_request(request, data)
            response = await self._forward(request, operation, message, refusal)
        except OutcomeUnknown as error:
            self._counters.note_error(API, error)
            if request.method in _SAFE_METHODS:  # Nothing can have been changed.
                raise PeerUnavailable(str(error)) from error
            logger.warning(
                "%s %s: the outcome of a forwarded request is unknown: %s",
                request.method,
                operation.path,
                error,
            )
            raise
        except MillstreamError as error:
            self._counters.note_error(API, error)
            raise
        if response is not None:
            charge(request.usage, operation, response.status_code, len(data))
        return response

    async def ask(
        self,
        request: HTTPConnection,
        refusal: Refusal,
        kind: type[T],
        *,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        purpose: Purpose = Purpose.FORWARDING,
    ) -> T:
        """Send a request about one partition to its node, on behalf of a client's request.

        What operators ask for has the `purpose` `ADMIN`, so that it does not wait behind the
        requests of clients. Returns the response, which is a `kind`. Raises `refusal` if it names
        no other node, and otherwise the error that the node answered with.
        """
        if not self.may_forward(refusal):
            raise refusal
        principal, token_id = _identity(request)
        client = request.scope.get("client")
        message = ForwardRequest(
            principal=principal,
            token_id=token_id,
            client_address="" if client is None else str(client[0]),
            method=method,
            target=path.encode("ascii"),
            headers=(
                *(
                    ForwardHeader(name=name, value=value)
                    for name, value in request.scope["headers"]
                    if name == b"client-id"
                ),
                *(
                    ForwardHeader(name=name.encode(), value=value.encode())
                    for name, value in (headers or {}).items()
                ),
            ),
            body=body,
        )
        try:
            status, answer = await self._ask(responsible_node(refusal), message, purpose)
        except MillstreamError as error:
            self._counters.note_error(API, error)
            raise
        if status >= HTTPStatus.BAD_REQUEST:
            answered = error_of(status, decoded(answer, ErrorAnswer).error)
            self._counters.note_error(API, answered)
            raise answered
        self._counters.note_answer(API)
        return decoded(answer, kind)

    async def _ask(
        self, node_id: int, message: ForwardRequest, purpose: Purpose
    ) -> tuple[int, bytes]:
        stream = await self._peers.stream(
            node_id,
            purpose,
            message,
            timeout_s=FIRST_SECONDS_MAX,
            idle_s=self._idle_seconds,
        )
        try:
            head = await _head_of(stream)
            if head.refusal_code:
                raise refusal_of(head)
            pieces = [body_of(head)]
            pieces += [body_of(response) async for response in stream]
        finally:
            stream.close()
        return head.status, b"".join(pieces)

    async def _forward(
        self,
        request: HttpRequest,
        operation: HttpOperation,
        message: ForwardRequest,
        refusal: Refusal,
    ) -> Response | None:
        redirects = 0
        deadline = asyncio.get_running_loop().time() + TAKEOVER_SECONDS_MAX
        while True:
            stream = await self._peers.stream(
                responsible_node(refusal),
                Purpose.FORWARDING,
                message,
                timeout_s=FIRST_SECONDS_MAX,
                idle_s=self._idle_seconds,
            )
            try:
                head = await _head_of(stream)
            except BaseException:
                stream.close()
                raise
            if not head.refusal_code:
                self._counters.note_answer(API)
                request.is_long_poll = head.is_long_poll
                return ForwardedResponse(request, operation, head, stream)
            stream.close()
            asked, refusal = responsible_node(refusal), refusal_of(head)
            named = responsible_node(refusal)
            if named == self._node_id:
                return None
            if named == asked and asyncio.get_running_loop().time() < deadline:
                # It was elected a moment ago, and has not taken over yet.
                await asyncio.sleep(TAKEOVER_SECONDS)
                continue
            if not self.may_forward(refusal) or redirects == REDIRECTS_MAX:
                raise refusal
            redirects += 1
            self._counters.retries[API] += 1


async def _head_of(stream: ForwardedStream) -> ForwardResponse:
    async for response in stream:
        head: ForwardResponse = response
        if not (head.status or head.refusal_code):
            break
        return head
    raise OutcomeUnknown("node ended a forwarded request without a response")


def decoded(data: bytes, kind: type[T]) -> T:
    """Return what a node answered."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedAnswer(f"response of a node is not a {kind.__name__}: {error}") from error


def body_of(response: ForwardResponse) -> bytes:
    """Return the part of the body in a response."""
    body = response.body or b""
    assert isinstance(body, bytes | memoryview)
    return bytes(body)


def _identity(request: HTTPConnection) -> tuple[str, str]:
    """Return the principal of a request, and the id of its token."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        return str(ANONYMOUS), ""
    return str(caller.principal), "" if caller.token is None else caller.token.id


def forward_request(request: HttpRequest, body: bytes) -> ForwardRequest:
    """Return a request of a client as it is sent to another node."""
    scope = request.scope
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    client = scope.get("client")
    principal, token_id = _identity(request)
    return ForwardRequest(
        hops=1,
        method=scope["method"],
        target=path + b"?" + query if query else path,
        scheme=scope.get("scheme", "http"),
        client_address="" if client is None else str(client[0]),
        principal=principal,
        token_id=token_id,
        headers=tuple(
            ForwardHeader(name=name, value=value)
            for name, value in scope["headers"]
            if name not in _LEFT_OUT
        ),
        body=body,
    )


def charge(usage: ClientUsage, operation: HttpOperation, status: int, size: int) -> None:
    """Charge a client for what another node did for it; responses are charged as they pass."""
    if status >= HTTPStatus.BAD_REQUEST:
        return
    if QuotaKind.PRODUCE in operation.uses:
        usage.charge(QuotaKind.PRODUCE, size)
    if QuotaKind.MUTATION in operation.uses and status != HTTPStatus.OK:
        usage.charge(QuotaKind.MUTATION, 1)


def refusal_of(response: ForwardResponse) -> Refusal:
    """Return the refusal in a response."""
    message, node_id = response.refusal_message, response.responsible
    if response.refusal_code == PeerErrorCode.NOT_COORDINATOR:
        return NotCoordinator(message, coordinator=node_id)
    kind = NotLeader if node_id >= 0 else LeaderNotAvailable
    return kind(message, leader=node_id)


class ForwardedResponse(Response):
    """The response of another node, passed on as it comes."""

    def __init__(
        self,
        request: HttpRequest,
        operation: HttpOperation,
        head: ForwardResponse,
        stream: ForwardedStream,
    ) -> None:
        super().__init__(status_code=head.status)
        self._request = request
        self._operation = operation
        self._head = head
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head and everything that follows it; end the stream if the client leaves."""
        head, stream = self._head, self._stream
        listening = asyncio.get_running_loop().create_task(_until_disconnected(receive, stream))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": head.status,
                    "headers": [(header.name, header.value) for header in head.headers],
                    "is_resumable": head.is_resumable,
                    "is_forwarded": True,
                }
            )
            await self._send_body(send)
        finally:
            listening.cancel()
            stream.close()

    async def _send_body(self, send: Send) -> None:
        usage = self._request.usage
        end = b""
        try:
            await self._send_piece(send, self._head, usage)
            async for response in self._stream:
                await self._send_piece(send, response, usage)
        except (OutcomeUnknown, PeerUnavailable) as error:
            # The head said that everything is well. Clients continue a stream of events elsewhere;
            # any other response is cut off, which they notice.
            if self._operation.end_event is None:
                raise
            logger.info("a forwarded stream ended: %s", error)
            end = self._operation.end_event(self._request)
        await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _send_piece(self, send: Send, response: ForwardResponse, usage: ClientUsage) -> None:
        body = body_of(response)
        if not body:
            return
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if usage.is_free:
            return
        if QuotaKind.CONSUME in self._operation.uses or self._head.is_resumable:
            usage.charge(QuotaKind.CONSUME, len(body))
        while self._head.is_resumable and (owed := usage.owed(DELIVERY_QUOTAS)) is not None:
            seconds = min(owed.throttle_ms / 1000, HOLD_SECONDS_MAX)
            usage.note_held(owed.kind, seconds)
            await asyncio.sleep(seconds)


async def _until_disconnected(receive: Receive, stream: ForwardedStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()

"""HTTP requests that other nodes have forwarded to this one.

They enter the HTTP application like those of a connection. The node that has the client did the
checks that concern browsers, and charges the client; this node does everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from millstream.errors import MalformedRequest, NotCoordinator, NotLeader, OutOfHops
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.messages.forward import (
    FORWARD_HOPS_MAX,
    ForwardHeader,
    ForwardRequest,
    ForwardResponse,
)
from millstream.servers.http.routing.callers import FORWARDED_CALLER
from millstream.servers.http.routing.request import FORWARDED
from millstream.servers.peer.peer_context import PeerContext
from millstream.storage.disk.background_tasks import BackgroundTasks

PIECES_MAX = 4
"""Parts of a response that wait to be sent."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class ForwardedRequests:
    """Handles the forwarded requests of all peers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks = BackgroundTasks()

    def __call__(
        self, request: ForwardRequest, context: PeerContext
    ) -> AsyncIterator[ForwardResponse]:
        """Answer a request with a stream: its head, then its body."""
        if request.hops > FORWARD_HOPS_MAX:
            raise OutOfHops(
                f"request must be forwarded at most {FORWARD_HOPS_MAX} times, got {request.hops}"
            )
        if not request.target.startswith(b"/"):
            raise MalformedRequest("target of a forwarded request must start with a slash")
        body = request.body or b""
        assert isinstance(body, bytes | memoryview)
        return self._respond(forwarded_scope(request, context), bytes(body))

    async def _respond(self, scope: Scope, body: bytes) -> AsyncGenerator[ForwardResponse]:
        exchange = _Exchange(body)
        # Like that of a connection, a request that was started runs to its end, whether or not
        # somebody waits for it.
        self._tasks.start(exchange.run(self._app, scope))
        try:
            async with aclosing(exchange.responses()) as responses:
                async for response in responses:
                    yield response
        finally:
            exchange.disconnect()


class _Exchange:
    """One request, as the application sees it, and its response."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._disconnected = asyncio.Event()
        self._pieces: asyncio.Queue[Message | Exception | None] = asyncio.Queue(PIECES_MAX)

    def disconnect(self) -> None:
        """Note that nobody waits for the response any more."""
        self._disconnected.set()
        while not self._pieces.empty():  # Lets the application go on.
            self._pieces.get_nowait()

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised to the caller.
            await self._put(error)
        else:
            await self._put(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._put(message)

    async def _put(self, piece: Message | Exception | None) -> None:
        if not self._disconnected.is_set():
            await self._pieces.put(piece)

    async def responses(self) -> AsyncGenerator[ForwardResponse]:
        """Yield the response: the head with the first part of the body, and the other parts."""
        head: Message | None = None
        is_sent = False
        while True:
            piece = await self._pieces.get()
            if piece is None:
                return
            if isinstance(piece, NotLeader | NotCoordinator) and head is None:
                yield _refusal(piece)
                return
            if isinstance(piece, Exception):
                raise piece
            if piece["type"] == "http.response.start":
                head = piece
                if head.get("is_resumable"):
                    is_sent = True
                    yield _response(head, b"")
                continue
            assert head is not None
            body = piece.get("body", b"")
            if not is_sent:
                is_sent = True
                yield _response(head, body)
            elif body:
                yield ForwardResponse(body=body)
            if not piece.get("more_body", False):
                return


def _response(head: Message, body: bytes) -> ForwardResponse:
    return ForwardResponse(
        status=head["status"],
        headers=tuple(
            ForwardHeader(name=name, value=value) for name, value in head.get("headers", ())
        ),
        is_long_poll=head.get("is_long_poll", False),
        is_resumable=head.get("is_resumable", False),
        body=body,
    )


def _refusal(error: NotLeader | NotCoordinator) -> ForwardResponse:
    if isinstance(error, NotLeader):
        code, node_id = PeerErrorCode.NOT_LEADER_OR_FOLLOWER, error.leader
    else:
        code, node_id = PeerErrorCode.NOT_COORDINATOR, error.coordinator
    return ForwardResponse(refusal_code=code, refusal_message=str(error), responsible=node_id)


def _trace_headers(request: ForwardRequest, context: PeerContext) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request, as part of the trace of the node that forwarded it."""
    if context.traceparent is not None:
        yield b"traceparent", context.traceparent.encode("ascii")
    for header in request.headers:
        if context.traceparent is None or bytes(header.name) != b"traceparent":
            yield bytes(header.name), bytes(header.value)


def forwarded_scope(request: ForwardRequest, context: PeerContext) -> dict[str, Any]:
    """Return the ASGI scope of a forwarded request."""
    raw_path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "server": None,
        "client": (request.client_address, 0) if request.client_address else None,
        "scheme": request.scheme,
        "root_path": "",
        "headers": [*_trace_headers(request, context)],
        "method": request.method,
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": bytes(raw_path),
        "query_string": bytes(query),
        FORWARDED: context.node_id,
        FORWARDED_CALLER: (request.principal, request.token_id),
    }

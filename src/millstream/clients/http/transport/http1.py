"""Requests to a node as HTTP/1.1, and its responses. Proxies are not supported."""

from __future__ import annotations

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.transport.trace_context import traceparent
from millstream.http1.response_reader import ResponseReader


def head_of(
    request: Request, address: NodeUrl, client_id: str = "", token: str | None = None
) -> bytes:
    """Return the request line and headers."""
    lines = [
        f"{request.method} {address.prefix}{request.path} HTTP/1.1",
        f"host: {address.authority}",
        *(f"{name}: {value}" for name, value in request.headers),
    ]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    if (trace := traceparent()) is not None:
        lines.append(f"traceparent: {trace}")
    if request.body or request.method in {"POST", "PUT"}:
        lines.append(f"content-length: {len(request.body)}")
        lines.append("content-type: application/json")
    head = ("\r\n".join(lines) + "\r\n").encode("ascii")
    if client_id:  # The only header that may not be ASCII.
        head += b"client-id: %s\r\n" % client_id.encode()
    return head + b"\r\n"


def answer_of(reader: ResponseReader) -> ClientResponse:
    """Return the complete response. Requires `is_done`."""
    return ClientResponse(reader.status, reader.headers, reader.body)

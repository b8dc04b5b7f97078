"""Complete error responses as bytes, for requests that never reach the application."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from millstream.servers.http.routing.browser_safety import HEADERS
from millstream.servers.http.routing.errors import RETRY_AFTER_SECONDS, error_response

_SAFE = b"".join(b"%s: %s\r\n" % header for header in HEADERS)


def raw_error_response(
    status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return an error in the common shape, after which the connection closes."""
    response = error_response(status, status.name.lower(), message, headers=headers)
    fields = b"".join(b"%s: %s\r\n" % field for field in response.raw_headers)
    first = b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode())
    return b"%s%s%sconnection: close\r\n\r\n%s" % (first, fields, _SAFE, bytes(response.body))


BUSY_RESPONSE = raw_error_response(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "the limit of connections is reached",
    {"Retry-After": str(RETRY_AFTER_SECONDS)},
)
"""The response to a connection that exceeds a limit."""

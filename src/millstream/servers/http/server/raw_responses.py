"""Answers to what was no request that could be handed on, as the bytes of a whole answer."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from millstream.servers.http.routing.browser_safety import HEADERS
from millstream.servers.http.routing.errors import RETRY_AFTER_SECONDS, error_response

_SAFE = b"".join(b"%s: %s\r\n" % header for header in HEADERS)


def raw_error_response(
    status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return an error in the one shape that all have, after which the connection closes."""
    made = error_response(status, status.name.lower(), message, headers=headers)
    fields = b"".join(b"%s: %s\r\n" % field for field in made.raw_headers)
    first = b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode())
    return b"%s%s%sconnection: close\r\n\r\n%s" % (first, fields, _SAFE, bytes(made.body))


BUSY_RESPONSE = raw_error_response(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "there are as many connections as there may be",
    {"Retry-After": str(RETRY_AFTER_SECONDS)},
)
"""What a client is told whose connection is one too many."""

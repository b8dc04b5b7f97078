"""Headers and errors that all stream responses share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.responses import Response

from millstream.errors import (
    MillstreamError,
    NotCoordinator,
    NotLeader,
    StaleStreamProducer,
    StreamClosed,
    StreamProducerGap,
)
from millstream.servers.http.routing.errors import exception_response
from millstream.servers.http.routing.operations import Handler
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.streams.positions import offset_text
from millstream.servers.http.streams.requests import (
    CLOSED,
    EXPECTED_NUMBER,
    NEXT_OFFSET,
    PRODUCER_EPOCH,
    RECEIVED_NUMBER,
)

SAFE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        # A browser uses the declared type, and only this site may load the content.
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        # Anybody may have written it, so no script in it runs, least of all as this site's.
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
)


def with_stream_headers(handler: Handler) -> Handler:
    """Return a handler whose responses, including errors, have the headers of streams."""

    @wraps(handler)
    async def answer(request: HttpRequest) -> Response:
        try:
            response = await handler(request)
        except (NotLeader, NotCoordinator):  # Another node responds.
            raise
        except (MillstreamError, HTTPException) as error:
            response = exception_response(error, request.scope)
            response.headers.update(_error_headers(error))
            response.headers["Cache-Control"] = "no-store"
        response.headers.update(SAFE_HEADERS)
        return response

    return answer


def _error_headers(error: Exception) -> dict[str, str]:
    """Return the headers that give details of an error."""
    if isinstance(error, StreamClosed):
        return {CLOSED: "true", NEXT_OFFSET: offset_text(error.end, error.mark)}
    if isinstance(error, StaleStreamProducer):
        return {PRODUCER_EPOCH: str(error.newest)}
    if isinstance(error, StreamProducerGap):
        return {EXPECTED_NUMBER: str(error.expected), RECEIVED_NUMBER: str(error.found)}
    return {}

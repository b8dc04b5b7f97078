"""Error responses: one table of statuses, one shape.

    {"error": {"code": "unknown_topic", "message": "topic 'orders' does not exist", "detail": null}}

The code is the name of the error, as listed in `docs/reference/errors.md`. If the node itself is at
fault, the message says only that: details such as paths and calls are written to the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from millstream import errors
from millstream.broker.partition.batch_validator import InvalidBatchRecord
from millstream.errors import (
    DamagedRecords,
    MillstreamError,
    OffsetOutOfRange,
    QuotaExceeded,
    StaleReceipt,
)
from millstream.protocols.http.errors import code_of

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
"""When to retry at a busy node: commits and admissions take less."""

_INTERNAL_MESSAGE = "the node failed to do this; its log says why"

STATUSES: Mapping[type[MillstreamError], HTTPStatus] = MappingProxyType(
    {
        MillstreamError: HTTPStatus.INTERNAL_SERVER_ERROR,
        # The request is wrong.
        errors.RequestError: HTTPStatus.BAD_REQUEST,
        errors.BatchTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        errors.BadRecord: HTTPStatus.UNPROCESSABLE_ENTITY,
        errors.UnknownLog: HTTPStatus.NOT_FOUND,
        errors.UnknownTopic: HTTPStatus.NOT_FOUND,
        errors.UnknownTopicId: HTTPStatus.NOT_FOUND,
        errors.UnknownGroup: HTTPStatus.NOT_FOUND,
        errors.UnknownQueue: HTTPStatus.NOT_FOUND,
        errors.UnknownTransaction: HTTPStatus.NOT_FOUND,
        errors.UnknownStream: HTTPStatus.NOT_FOUND,
        errors.UnknownCredential: HTTPStatus.NOT_FOUND,
        # The caller is not known, or has no right to do this.
        errors.NotAuthenticated: HTTPStatus.UNAUTHORIZED,
        errors.AccessDenied: HTTPStatus.FORBIDDEN,
        # The request conflicts with the current state.
        errors.StreamGone: HTTPStatus.GONE,
        errors.StreamExists: HTTPStatus.CONFLICT,
        errors.StreamMismatch: HTTPStatus.CONFLICT,
        errors.StreamClosed: HTTPStatus.CONFLICT,
        errors.StreamProducerGap: HTTPStatus.CONFLICT,
        errors.StaleStreamProducer: HTTPStatus.FORBIDDEN,
        errors.TopicExists: HTTPStatus.CONFLICT,
        errors.NoReassignment: HTTPStatus.CONFLICT,
        errors.ElectionNotNeeded: HTTPStatus.CONFLICT,
        errors.GroupNotEmpty: HTTPStatus.CONFLICT,
        errors.GroupSubscribed: HTTPStatus.CONFLICT,
        errors.LogFull: HTTPStatus.CONFLICT,
        errors.OffsetNotAvailable: HTTPStatus.CONFLICT,
        errors.StaleReceipt: HTTPStatus.CONFLICT,
        errors.OutOfOrderSequence: HTTPStatus.CONFLICT,
        errors.InvalidProducerEpoch: HTTPStatus.CONFLICT,
        errors.UnknownProducer: HTTPStatus.CONFLICT,
        errors.OffsetOutOfRange: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        # The client may retry.
        errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
        errors.CapExceeded: HTTPStatus.TOO_MANY_REQUESTS,
        errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.LogClosed: HTTPStatus.SERVICE_UNAVAILABLE,
        errors.DiskFull: HTTPStatus.INSUFFICIENT_STORAGE,
        # The client has to look before it repeats the request.
        errors.OutcomeUnknown: HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""The nearest listed ancestor of an error gives its status."""


def status_of(kind: type[MillstreamError]) -> HTTPStatus:
    """Return the status of the nearest listed ancestor."""
    return next(STATUSES[above] for above in kind.__mro__ if above in STATUSES)


def domain_error_response(error: MillstreamError) -> Response:
    """Return the response to an error that Millstream raised."""
    status = status_of(type(error))
    headers = {}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="millstream"'
    if isinstance(error, QuotaExceeded):
        headers["Retry-After"] = str(math.ceil(error.throttle_ms / 1000))
    return error_response(status, **error_body(error), headers=headers)


def error_body(error: Exception) -> dict[str, Any]:
    """Return code, message and detail of an error, as clients see them."""
    if not isinstance(error, MillstreamError):
        code = HTTPStatus.INTERNAL_SERVER_ERROR.name.lower()
        return {"code": code, "message": _INTERNAL_MESSAGE, "detail": None}
    is_ours = status_of(type(error)) is HTTPStatus.INTERNAL_SERVER_ERROR
    return {
        "code": code_of(type(error)),
        "message": _message_for_client(error) if is_ours else str(error),
        "detail": _detail(error),
    }


def exception_response(error: Exception, scope: Scope) -> Response:
    """Return the response to a request that raised `error`.

    Errors of the node are logged here, since the response does not say what is wrong.
    """
    if isinstance(error, MillstreamError):
        if status_of(type(error)) is HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("%s %r: %s", scope.get("method", "WebSocket"), scope["path"], error)
        return domain_error_response(error)
    if isinstance(error, HTTPException):
        return error_response_with(HTTPStatus(error.status_code), error.detail, error.headers)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # Nobody receives it.
    logger.error("%s %r failed", scope.get("method", "WebSocket"), scope["path"], exc_info=error)
    return error_response_with(HTTPStatus.INTERNAL_SERVER_ERROR, _INTERNAL_MESSAGE)


def error_response_with(
    status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error whose code is the name of its HTTP status."""
    return error_response(status, status.name.lower(), message, headers=headers)


def error_response(
    status: HTTPStatus,
    code: str,
    message: str,
    detail: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error response in the common shape."""
    body = {"error": {"code": code, "message": message, "detail": detail}}
    return JSONResponse(body, status_code=status, headers=headers)


def _message_for_client(error: MillstreamError) -> str:
    """Return the message of an error of the node: without paths, which are in its log."""
    if isinstance(error, DamagedRecords):
        first, last = error.from_offset, error.to_offset
        return (
            f"the records from offset {first} to {last} are damaged and cannot be read;"
            f" those from offset {last + 1} on may be"
        )
    return _INTERNAL_MESSAGE


def _detail(error: MillstreamError) -> Mapping[str, Any] | None:  # noqa: PLR0911 - one per type.
    """Return the details for programs, if the error has some."""
    if isinstance(error, DamagedRecords):
        return {"from": error.from_offset, "to": error.to_offset}
    if isinstance(error, OffsetOutOfRange):
        return {"offset": error.offset, "start": error.start, "end": error.end}
    if isinstance(error, errors.OffsetNotAvailable):
        return {"end": error.end}
    if isinstance(error, StaleReceipt):
        return {"stale": list(error.receipts), "done": error.done}
    if isinstance(error, InvalidBatchRecord):
        return {"records": list(error.record_indexes)}
    if isinstance(error, QuotaExceeded):
        return {"kind": error.kind, "quota": error.quota, "throttle_ms": error.throttle_ms}
    if isinstance(error, errors.BACKPRESSURE_ERRORS) and error.kind is not None:
        return {"kind": error.kind}
    return None

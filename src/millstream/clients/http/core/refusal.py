"""Error responses: the error that they stand for, and whether the request may be sent again."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from millstream.clients.http.core.response import RETRY_AFTER_S_MAX, SHOWN_MAX, ClientResponse
from millstream.errors import (
    MillstreamError,
    NodeRefused,
    OffsetNotAvailable,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)


class Refusal(NamedTuple):
    """Error response, and whether it may be retried."""

    error: MillstreamError
    is_temporary: bool
    """Whether the same request may succeed later."""
    is_in_doubt: bool
    """Whether the request may have been executed despite the error."""
    retry_after_s: float = 0.0
    is_elsewhere: bool = False
    """Whether another node of the cluster may do better."""


_TEMPORARY = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}
)
_FROM_PROXY = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""Status codes that a proxy returns when it cannot reach the node."""


def refusal_of(answer: ClientResponse) -> Refusal | None:
    """Return the refusal in a response; `None` if the request succeeded."""
    status = answer.status
    if 200 <= status < 300:
        return None
    # Only here: most requests succeed, and a command should not load what decodes errors for them.
    import msgspec  # noqa: PLC0415

    from millstream.protocols.http.errors import ErrorAnswer, error_of  # noqa: PLC0415

    try:
        shape = msgspec.json.decode(answer.body, type=ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _foreign_refusal(answer)
    error = error_of(status, shape)
    if status == HTTPStatus.TOO_MANY_REQUESTS and isinstance(error, NodeRefused):
        error = Unavailable(shape.message)
    is_in_doubt = status >= 500 and status not in _TEMPORARY
    retry_after_s = answer.retry_after_s
    if isinstance(error, QuotaExceeded):  # It has the same value in milliseconds.
        retry_after_s = min(max(0.0, error.throttle_ms / 1000), RETRY_AFTER_S_MAX)
    # A replica that is behind catches up. An unknown outcome is repeated if that does no harm.
    is_temporary = status in _TEMPORARY or isinstance(error, OffsetNotAvailable | OutcomeUnknown)
    is_elsewhere = is_temporary and not isinstance(error, QuotaExceeded)
    return Refusal(error, is_temporary, is_in_doubt, retry_after_s, is_elsewhere)


def _foreign_refusal(answer: ClientResponse) -> Refusal:
    """Return the refusal for an error response that did not come from a node."""
    status = answer.status
    shown = answer.body[:SHOWN_MAX].decode(errors="replace")
    try:
        name = HTTPStatus(status).name.lower()
    except ValueError:
        name = "unknown_status"
    error = NodeRefused(status, name, f"response without an error object: {shown!r}")
    is_temporary = status in _FROM_PROXY or status in _TEMPORARY
    is_in_doubt = status >= 500 or status < 300
    return Refusal(error, is_temporary, is_in_doubt, answer.retry_after_s, is_temporary)

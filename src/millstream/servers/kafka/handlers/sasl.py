"""Proving who one is: not asked for yet, and a client that insists is told so."""

from __future__ import annotations

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from millstream.servers.kafka.request_context import RequestContext


def sasl_handshake(_: SaslHandshakeRequest, __: RequestContext) -> SaslHandshakeResponse:
    """Say that no mechanism is spoken here."""
    return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=())


def sasl_authenticate(_: SaslAuthenticateRequest, __: RequestContext) -> SaslAuthenticateResponse:
    """Refuse, because no handshake can have come before."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="this node does not ask who a client is: connect without SASL",
    )

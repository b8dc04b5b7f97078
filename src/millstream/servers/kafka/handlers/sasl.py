"""SASL requests. There is no authentication yet, and clients that ask for it are told so."""

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
    """Answer that no mechanism is supported."""
    return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=())


def sasl_authenticate(_: SaslAuthenticateRequest, __: RequestContext) -> SaslAuthenticateResponse:
    """Reject: there cannot have been a handshake."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="this node has no authentication: connect without SASL",
    )

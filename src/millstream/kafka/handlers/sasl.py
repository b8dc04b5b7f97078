"""Proving who one is: not asked for yet, and a client that insists is told so."""

from __future__ import annotations

from millstream.kafka.context import Context
from millstream.wire.error_codes import ErrorCode
from millstream.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def sasl_handshake(_: SaslHandshakeRequest, __: Context) -> SaslHandshakeResponse:
    """Say that no mechanism is spoken here."""
    return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=())


def sasl_authenticate(_: SaslAuthenticateRequest, __: Context) -> SaslAuthenticateResponse:
    """Refuse, because no handshake can have come before."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="this node does not ask who a client is: connect without SASL",
    )

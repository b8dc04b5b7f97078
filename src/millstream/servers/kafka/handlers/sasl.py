"""SASL requests: clients log in."""

from __future__ import annotations

from millstream.broker.access.sasl.failure import LoginFailed
from millstream.config.schema import SaslMechanism
from millstream.errors import CapExceeded
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from millstream.servers.kafka.request_context import RequestContext


def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    """Begin a login with a mechanism that this node offers; without logins it offers none."""
    login = context.login
    offered = () if login is None else login.logins.mechanisms
    names = tuple(mechanism.value for mechanism in offered)
    if request.mechanism not in names or login is None:
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=names)
    if context.version == 0:
        # In this version the messages that follow are not Kafka requests. No client since 2017
        # uses it with a server that has another one.
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, mechanisms=names)
    login.begin(SaslMechanism(request.mechanism))
    return SaslHandshakeResponse(mechanisms=names)


async def sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """Process the next message of a login."""
    login = context.login
    if login is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="this node has no authentication: connect without SASL",
        )
    if not login.has_begun:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="there was no SaslHandshake, or the login is complete",
        )
    try:
        step = await login.step(bytes(request.auth_bytes))
    except LoginFailed as error:
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        return SaslAuthenticateResponse(error_code=code, error_message=str(error))
    except CapExceeded as error:  # With the right password: no failed login.
        code = ErrorCode.POLICY_VIOLATION
        return SaslAuthenticateResponse(error_code=code, error_message=str(error))
    return SaslAuthenticateResponse(auth_bytes=step.answer, session_lifetime_ms=step.session_ms)

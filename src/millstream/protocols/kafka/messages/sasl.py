"""SASL authentication."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import NEVER, Versions, message, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BYTES,
    INT16,
    INT64,
    NULLABLE_STRING,
    STRING,
)

SASL_HANDSHAKE = Versions(first=0, last=1, flexible=NEVER)
SASL_AUTHENTICATE = Versions(first=0, last=2, flexible=2)


@message(SASL_HANDSHAKE)
class SaslHandshakeRequest:
    """Ask for a SASL mechanism."""

    mechanism: str = wire(STRING)


@message(SASL_HANDSHAKE)
class SaslHandshakeResponse:
    """Whether the mechanism is enabled, and which ones are."""

    error_code: int = wire(INT16, default=0)
    mechanisms: tuple[str, ...] = wire(ARRAY(STRING), default=())


@message(SASL_AUTHENTICATE)
class SaslAuthenticateRequest:
    """The client's next SASL message."""

    auth_bytes: bytes = wire(BYTES)


@message(SASL_AUTHENTICATE)
class SaslAuthenticateResponse:
    """The broker's next SASL message, and the lifetime of the session."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    auth_bytes: bytes = wire(BYTES, default=b"")
    session_lifetime_ms: int = wire(INT64, since=1, default=0)

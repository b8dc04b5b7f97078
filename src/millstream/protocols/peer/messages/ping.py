"""Ping: shows that a peer is there, and how far apart the clocks are (by the header's HLC)."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, wire
from millstream.protocols.kafka.codec.primitives import INT64

PING = Versions(first=0, last=0, flexible=0)


@message(PING)
class PingRequest:
    """Ask for a response."""

    nonce: int = wire(INT64, default=0)


@message(PING)
class PingResponse:
    """The response, with the number of the request."""

    nonce: int = wire(INT64, default=0)

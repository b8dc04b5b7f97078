"""Forward: an HTTP request for which another node is responsible.

The response comes whole in one frame, or as a stream: the first frame has status and headers, each
frame has the next bytes of the body. A node that is not responsible either answers with a refusal
instead, which says that nothing was done.
"""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    RECORDS,
    STRING,
    Records,
)

FORWARD = Versions(first=0, last=0, flexible=0)
FORWARD_HOPS_MAX = 1
"""A forwarded request is not forwarded again: two nodes that disagree would send it in circles."""


@struct
class ForwardHeader:
    """A header field; its name is in lower case."""

    name: bytes = wire(BYTES)
    value: bytes = wire(BYTES)


@message(FORWARD)
class ForwardRequest:
    """An HTTP request as the client sent it."""

    hops: int = wire(INT8, default=1)
    """How often it was forwarded, this time included."""
    method: str = wire(STRING)
    target: bytes = wire(BYTES)
    """Path and query, as they were sent."""
    scheme: str = wire(STRING, default="http")
    client_address: str = wire(STRING, default="")
    principal: str = wire(STRING, default="")
    """Who sends it, as the node has found out that has the client: `User:alice`."""
    token_id: str = wire(STRING, default="", since=0, tag=0)
    """The token by which the client has logged in; empty if there is none."""
    headers: tuple[ForwardHeader, ...] = wire(ARRAY(ForwardHeader), default=())
    body: Records | None = wire(RECORDS, default=None)


@message(FORWARD)
class ForwardResponse:
    """The response, or a part of it."""

    status: int = wire(INT16, default=0)
    """0 in every frame of a stream but the first, and in a refusal."""
    headers: tuple[ForwardHeader, ...] = wire(ARRAY(ForwardHeader), default=())
    is_long_poll: bool = wire(BOOL, default=False)
    """Whether the client asked to wait."""
    is_resumable: bool = wire(BOOL, default=False)
    """Whether the response may be cut off: clients continue it."""
    refusal_code: int = wire(INT16, default=0)
    """Set if the node is not responsible for the request, and did nothing."""
    refusal_message: str = wire(STRING, default="")
    responsible: int = wire(INT32, default=-1)
    """The node that is, as far as the one that refused knows; -1 if it knows none."""
    body: Records | None = wire(RECORDS, default=None)

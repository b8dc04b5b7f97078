"""Who connected, and the context of one request."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity


@dataclass(slots=True)
class ConnectingPeer:
    """The other side of a connection, as its handshake and its certificate describe it."""

    identity: PeerIdentity
    purpose: Purpose
    address: str
    certificate_names: tuple[str, ...] = ()
    """Names in its certificate, which was verified; empty without TLS."""
    drift_ms: int = 0
    """How far its clock is ahead of ours, as of its last frame."""


@dataclass(frozen=True, slots=True)
class PeerContext:
    """The context of one request."""

    peer: ConnectingPeer
    version: int
    """The version of the request, and so of its response."""
    deadline: float
    """When the work is cancelled, on the clock of the event loop."""
    hlc: int
    """The caller's timestamp."""
    traceparent: str | None

    @property
    def node_id(self) -> int:
        """The node that sent the request."""
        return self.peer.identity.node_id

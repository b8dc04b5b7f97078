"""Counters of the peer server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import UNKNOWN_OUTCOMES
from millstream.servers.frame_counters import FrameCounters

REQUEST_OUTCOMES = ("answered", "refused", "late", "cancelled", "failed")
"""How a request can end: with a response; with an error that says that nothing was done; by its
deadline; by its caller; with any other error.
"""


@dataclass(slots=True)
class PeerRequestCounter:
    """Running totals of the requests of one API."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Total time from a request until its last frame was sent."""

    def record(self, code: PeerErrorCode, seconds: float) -> None:
        """Count a request that ended."""
        self.outcomes[_outcome_of(code)] += 1
        self.seconds += seconds


def _outcome_of(code: PeerErrorCode) -> str:
    match code:
        case PeerErrorCode.NONE:
            return "answered"
        case PeerErrorCode.DEADLINE_EXCEEDED | PeerErrorCode.EXPIRED:
            return "late"
        case PeerErrorCode.CANCELLED:
            return "cancelled"
    return "failed" if code in UNKNOWN_OUTCOMES else "refused"


@dataclass(slots=True)
class PeerServerCounters(FrameCounters):
    """Running totals of all connections of peers."""

    handshakes: int = 0
    refused_handshakes: Counter[PeerErrorCode] = field(default_factory=Counter)
    nonsense: int = 0
    """Connections that were closed because of bytes that no peer sends."""
    requests: dict[str, PeerRequestCounter] = field(default_factory=dict)
    """By name of the API."""

"""Counters of the connections to peers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

CALL_OUTCOMES = ("answered", "refused", "unknown", "unsent", "cancelled")
"""How a request can end for its caller: with a response; with an error that says that nothing was
done; without knowing; before it was sent; by the caller.
"""


@dataclass(slots=True)
class PeerClientCounters:
    """Running totals of the connections to all peers."""

    connects: int = 0
    failed_connects: int = 0
    """Attempts that failed, or were refused by the handshake."""
    nonsense: int = 0
    """Connections that were closed because of bytes that no peer sends."""
    received_bytes: int = 0
    sent_bytes: int = 0
    calls: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Requests by name of the API, and by outcome."""

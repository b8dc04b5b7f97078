"""Counters of a server whose requests are frames."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class FrameCounters:
    """Running totals of all connections."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that exceeded a limit, or got no TLS session, by reason."""
    closed_by_us: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

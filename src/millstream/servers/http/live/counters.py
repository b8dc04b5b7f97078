"""What live delivery counts: plain numbers, read by who observes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LiveCounters:
    """Running totals, and how much there is at the moment."""

    feeds: int = 0
    """Partitions that somebody watches."""
    event_streams: int = 0
    """Connections by SSE."""
    sockets: int = 0
    """Connections by WebSocket."""
    encodings: int = 0
    """Bursts that were encoded, each once for all who watch."""
    catch_ups: int = 0
    """Pieces that were read for one watcher, which catches up."""
    lags: int = 0
    """How often a watcher was too slow, and fell behind."""
    gaps: int = 0
    """How often a watcher was told that retention took something it had not seen."""
    events: int = 0
    """Events that were sent."""
    sent_bytes: int = 0
    """Bytes of these."""
    socket_bytes: int = 0
    """Of these, what went through WebSockets; the rest are answers like others."""

"""Counters of live delivery."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LiveCounters:
    """Totals, and current numbers of connections and feeds."""

    feeds: int = 0
    """Partitions that are watched."""
    event_streams: int = 0
    """Connections by SSE."""
    sockets: int = 0
    """Connections by WebSocket."""
    encodings: int = 0
    """Batches that were encoded, each once for all watchers."""
    catch_ups: int = 0
    """Reads for a single watcher that catches up."""
    lags: int = 0
    """Number of times that a watcher was too slow and fell behind."""
    gaps: int = 0
    """Gaps that were sent: retention deleted records before a watcher got them."""
    events: int = 0
    """Events that were sent."""
    sent_bytes: int = 0
    """Bytes of these."""
    socket_bytes: int = 0
    """The part of these sent by WebSockets; the others are HTTP responses."""

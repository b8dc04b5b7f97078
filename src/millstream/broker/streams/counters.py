"""Counters of streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

READS = ("catch-up", "long-poll", "sse")
"""Kinds of reads: of existing records, of new ones once, or of new ones continuously."""


@dataclass(slots=True)
class StreamCounters:
    """Running totals of all streams of a node."""

    created: int = 0
    deleted: int = 0
    """On request, or by expiry."""
    expired: int = 0
    """The part of `deleted` that expired."""
    appends: int = 0
    duplicates: int = 0
    """Appends that had been stored before."""
    records: int = 0
    bytes: int = 0
    closes: int = 0
    """Requests that closed a stream without appending to it."""
    reads: Counter[str] = field(default_factory=Counter)
    """By kind."""

"""What streams count: plain numbers, read by who observes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

READS = ("catch-up", "long-poll", "sse")
"""How a stream is read: what is there, or what comes, once or as it comes."""


@dataclass(slots=True)
class StreamCounters:
    """Running totals of all streams of a node."""

    created: int = 0
    deleted: int = 0
    """By whoever asked, or because their time was over."""
    expired: int = 0
    """Of these, those whose time was over."""
    appends: int = 0
    duplicates: int = 0
    """Appends that had been stored before."""
    records: int = 0
    bytes: int = 0
    closes: int = 0
    """Requests that closed a stream without appending to it."""
    reads: Counter[str] = field(default_factory=Counter)
    """By how."""

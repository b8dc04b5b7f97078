"""Counters of requests that this node has forwarded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from millstream.errors import MillstreamError, OutcomeUnknown, Unavailable

FORWARD_APIS = ("append", "request")
"""What is forwarded: batches for partitions, and whole HTTP requests."""

FORWARD_OUTCOMES = ("answered", "refused", "unavailable", "unknown")
"""How a forwarded request can end: with a response; with an error of the request; with one that
says that nothing was done and that it may succeed later; without knowing.
"""


@dataclass(slots=True)
class ForwardCounters:
    """Running totals."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By API and outcome."""
    retries: Counter[str] = field(default_factory=Counter)
    """By API: refused by a node that named another one, and sent there."""

    def note_answer(self, api: str) -> None:
        self.outcomes[api, "answered"] += 1

    def note_error(self, api: str, error: MillstreamError) -> None:
        self.outcomes[api, outcome_of(error)] += 1


def outcome_of(error: MillstreamError) -> str:
    """Return how a request that ended with `error` is counted."""
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    return "unavailable" if isinstance(error, Unavailable) else "refused"

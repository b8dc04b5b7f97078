"""What the HTTP door counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from millstream.histogram import Histogram

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the buckets into which the time to an answer falls."""

OTHER = "other"
"""The route of what matched none: as many paths as clients think of are one line."""

REFUSALS = ("connections", "address", "descriptors")
"""Why a connection was not taken: too many in all, from its address, or for the descriptors."""

CLOSE_REASONS = ("malformed", "head", "body", "idle", "output", "memory")
"""Why the node ended a connection: what came was no request, or came too late; what waited was not
read; or there was no memory for it."""


@dataclass(slots=True)
class RouteCounter:
    """Running totals of the requests for one operation."""

    by_class: list[int] = field(default_factory=lambda: [0] * 6)
    """Answers by the first digit of their status."""
    seconds: float = 0.0
    """From the request's head to the answer's, all together."""


@dataclass(slots=True)
class HttpCounters:
    """Running totals of all connections, and what they hold at present."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    held_bytes: int = 0
    """Of requests that are arriving, or under way, or wait behind one."""
    unread_bytes: int = 0
    """Of answers that clients do not read, as far as they hold up anything."""
    throttled: Counter[str] = field(default_factory=Counter)
    """Requests that were refused because their client owed, by quota."""
    held_deliveries: Counter[str] = field(default_factory=Counter)
    """How often live delivery had to wait, by quota."""
    throttle_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """For how long they were told to wait, or had to."""
    routes: dict[tuple[str, str], RouteCounter] = field(default_factory=dict)
    """By method and path template: as many as there are operations, and one for all others."""
    durations: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """How many answers took how long."""
    prompt_durations: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """The same, without requests that were asked to wait."""

    def note_answer(
        self, method: str, path: str, status: int, seconds: float, *, is_patient: bool = False
    ) -> None:
        """Count an answer; one `is_patient` whose client allowed it to take its time."""
        found = self.routes.get((method, path))
        if found is None:
            found = self.routes.setdefault((method, path), RouteCounter())
        found.by_class[min(status // 100, 5)] += 1
        found.seconds += seconds
        self.durations.observe(seconds)
        if not is_patient:
            self.prompt_durations.observe(seconds)

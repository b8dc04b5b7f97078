"""How a value is spread: how often it fell into each of a few buckets."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets of a time: from a write to a good disk to one that hangs."""


class Histogram:
    """Counts values by how large they are. Counting one makes nothing and waits for nobody."""

    __slots__ = ("bounds", "counts")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values were in each bucket, the last one for those beyond all bounds."""

    def note(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1

    def within(self, bucket: int) -> int:
        """Return how many values were in this bucket or a lower one."""
        return sum(self.counts[: bucket + 1])

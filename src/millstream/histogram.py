"""Histogram with fixed buckets."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
"""Upper bounds of latency buckets in seconds: from a write to a fast disk to one that hangs."""


class Histogram:
    """Counts of values per bucket, and their sum. Counting a value takes no lock."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket; the last is for values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def count_within(self, bucket: int) -> int:
        """Return the number of values in this bucket and all lower ones."""
        return sum(self.counts[: bucket + 1])

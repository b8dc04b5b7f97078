"""Latencies of a load, in buckets whose width is one percent of their value.

A run of an hour has millions of latencies. Counted in such buckets they take some kilobytes, and a
quantile is at most one percent too high.
"""

from __future__ import annotations

import math
from collections import Counter

WIDTH = 1.01
"""Each bucket ends at this multiple of the one before."""

LEAST_SECONDS = 1e-6


class Latencies:
    """Latencies, counted."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = math.ceil(math.log(max(seconds, LEAST_SECONDS) / LEAST_SECONDS, WIDTH))
        self._buckets[bucket] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def quantile(self, share: float) -> float:
        """Return the time within which this share of the requests ended; 0 if there were none."""
        remaining = math.ceil(self.count * share)
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                return min(LEAST_SECONDS * WIDTH**bucket, self.longest)
        return self.longest

"""Quantiles of bucket counts: as exact as the buckets are narrow."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the value that `share` of all values are at or below; `None` if there are none.

    `counts` has one bucket more than `bounds`, for values above the last bound, of which only this
    lower bound is known. Values are assumed to be spread evenly within a bucket.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank = share * total
    before = 0
    for number, count in enumerate(counts):
        if count and before + count >= rank:
            lower = bounds[number - 1] if number else 0.0
            upper = bounds[min(number, len(bounds) - 1)]
            return lower + (upper - lower) * (rank - before) / count
        before += count
    return bounds[-1]

"""Quantiles of what was counted into buckets: as exact as the buckets are narrow."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the value that `share` of all lie at or below; `None` where nothing was counted.

    `counts` has one bucket more than `bounds`, for what lies above the last of them: of that is
    known only that it is at least so much. Within a bucket, values are taken to be spread evenly.
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

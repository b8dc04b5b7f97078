"""Time between attempts to connect: doubles with each failure, with random jitter."""

from __future__ import annotations

_DOUBLINGS_MAX = 20


def back_off_seconds(
    failures: int, *, seconds_min: float, seconds_max: float, chance: float
) -> float:
    """Return how long to wait after so many failures in a row.

    `chance` is a random number from 0 to 1: nodes that lost the same peer at the same time do not
    come back at the same time.
    """
    if failures <= 0:
        return 0.0
    doubled = seconds_min * 2.0 ** min(failures - 1, _DOUBLINGS_MAX)
    return min(doubled, seconds_max) * (0.5 + 0.5 * chance)

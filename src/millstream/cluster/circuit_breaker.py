"""Circuit breaker: stops calls to a peer that fails, and probes whether it works again.

                 failures_max in a row                    open_seconds passed
        CLOSED ─────────────────────────►     OPEN     ────────────────────────►   HALF_OPEN
          ▲                                    ▲  ▲                                  │   │
          │                                    │  └───────────── a failure ──────────┘   │
          └────────────────── successes_min probes in a row ◄────┼───────────────────────┘
                                               │
                      trip, from any state: TRIPPED until reset

Half open, one call at a time is allowed. A success is any response, even one that refuses the
request: the peer is there. A failure is a connection that cannot be made or breaks, or a response
that does not come in time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BreakerState(enum.Enum):
    """Whether calls are allowed."""

    CLOSED = "closed"
    """All of them."""
    OPEN = "open"
    """None."""
    HALF_OPEN = "half_open"
    """One at a time."""
    TRIPPED = "tripped"
    """None, until an operator resets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When a breaker opens and closes."""

    failures_max: int = 5
    """Failures in a row that open it."""
    successes_min: int = 3
    """Successes in a row that close it again."""
    open_seconds: float = 30.0
    """Time until the first probe."""


class CircuitBreaker:
    """The breaker of one peer. Pure: the caller passes monotonic time.

    Each call that was allowed must end with exactly one of `succeed`, `fail` and `abandon`.
    """

    __slots__ = (
        "_failures",
        "_is_probing",
        "_limits",
        "_opened_at",
        "_state",
        "_successes",
        "opened_count",
    )

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._successes = 0
        self._opened_at = 0.0
        self._is_probing = False
        self.opened_count = 0
        """How often it opened."""

    def state(self, now: float) -> BreakerState:
        """Return the state at a time: open becomes half open when its time has passed."""
        if self._state is BreakerState.OPEN and now - self._opened_at >= self._limits.open_seconds:
            self._state = BreakerState.HALF_OPEN
            self._successes = 0
            self._is_probing = False
        return self._state

    def allow(self, now: float) -> bool:
        """Return whether a call may be made now; the caller makes it then."""
        state = self.state(now)
        if state is BreakerState.CLOSED:
            return True
        if state is not BreakerState.HALF_OPEN or self._is_probing:
            return False
        self._is_probing = True
        return True

    def succeed(self, now: float) -> None:
        """Count a call that was answered."""
        self._failures = 0
        if self.state(now) is not BreakerState.HALF_OPEN:
            return  # A late answer does not close an open breaker.
        self._is_probing = False
        self._successes += 1
        if self._successes >= self._limits.successes_min:
            self._state = BreakerState.CLOSED

    def fail(self, now: float) -> None:
        """Count a call that failed."""
        state = self.state(now)
        self._is_probing = False
        self._failures += 1
        if state is BreakerState.HALF_OPEN or (
            state is BreakerState.CLOSED and self._failures >= self._limits.failures_max
        ):
            self._open(now)

    def abandon(self) -> None:
        """Note a call that ended without a result, because its caller cancelled it."""
        self._is_probing = False

    @property
    def is_tripped(self) -> bool:
        """Whether an operator opened it; only an operator closes it then."""
        return self._state is BreakerState.TRIPPED

    def trip(self) -> None:
        """Allow nothing until `reset`: an operator does not want this peer to be called."""
        if self._state in (BreakerState.CLOSED, BreakerState.HALF_OPEN):
            self.opened_count += 1
        self._state = BreakerState.TRIPPED

    def reset(self) -> None:
        """Close it, whatever happened."""
        self._state = BreakerState.CLOSED
        self._failures = self._successes = 0
        self._is_probing = False

    def _open(self, now: float) -> None:
        self._state = BreakerState.OPEN
        self._opened_at = now
        self._failures = 0
        self.opened_count += 1

"""Limit on the uncommitted bytes of all logs of a store."""

from __future__ import annotations

from typing import Protocol


class BudgetWaiter(Protocol):
    """A log whose batches wait for capacity."""

    def admit_waiting(self) -> None:
        """Admit what waits, as far as there is capacity."""
        ...


class ByteBudget:
    """A number of bytes that may be in flight at once. Belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._waiters: dict[BudgetWaiter, None] = {}

    def has_capacity(self, size: int) -> bool:
        """Return whether `size` more bytes fit.

        A batch larger than the limit passes if it is alone.
        """
        return self.used == 0 or self.used + size <= self.bytes_max

    def acquire(self, size: int) -> None:
        """Count bytes that are in flight from now on."""
        self.used += size

    def release(self, size: int) -> None:
        """Give bytes back, and wake the logs that wait for capacity."""
        self.used -= size
        if self._waiters:
            waiters, self._waiters = list(self._waiters), {}
            for waiter in waiters:
                waiter.admit_waiting()

    def wait(self, waiter: BudgetWaiter) -> None:
        """Call `waiter` when there is capacity again."""
        self._waiters[waiter] = None

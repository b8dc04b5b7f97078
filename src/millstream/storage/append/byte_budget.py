"""A bound on the bytes of all logs of a store that wait for the disk."""

from __future__ import annotations

from typing import Protocol


class BudgetWaiter(Protocol):
    """One who waits for room."""

    def admit_waiting(self) -> None:
        """Go on with what waits, as far as there is room."""
        ...


class ByteBudget:
    """Bytes that may be under way at once. Belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._waiters: dict[BudgetWaiter, None] = {}

    def has_capacity(self, size: int) -> bool:
        """Whether `size` more bytes fit. A single one larger than all passes when it is alone."""
        return self.used == 0 or self.used + size <= self.bytes_max

    def acquire(self, size: int) -> None:
        """Count bytes that are now under way."""
        self.used += size

    def release(self, size: int) -> None:
        """Count bytes that have arrived, and let those go on who waited for room."""
        self.used -= size
        if self._waiters:
            waiters, self._waiters = list(self._waiters), {}
            for waiter in waiters:
                waiter.admit_waiting()

    def wait(self, waiter: BudgetWaiter) -> None:
        """Have `waiter` told when there is room again."""
        self._waiters[waiter] = None

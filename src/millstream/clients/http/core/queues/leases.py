"""Leases of jobs that a worker holds: which of them have to be made longer, and when.

A lease is made longer when half of it is over, so that an attempt that fails can be made again
before it ends. Pure: told the time.
"""

from __future__ import annotations

from collections.abc import Iterable

RETRY_S = 0.5
"""When to try again where leases could not be made longer, unless they end before."""


class Leases:
    """The leases of a worker, by receipt."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, receipts: Iterable[str], lease_s: float, now: float) -> None:
        """Take note of leases that last `lease_s` from now on: new ones, or longer ones."""
        for receipt in receipts:
            self._due[receipt] = now + lease_s / 2

    def renew(self, receipts: Iterable[str], lease_s: float, now: float) -> None:
        """The same, of those that are still held."""
        self.add([one for one in receipts if one in self._due], lease_s, now)

    def put_off(self, receipts: Iterable[str], now: float) -> None:
        """Take note that leases could not be made longer just now."""
        for receipt in receipts:
            if receipt in self._due:
                self._due[receipt] = now + RETRY_S

    def remove(self, receipts: Iterable[str]) -> None:
        """Take note of leases that ended, in whatever way."""
        for receipt in receipts:
            self._due.pop(receipt, None)

    def due(self, now: float) -> list[str]:
        """Return the receipts of leases that have to be made longer now.

        Those that are due soon come along, where any is: jobs that were claimed together stay
        together.
        """
        if not any(at <= now for at in self._due.values()):
            return []
        return [receipt for receipt, at in self._due.items() if at <= now + RETRY_S / 2]

    def next_at(self) -> float | None:
        """Return when the next one is due; nothing where there is none."""
        return min(self._due.values(), default=None)

"""Leases of claimed jobs, and when to extend them.

A lease is extended after half of its time, so that a failed attempt can be repeated before it
expires. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

RETRY_S = 0.5
"""Time until the next attempt if leases could not be extended."""


class Leases:
    """Leases of a worker, by receipt."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, receipts: Iterable[str], lease_s: float, now: float) -> None:
        """Add leases, or replace them, with a length of `lease_s` from now."""
        for receipt in receipts:
            self._due[receipt] = now + lease_s / 2

    def renew(self, receipts: Iterable[str], lease_s: float, now: float) -> None:
        """Set the length of those leases that are still held."""
        self.add([receipt for receipt in receipts if receipt in self._due], lease_s, now)

    def retry_later(self, receipts: Iterable[str], now: float) -> None:
        """Schedule another attempt for leases that could not be extended."""
        for receipt in receipts:
            if receipt in self._due:
                self._due[receipt] = now + RETRY_S

    def remove(self, receipts: Iterable[str]) -> None:
        """Remove leases that ended."""
        for receipt in receipts:
            self._due.pop(receipt, None)

    def due(self, now: float) -> list[str]:
        """Return the receipts of leases that have to be extended now.

        If any is due, those that are due soon are included, so that jobs that were claimed together
        stay together.
        """
        if not any(at <= now for at in self._due.values()):
            return []
        return [receipt for receipt, at in self._due.items() if at <= now + RETRY_S / 2]

    def next_at(self) -> float | None:
        """Return when the next lease is due; `None` if there is none."""
        return min(self._due.values(), default=None)

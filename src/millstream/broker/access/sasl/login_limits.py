"""Limits of failed logins: attempts of one address are evaluated at a limited rate. Pure.

An address that has failed recently gets a turn every 100 ms; an address that fails as one user
again and again waits longer for each turn with that user. Attempts that would have to wait longer
than `WAIT_SECONDS_MAX` are refused without being evaluated. Other addresses are not affected, so
nobody can lock the real user out. All addresses of a /64 of IPv6 count as one: who has one of them
has all of them.

Memory is bounded: if too many addresses fail, those that failed longest ago are forgotten.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

INTERVAL_SECONDS = 0.1
"""Time between two attempts of an address that has failed: ten are evaluated in a second."""

USER_INTERVAL_SECONDS_MAX = 5.0
"""Longest time between two attempts of an address as one user. It doubles with each failure."""

WAIT_SECONDS_MAX = 5.0
"""An attempt that would wait longer for its turn is refused."""

FORGIVEN_SECONDS = 60.0
"""After that long without a failure, an address is as good as new."""

ADDRESSES_MAX = 10_000

IPV6_BLOCK_BITS = 64
"""Providers give each customer a /64 or more."""


@dataclass(slots=True)
class _Failures:
    """Recent failures of an address, or of an address as one user."""

    count: int = 0
    last_at: float = 0.0
    next_turn_at: float = 0.0


class LoginLimits:
    """Who has failed lately. Times are those of a monotonic clock, passed by the caller."""

    def __init__(self, *, entries_max: int = ADDRESSES_MAX) -> None:
        self._entries_max = entries_max
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        """By address and user; the user is empty for all attempts of an address."""

    def __len__(self) -> int:
        return len(self._failures)

    def wait_seconds(self, address: str, user: str, now: float) -> float | None:
        """Return how long an attempt has to wait for its turn; `None` if it is refused.

        The turn is taken: the caller evaluates the attempt after that time.
        """
        address = _block_of(address)
        entries = [
            (entry, _interval(entry.count, key[1]))
            for key in ((address, ""), (address, user))
            if (entry := self._recent(key, now)) is not None
        ]
        turn_at = max((entry.next_turn_at for entry, _ in entries), default=now)
        turn_at = max(turn_at, now)
        if turn_at - now > WAIT_SECONDS_MAX:
            return None
        for entry, interval in entries:
            entry.next_turn_at = turn_at + interval
        return turn_at - now

    def note_failure(self, address: str, user: str, now: float) -> None:
        """Take note that an attempt has failed."""
        address = _block_of(address)
        for key in {(address, ""), (address, user)}:
            entry = self._recent(key, now) or _Failures()
            entry.count += 1
            entry.last_at = now
            entry.next_turn_at = max(entry.next_turn_at, now + _interval(entry.count, key[1]))
            self._failures[key] = entry
            self._failures.move_to_end(key)
        while len(self._failures) > self._entries_max:
            self._failures.popitem(last=False)

    def note_success(self, address: str, user: str) -> None:
        """Take note that a user has logged in: its failures from there are forgiven.

        Those of the address are not: an attacker could have one valid login.
        """
        self._failures.pop((_block_of(address), user), None)

    def _recent(self, key: tuple[str, str], now: float) -> _Failures | None:
        entry = self._failures.get(key)
        if entry is not None and now - entry.last_at > FORGIVEN_SECONDS:
            del self._failures[key]
            return None
        return entry


def _block_of(address: str) -> str:
    """Return the network that an address stands for: itself, or the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], IPV6_BLOCK_BITS), strict=False))


def _interval(count: int, user: str) -> float:
    if not user:
        return INTERVAL_SECONDS
    # The exponent is bounded too: a count may be in the millions.
    return float(min(INTERVAL_SECONDS * 2 ** min(count - 1, 10), USER_INTERVAL_SECONDS_MAX))

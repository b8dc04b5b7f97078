"""Slots: how much of something each user has in use on this node at once.

Connections, live connections and requests in flight take a slot when they begin, and give it back
when they end, however they end. Callers of HTTP that have not logged in are counted by their
address, so that one of them does not lock out the others.

Who is refused learns the limit. A server whose clients send ahead lets them wait instead: `wait`
has a waiter woken when a slot is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS
from millstream.config.schema import BrokerConfig
from millstream.errors import CapExceeded


class SlotWaiter(Protocol):
    """Something that wants a slot."""

    def wake(self) -> None:
        """Try again soon, and then call `UserSlots.wake_next`."""
        ...


def slot_holder(caller: Caller) -> str:
    """Return whom the slots of a caller are counted for."""
    if caller.principal == ANONYMOUS:
        return f"{caller.host}, without a login,"  # Unlike any user.
    return str(caller.principal)


class UserSlots:
    """The slots of one kind. Used on the event loop only."""

    def __init__(self, noun: str, setting: str, limit: int) -> None:
        """`noun` and `setting` are for messages: `requests in flight`, `limits.x`."""
        self._noun = noun
        self._setting = setting
        self._limit = limit
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, dict[SlotWaiter, None]] = {}

    def count_of(self, holder: str) -> int:
        """Return how many slots someone has."""
        return self._taken.get(holder, 0)

    @property
    def is_unused(self) -> bool:
        """Return whether nobody has a slot or waits for one."""
        return not self._taken and not self._waiting

    def has_room(self, holder: str) -> bool:
        """Return whether someone may take one more slot."""
        return self._taken.get(holder, 0) < self._limit

    def check(self, holder: str) -> None:
        """Raise `CapExceeded` if someone has all slots."""
        if not self.has_room(holder):
            raise CapExceeded(
                f"{holder} has {self.count_of(holder)} {self._noun}, {self._setting} is"
                f" {self._limit}"
            )

    def take(self, holder: str, count: int = 1) -> None:
        """Take slots, whether or not there is room: `check` says that."""
        if count:
            self._taken[holder] += count

    def give_back(self, holder: str, count: int = 1) -> None:
        """Give slots back, and wake the one that has waited longest."""
        if not count:
            return
        left = self._taken[holder] - count
        assert left >= 0, "only what was taken is given back"
        if left:
            self._taken[holder] = left
        else:
            del self._taken[holder]
        self.wake_next(holder)

    @contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Have a slot for the time of a block; raises `CapExceeded` if there is none."""
        holder = slot_holder(caller)
        self.check(holder)
        self.take(holder)
        try:
            yield
        finally:
            self.give_back(holder)

    # Waiting.

    def wait(self, holder: str, waiter: SlotWaiter) -> None:
        """Wake a waiter when someone has a slot free; once, however often this is called."""
        self._waiting.setdefault(holder, {})[waiter] = None

    def forget(self, holder: str, waiter: SlotWaiter) -> None:
        """Wake a waiter no more."""
        waiters = self._waiting.get(holder)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[holder]

    def wake_next(self, holder: str) -> None:
        """Wake the one that has waited longest, if there is room."""
        waiters = self._waiting.get(holder)
        if waiters and self.has_room(holder):
            waiter = next(iter(waiters))
            self.forget(holder, waiter)
            waiter.wake()


class UserCaps:
    """The slots of all kinds; None for those without a limit."""

    def __init__(self, config: BrokerConfig) -> None:
        self.connections = _slots("connections", config.limit_connections_per_user)
        """Kafka connections whose client has logged in."""
        self.live = _slots("live connections", config.limit_live_connections_per_user)
        """WebSockets and event streams."""
        self.requests = _slots("requests in flight", config.limit_requests_per_user, "requests")
        """Requests of Kafka and HTTP clients that are not answered yet."""


def _slots(noun: str, limit: int, name: str | None = None) -> UserSlots | None:
    if not limit:
        return None
    return UserSlots(noun, f"limits.{(name or noun).replace(' ', '_')}_per_user", limit)


NO_USER_CAPS = UserCaps(BrokerConfig())
"""Those of a node without logins: nothing is counted."""

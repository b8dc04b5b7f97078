"""Clock of an internal partition: the age of what is stored there, whichever node leads it.

    node 1   leads ............ deposed           leads ......
    node 2                      elected ..... deposed
    clock    runs ............. from the last ... from the last
                                stored time       stored time

The retention clock of a store belongs to one machine, and no two machines agree on the wall clock.
So this clock counts the milliseconds during which some node has the partition loaded, and its value
is stored in the partition itself, from time to time. A coordinator continues from the greatest time
that it finds there, also if a lone node has stored it by its retention clock. Time that it does not
know of does not count: after a change of leaders data lives longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.broker.state.state_log import StateLog
from millstream.clock import Clock
from millstream.errors import CorruptData

CLOCK_KEY = b"\xffclock"
"""Of the entry with the time. No id or path has the byte ff, which does not occur in UTF-8."""


class _StoredTime(msgspec.Struct, frozen=True):
    version: int
    ms: int


class StateClock:
    """Milliseconds that advance while the partition is loaded."""

    def __init__(self, state: StateLog, clock: Clock, dates: Iterable[int] = ()) -> None:
        """Continue the clock of a state; `dates` are all times that are stored there."""
        self._state = state
        self._clock = clock
        self._start_ms = max(dates, default=0)
        self._start_ms = max(self._start_ms, _stored_ms(state))
        self._begun = clock.monotonic()

    def now_ms(self) -> int:
        """Return the current time; never less than any time that is stored in the partition."""
        return self._start_ms + int((self._clock.monotonic() - self._begun) * 1000)

    def age_ms(self, date_ms: int) -> int:
        """Return how many milliseconds have passed since `date_ms`, at least."""
        return max(0, self.now_ms() - date_ms)

    async def save(self) -> None:
        """Store the time, so that the next coordinator continues from there."""
        await self._state.put([self.entry()])

    def entry(self) -> tuple[bytes, bytes]:
        """Return the entry with the current time."""
        return clock_entry(self.now_ms())


def clock_entry(now_ms: int) -> tuple[bytes, bytes]:
    """Return the entry with a time, from which the next coordinator continues."""
    return CLOCK_KEY, msgspec.json.encode(_StoredTime(1, now_ms))


def _stored_ms(state: StateLog) -> int:
    if (value := state.entries.get(CLOCK_KEY)) is None:
        return 0
    try:
        return msgspec.json.decode(value, type=_StoredTime).ms
    except msgspec.DecodeError as error:
        raise CorruptData(f"{state.log.name}: invalid time: {error}") from error

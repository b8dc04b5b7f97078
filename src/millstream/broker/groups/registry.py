"""The groups of a coordinator, and the driver of their state machines.

Changes are stored, answers are sent once the changes are durable, and one timer for each group
fires at its deadline. Answers of a group are sent in the order of its changes; an answer that
depends on a change is never sent before the change is durable.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from millstream.broker.groups.group import Group, TicketAnswer
from millstream.broker.groups.offsets.offset_store import OffsetStore
from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.clock import Clock, Timer, Timers
from millstream.errors import GroupNotEmpty, MillstreamError, NotCoordinatorAnymore, Stopping

logger = logging.getLogger(__name__)


class GroupRegistry:
    """All groups by id. Owned by one event loop."""

    def __init__(
        self, state: StateLog, store: OffsetStore, *, clock: Clock, timers: Timers
    ) -> None:
        self._state = state
        self._store = store
        self._clock = clock
        self._timers = timers
        self._groups: dict[str, Group] = {}
        self._names: list[str] = []
        """The ids of all groups, sorted."""
        self._group_timers: dict[str, tuple[float, Timer]] = {}
        self._storing: dict[str, asyncio.Future[None]] = {}
        self._stale_entries: dict[str, list[StateEntry]] = {}
        """Entries of a group that was replaced by another; deleted when that one is stored."""
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._refusal: MillstreamError | None = None
        """Why requests are refused, once they are."""
        self._is_deposed = False

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def page(self, after: str | None, count_max: int) -> list[Group]:
        """Return up to `count_max` groups whose ids come after `after`, sorted by id."""
        begin = 0 if after is None else bisect.bisect_right(self._names, after)
        return [self._groups[name] for name in self._names[begin : begin + count_max]]

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    # Adding and removing.

    def restore(self, group: Group) -> None:
        """Add a group that was stored; adding many is fastest in the order of their ids."""
        self._add(group)
        self._set_timer(group)

    def admit(self, group: Group) -> None:
        """Add a new group, which may replace an empty one of another type."""
        self.check_open()
        if (former := self._groups.get(group.group_id)) is not None:
            assert former.is_empty, "only an empty group is replaced"
            self._stale_entries.setdefault(group.group_id, []).extend(former.tombstones())
        self._add(group)

    def drop_if_unused(self, group: Group) -> None:
        """Drop a group without members, offsets or stored state."""
        group_id = group.group_id
        if self._groups.get(group_id) is not group or not group.is_idle:
            return
        if not self._store.knows(group_id) and group_id not in self._stale_entries:
            self._forget(group_id)

    async def delete(self, group: Group) -> None:
        """Delete a group without members, and its offsets. Durable when this returns."""
        group_id = group.group_id
        changes = await self._store.delete_group(group_id)
        if self._groups.get(group_id) is not group:
            return  # It was deleted meanwhile.
        if not group.is_empty:
            raise GroupNotEmpty(f"group {group_id!r} has members, and is {group.state}")
        # From here on the id is free: a join creates a new group.
        self._forget(group_id)
        tombstones = [*self._stale_entries.pop(group_id, []), *group.tombstones()]
        try:
            await self._store.put(changes, tombstones)
        except MillstreamError:
            if group_id not in self._groups:
                self.restore(group)
            raise

    def _add(self, group: Group) -> None:
        if group.group_id not in self._groups:
            bisect.insort(self._names, group.group_id)
        self._groups[group.group_id] = group

    def _forget(self, group_id: str) -> None:
        del self._groups[group_id]
        del self._names[bisect.bisect_left(self._names, group_id)]
        if alarm := self._group_timers.pop(group_id, None):
            alarm[1].cancel()

    # Steps.

    async def run_step(self, group: Group, step: Callable[[int], Sequence[TicketAnswer]]) -> Any:
        """Run a step of a group, and return its answer.

        `step` gets the ticket of the answer, which comes now or later. An error that it raises is
        an answer, too, and waits like any other until the changes of the step are durable.
        """
        self.check_open()
        ticket = next(self._tickets)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            self.settle(group, _answers_of(step, ticket))
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def settle(self, group: Group, answers: Sequence[TicketAnswer] = ()) -> None:
        """Complete a step of a group: store its changes, send the answers, set the timer."""
        group_id = group.group_id
        if changes := group.take_changes(self._clock.wall_ms()):
            stale = self._stale_entries.pop(group_id, [])
            kept = {key for key, _ in changes}
            stored = self._state.put([*(e for e in stale if e[0] not in kept), *changes])
            self._storing[group_id] = stored
            stored.add_done_callback(partial(self._on_stored, group, stale, changes))
        if storing := self._storing.get(group_id):
            if answers:
                storing.add_done_callback(partial(self._release_stored, answers))
        else:
            self._release(answers)
        self._set_timer(group)
        self.drop_if_unused(group)

    def _on_stored(
        self,
        group: Group,
        stale: list[StateEntry],
        changes: list[StateEntry],
        stored: asyncio.Future[None],
    ) -> None:
        group_id = group.group_id
        if self._storing.get(group_id) is stored:
            del self._storing[group_id]
        if (error := stored.exception()) is None:
            group.stored(changes)
            return
        logger.error("group %s: the state was not stored: %s", group_id, error)
        if self._groups.get(group_id) is group and self._refusal is None:
            if stale:
                self._stale_entries.setdefault(group_id, []).extend(stale)
            # The changes are stored with the next step, not at once: the disk may be full.
            self._release(group.store_failed(self._clock.monotonic()))
            self._set_timer(group)

    def _release_stored(
        self, answers: Sequence[TicketAnswer], stored: asyncio.Future[None]
    ) -> None:
        error = stored.exception()
        if error is None:
            self._release(answers)
            return
        assert isinstance(error, MillstreamError)
        self._release(
            [
                a if isinstance(a.value, MillstreamError) else TicketAnswer(a.ticket, error)
                for a in answers
            ]
        )

    def _release(self, answers: Sequence[TicketAnswer]) -> None:
        for ticket, value in answers:
            future = self._waiting.pop(ticket, None)
            if future is None or future.done():
                continue
            if isinstance(value, MillstreamError):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _set_timer(self, group: Group) -> None:
        """Keep one timer for the group, which fires at its deadline or before."""
        due, timer = self._group_timers.get(group.group_id, (None, None))
        deadline = group.deadline
        if timer is not None and (deadline is None or deadline < (due or 0.0)):
            timer.cancel()
            del self._group_timers[group.group_id]
            timer = None
        if timer is None and deadline is not None and self._refusal is None:
            delay = max(0.0, deadline - self._clock.monotonic())
            timer = self._timers.call_later(delay, partial(self._on_timer, group.group_id))
            self._group_timers[group.group_id] = (deadline, timer)

    def _on_timer(self, group_id: str) -> None:
        due, _ = self._group_timers.pop(group_id)
        if (group := self._groups.get(group_id)) is not None:
            # A timer may fire slightly early; the group would only ask for it again.
            self.settle(group, group.advance_time(max(due, self._clock.monotonic())))

    # Closing.

    def check_open(self) -> None:
        """Raise if requests are refused: the node is stopping, or not the coordinator any more."""
        if self._refusal is not None:
            raise self._refusal

    def check_led(self) -> None:
        """Raise if this node is not the coordinator any more, so that the groups are outdated."""
        if self._is_deposed and self._refusal is not None:
            raise self._refusal

    def close(self) -> None:
        """Refuse requests, fail all that wait, and cancel the timers: the node is stopping."""
        if self._refusal is None:
            self._end(Stopping("the node is stopping"), Stopping("the node is stopping"))

    def depose(self, error: MillstreamError) -> None:
        """Do the same because this node is not the coordinator any more.

        Whether what waits has happened, only the next coordinator knows.
        """
        self._is_deposed = True
        self._end(error, NotCoordinatorAnymore(str(error)))

    def _end(self, refusal: MillstreamError, waiting_error: MillstreamError) -> None:
        self._refusal = refusal
        for _, timer in self._group_timers.values():
            timer.cancel()
        self._group_timers.clear()
        self._release([TicketAnswer(ticket, waiting_error) for ticket in list(self._waiting)])


def _answers_of(
    step: Callable[[int], Sequence[TicketAnswer]], ticket: int
) -> Sequence[TicketAnswer]:
    try:
        return step(ticket)
    except MillstreamError as error:
        return [TicketAnswer(ticket, error)]

"""The groups of this node as machines: what one says, is done here.

Changes are stored, answers go out once they are, and one timer for each group calls when its
machine wants to hear of the time. Answers of a group leave in the order of its changes; one that
tells of a change never leaves before the change is durable.
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
from millstream.errors import GroupNotEmpty, MillstreamError, Stopping

logger = logging.getLogger(__name__)


class GroupRegistry:
    """All groups, by id, on one event loop."""

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
        self._alarms: dict[str, tuple[float, Timer]] = {}
        self._storing: dict[str, asyncio.Future[None]] = {}
        self._debris: dict[str, list[StateEntry]] = {}
        """Entries of a group that gave way to another, to go when that one is stored."""
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def page(self, after: str | None, count_max: int) -> list[Group]:
        """Return the groups whose ids come after `after`, sorted by id, some at the most."""
        begin = 0 if after is None else bisect.bisect_right(self._names, after)
        return [self._groups[name] for name in self._names[begin : begin + count_max]]

    def find(self, group_id: str) -> Group | None:
        """Return the group of that id, if there is one."""
        return self._groups.get(group_id)

    # Coming and going.

    def restore(self, group: Group) -> None:
        """Take in a group that was stored; many are taken in fastest by rising id."""
        self._add(group)
        self._set_alarm(group)

    def admit(self, group: Group) -> None:
        """Make a new group known, in place of an empty one of another kind."""
        self.check_open()
        if (former := self._groups.get(group.group_id)) is not None:
            assert former.is_empty, "only an empty group gives way"
            self._debris.setdefault(group.group_id, []).extend(former.tombstones())
        self._add(group)

    def drop_if_void(self, group: Group) -> None:
        """Forget a group of which there is nothing: nothing stored, no offsets, nobody there."""
        group_id = group.group_id
        if self._groups.get(group_id) is not group or not group.is_idle:
            return
        if not self._store.knows(group_id) and group_id not in self._debris:
            self._forget(group_id)

    async def delete(self, group: Group) -> None:
        """Forget a group without members, and its offsets. Durable when this returns."""
        group_id = group.group_id
        changes = await self._store.delete_group(group_id)
        if self._groups.get(group_id) is not group:
            return  # Someone else has deleted it meanwhile.
        if not group.is_empty:
            raise GroupNotEmpty(f"{group_id!r} has members, and is {group.state}")
        # From here on the id is free: who joins now begins a new group.
        self._forget(group_id)
        tombstones = [*self._debris.pop(group_id, []), *group.tombstones()]
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
        if alarm := self._alarms.pop(group_id, None):
            alarm[1].cancel()

    # Steps.

    async def ask(self, group: Group, step: Callable[[int], Sequence[TicketAnswer]]) -> Any:
        """Have a machine take a step that someone waits for, and return what that is told.

        `step` gets the ticket under which the answer comes, now or later; an error that it raises
        is the answer too, and waits like any other for what the step changed.
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
        """See to what follows from a machine's step: store, answer, set the alarm."""
        group_id = group.group_id
        if changes := group.take_changes(self._clock.wall_ms()):
            debris = self._debris.pop(group_id, [])
            kept = {key for key, _ in changes}
            stored = self._state.put([*(e for e in debris if e[0] not in kept), *changes])
            self._storing[group_id] = stored
            stored.add_done_callback(partial(self._on_stored, group, debris, changes))
        if storing := self._storing.get(group_id):
            if answers:
                storing.add_done_callback(partial(self._release_stored, answers))
        else:
            self._release(answers)
        self._set_alarm(group)
        self.drop_if_void(group)

    def _on_stored(
        self,
        group: Group,
        debris: list[StateEntry],
        changes: list[StateEntry],
        stored: asyncio.Future[None],
    ) -> None:
        group_id = group.group_id
        if self._storing.get(group_id) is stored:
            del self._storing[group_id]
        if (error := stored.exception()) is None:
            group.stored(changes)
            return
        logger.error("group %s was not stored: %s", group_id, error)
        if self._groups.get(group_id) is group and not self._is_closed:
            if debris:
                self._debris.setdefault(group_id, []).extend(debris)
            # What changed is stored with the next step, not at once: the disk may be full.
            self._release(group.store_failed(self._clock.monotonic()))
            self._set_alarm(group)

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

    def _set_alarm(self, group: Group) -> None:
        """Have one timer for the group, due when its machine wants to be called, or before."""
        due, timer = self._alarms.get(group.group_id, (None, None))
        deadline = group.deadline
        if timer is not None and (deadline is None or deadline < (due or 0.0)):
            timer.cancel()
            del self._alarms[group.group_id]
            timer = None
        if timer is None and deadline is not None and not self._is_closed:
            delay = max(0.0, deadline - self._clock.monotonic())
            timer = self._timers.call_later(delay, partial(self._on_alarm, group.group_id))
            self._alarms[group.group_id] = (deadline, timer)

    def _on_alarm(self, group_id: str) -> None:
        due, _ = self._alarms.pop(group_id)
        if (group := self._groups.get(group_id)) is not None:
            # A timer may go off a hair before its time; the machine would only ask for it again.
            self.settle(group, group.pass_time(max(due, self._clock.monotonic())))

    # Ending.

    def check_open(self) -> None:
        """Raise `Stopping` if the node takes nothing new."""
        if self._is_closed:
            raise Stopping("the node is stopping")

    def close(self) -> None:
        """Answer all who wait, and watch the time no longer."""
        self._is_closed = True
        for _, timer in self._alarms.values():
            timer.cancel()
        self._alarms.clear()
        stopping = Stopping("the node is stopping")
        self._release([TicketAnswer(ticket, stopping) for ticket in self._waiting])


def _answers_of(
    step: Callable[[int], Sequence[TicketAnswer]], ticket: int
) -> Sequence[TicketAnswer]:
    try:
        return step(ticket)
    except MillstreamError as error:
        return [TicketAnswer(ticket, error)]

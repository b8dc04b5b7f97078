"""Rebalances of a classic group: how it gets from one generation to the next.

           first join                       all have joined, or time is up
Empty ───────────────► PreparingRebalance ─────────────────────────► CompletingRebalance
  ▲                      ▲    ▲      │                                  │          │
  │   nobody joined      │    └──────┼──── join, leave or expiry ───────┘          │ leader's
  └──────────────────────┼───────────┘                                             │ assignment
                         │                                                         ▼
                         └───────── join, leave or expired session ────────────── Stable
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.broker.groups.classic.members import ClassicMember, ClassicMembers
from millstream.broker.groups.group import TicketAnswer
from millstream.broker.groups.values import (
    NO_MEMBER,
    GroupJoinResult,
    GroupMemberMetadata,
    GroupSyncResult,
)
from millstream.errors import MillstreamError, RebalanceInProgress, UnknownMember


class ClassicGroupState(enum.Enum):
    """The states of a group. The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicLimits:
    """Limits of all classic groups of a node."""

    members_max: int
    initial_delay_ms: int
    """How long an empty group waits for more members before its first generation."""


class ClassicRebalance:
    """The members of a group, and the phase of their rebalance. Times are monotonic seconds."""

    def __init__(self, limits: ClassicLimits) -> None:
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = NO_MEMBER
        self.members = ClassicMembers()
        self.pending_joins: dict[str, float] = {}
        """Ids that were issued and have not joined yet, with their deadlines."""
        self.unsynced: set[str] = set()
        """Members that have not asked for their assignment in this generation."""
        self.is_changed = False
        """Whether something has to be stored."""
        self.wake = math.inf
        """When `advance_time` has to be called, at the latest."""
        self._initial_delay = limits.initial_delay_ms / 1000
        self._initial_left = 0.0
        self._is_initial = False
        self._has_newcomer = False
        self._phase_end = math.inf
        self._answers: list[TicketAnswer] = []

    # Joining.

    def admit(self, member: ClassicMember) -> None:
        """Add a new member. It waits for the next generation."""
        self.members.add(member)
        self.wake_by(member.deadline)
        self.leader = self.leader or member.member_id
        self._has_newcomer = True

    def trigger(self, now: float) -> None:
        """Start a rebalance, or complete one that waited for this join."""
        if self.state is not ClassicGroupState.PREPARING:
            self.prepare(now)
        elif not self._is_initial and self._has_all_joined():
            self._complete_join(now)

    def prepare(self, now: float) -> None:
        """Start a rebalance, in any state."""
        if self.state is ClassicGroupState.COMPLETING:
            for member in self.members:
                self.answer_sync(member, RebalanceInProgress("a member joined or left"), now)
        self.unsynced.clear()
        self._is_initial = self.state is ClassicGroupState.EMPTY
        self._has_newcomer = False
        self.state = ClassicGroupState.PREPARING
        timeout = self.members.rebalance_timeout_ms / 1000
        if self._is_initial:
            delay = min(self._initial_delay, timeout)
            self._initial_left = timeout - delay
            self._end_phase_at(now + delay)
        elif self._has_all_joined():
            self._complete_join(now)
        else:
            self._end_phase_at(now + timeout)

    def _has_all_joined(self) -> bool:
        return self.members.joining == len(self.members) and not self.pending_joins

    def _complete_join(self, now: float) -> None:
        """Start the next generation with those that joined, and with all static members."""
        for member in self.members:
            if member.join_ticket is None and member.instance_id is None:
                self.remove(member)
        if not self.members:
            self._become_empty()
        elif self._elect_leader():
            self._begin_generation(now)
        else:
            # Only silent static members are left; their sessions end this.
            self._end_phase_at(now + self.members.rebalance_timeout_ms / 1000)

    def _elect_leader(self) -> bool:
        """Choose a leader among those that joined; returns whether there are any."""
        joined = [member.member_id for member in self.members if member.join_ticket is not None]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def _begin_generation(self, now: float) -> None:
        self.generation += 1
        self.protocol = self.members.elect_protocol()
        self.state = ClassicGroupState.COMPLETING
        self.is_changed = True
        for member in self.members:
            member.assignment = b""
            member.is_new = False
            self.answer_join(member, self.join_result(member))
            self.touch(member, now)
            self.unsynced.add(member.member_id)
        self._end_phase_at(now + self.members.rebalance_timeout_ms / 1000)

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol = ""
        self.leader = NO_MEMBER
        self.state = ClassicGroupState.EMPTY
        self.is_changed = True
        self._phase_end = math.inf

    def join_result(
        self, member: ClassicMember, *, leader: str | None = None, skip: bool = False
    ) -> GroupJoinResult:
        """Return the answer to a join; the leader gets all members."""
        leader = self.leader if leader is None else leader
        everyone = self.members if member.member_id == leader else ()
        return GroupJoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            members=tuple(
                GroupMemberMetadata(each.member_id, each.instance_id, each.protocols[self.protocol])
                for each in everyone
            ),
            is_skipping_assignment=skip,
        )

    # Assigning.

    def assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        """Set the leader's assignments, and answer the members that wait for theirs."""
        self.state = ClassicGroupState.STABLE
        self.is_changed = True
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            self.answer_sync(member, self.sync_result(member), now)

    def sync_result(self, member: ClassicMember) -> GroupSyncResult:
        """Return the answer to a sync."""
        return GroupSyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    # Removing.

    def remove(self, member: ClassicMember) -> None:
        """Remove a member, and answer it if it waits."""
        removed = UnknownMember(f"member {member.member_id!r} was removed from the group")
        self.answer_join(member, removed)
        self.answer_sync(member, removed)
        self.members.remove(member)
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = self.members.first_id

    def after_removal(self, now: float) -> None:
        """Start a rebalance, or complete one that waited for the removed members."""
        if self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self.prepare(now)
        elif self.state is ClassicGroupState.PREPARING and self._has_all_joined():
            is_wait_over = not self._is_initial or not self.members
            if is_wait_over:
                self._complete_join(now)

    # Time.

    def touch(self, member: ClassicMember, now: float) -> None:
        """Renew a member's session."""
        member.deadline = now + member.session_timeout_ms / 1000
        self.wake_by(member.deadline)

    def advance_time(self, now: float) -> None:
        """Remove members whose session expired, and end a phase whose time is over."""
        pending_joins = [name for name, deadline in self.pending_joins.items() if deadline <= now]
        silent = [m for m in self.members if m.is_expected and m.deadline <= now]
        for name in pending_joins:
            del self.pending_joins[name]
        for member in silent:
            self.remove(member)
        if silent or (pending_joins and self.state is ClassicGroupState.PREPARING):
            self.after_removal(now)
        if self._phase_end <= now:
            self._end_phase(now)
        expected = (member.deadline for member in self.members if member.is_expected)
        self.wake = min((self._phase_end, *self.pending_joins.values(), *expected))

    def _end_phase(self, now: float) -> None:
        self._phase_end = math.inf
        if self.state is ClassicGroupState.PREPARING:
            if self._is_initial and self._has_newcomer and self._initial_left > 0:
                self._wait_for_newcomers(now)
            else:
                self._complete_join(now)
        elif self.unsynced:
            late = [self.members[member_id] for member_id in sorted(self.unsynced)]
            for member in late:
                self.remove(member)
            self.prepare(now)

    def _wait_for_newcomers(self, now: float) -> None:
        """Wait longer, as members still join an empty group, but not forever."""
        self._has_newcomer = False
        delay = min(self._initial_delay, self._initial_left)
        self._initial_left -= delay
        self._end_phase_at(now + delay)

    def expect_sync(self, now: float) -> None:
        """Expect a sync of every member, within the rebalance timeout."""
        self.unsynced.update(member.member_id for member in self.members)
        self._end_phase_at(now + self.members.rebalance_timeout_ms / 1000)

    def _end_phase_at(self, time: float) -> None:
        self._phase_end = time
        self.wake_by(time)

    def wake_by(self, time: float) -> None:
        """Have `advance_time` called at `time`, or before."""
        self.wake = min(self.wake, time)

    # Answers.

    def answer(
        self, ticket: int, value: GroupJoinResult | GroupSyncResult | MillstreamError
    ) -> None:
        self._answers.append(TicketAnswer(ticket, value))

    def answer_join(self, member: ClassicMember, value: GroupJoinResult | MillstreamError) -> None:
        """Answer a member's join, if one waits."""
        if member.join_ticket is not None:
            self.answer(member.join_ticket, value)
            self.members.set_join_ticket(member, None)

    def answer_sync(
        self,
        member: ClassicMember,
        value: GroupSyncResult | MillstreamError,
        now: float | None = None,
    ) -> None:
        """Answer a member's sync, if one waits; its session restarts at `now`."""
        if member.sync_ticket is not None:
            self.answer(member.sync_ticket, value)
            member.sync_ticket = None
            if now is not None:
                self.touch(member, now)

    def take_answers(self) -> Sequence[TicketAnswer]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def end(self, error: MillstreamError) -> None:
        """Answer all waiting requests with `error`; nothing happens after that."""
        for member in self.members:
            self.answer_join(member, error)
            self.answer_sync(member, error)
        self.state = ClassicGroupState.DEAD
        self.wake = self._phase_end = math.inf

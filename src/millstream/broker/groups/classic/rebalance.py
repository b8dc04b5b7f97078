"""How a classic group gets from one generation to the next, and who is in it meanwhile.

           first join                       all have joined, or time is up
Empty ───────────────► PreparingRebalance ─────────────────────────► CompletingRebalance
  ▲                      ▲    ▲      │                                  │          │
  │   nobody joined      │    └──────┼──────── a join, a leave ─────────┘          │ leader's
  └──────────────────────┼───────────┘         or a silent member                  │ division
                         │                                                         ▼
                         └───── a join, a leave or a silent member ───────────── Stable
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
    """What a group is doing. The values are Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicLimits:
    """What one node sets for all its classic groups."""

    members_max: int
    initial_delay_ms: int
    """How long an empty group waits for more members before it is divided first."""


class ClassicRebalance:
    """The members of a group and the round that they are in. Times are monotonic seconds."""

    def __init__(self, limits: ClassicLimits) -> None:
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = NO_MEMBER
        self.members = ClassicMembers()
        self.promised: dict[str, float] = {}
        """Ids that were given out and have not joined yet, and until when they may."""
        self.unsynced: set[str] = set()
        """Members that have not asked for their share of this generation."""
        self.reason = ""
        """Why the members were last gathered, for the log."""
        self.is_changed = False
        """Whether something happened that has to be stored."""
        self.wake = math.inf
        """When `pass_time` has to be called, at the latest."""
        self._initial_delay = limits.initial_delay_ms / 1000
        self._initial_left = 0.0
        self._is_initial = False
        self._has_newcomer = False
        self._phase_end = math.inf
        self._answers: list[TicketAnswer] = []

    # Gathering the members.

    def admit(self, member: ClassicMember) -> None:
        """Take a new member in. It waits for the next generation."""
        self.members.add(member)
        self.wake_by(member.deadline)
        self.leader = self.leader or member.member_id
        self._has_newcomer = True

    def rebalance(self, reason: str, now: float) -> None:
        """Begin to gather the members, or go on with it."""
        if self.state is not ClassicGroupState.PREPARING:
            self.prepare(reason, now)
        elif not self._is_initial and self._has_all_joined():
            self._gather(now)

    def prepare(self, reason: str, now: float) -> None:
        """Begin to gather the members anew, wherever they were."""
        self.reason = reason
        if self.state is ClassicGroupState.COMPLETING:
            for member in self.members:
                self.answer_sync(member, RebalanceInProgress("a member came or went"), now)
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
            self._gather(now)
        else:
            self._end_phase_at(now + timeout)

    def _has_all_joined(self) -> bool:
        return self.members.joining == len(self.members) and not self.promised

    def _gather(self, now: float) -> None:
        """Begin the next generation with those who joined; static members need not have."""
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
        """Have a leader that has joined; returns whether anyone did."""
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
            self.answer_join(member, self.joined(member))
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

    def joined(
        self, member: ClassicMember, *, leader: str | None = None, skip: bool = False
    ) -> GroupJoinResult:
        """Return what a member of this generation is told; the leader learns of all members."""
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

    # Dividing.

    def divide(self, assignments: Mapping[str, bytes], now: float) -> None:
        """Take the leader's division, and give everyone who waits their share."""
        self.state = ClassicGroupState.STABLE
        self.is_changed = True
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            self.answer_sync(member, self.synced(member), now)

    def synced(self, member: ClassicMember) -> GroupSyncResult:
        """Return what a member is told of its share."""
        return GroupSyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    # Letting go.

    def remove(self, member: ClassicMember) -> None:
        """Let a member go, and tell it so if it waits."""
        gone = UnknownMember(f"{member.member_id!r} is no longer a member")
        self.answer_join(member, gone)
        self.answer_sync(member, gone)
        self.members.remove(member)
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = self.members.first_id

    def after_removal(self, reason: str, now: float) -> None:
        """Gather the rest, who may have waited for those who are gone."""
        if self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self.prepare(reason, now)
        elif self.state is ClassicGroupState.PREPARING and self._has_all_joined():
            is_wait_over = not self._is_initial or not self.members
            if is_wait_over:
                self._gather(now)

    # Time.

    def touch(self, member: ClassicMember, now: float) -> None:
        """Take note that a member is alive."""
        member.deadline = now + member.session_timeout_ms / 1000
        self.wake_by(member.deadline)

    def pass_time(self, now: float) -> None:
        """Let go who was silent for too long, and end a phase whose time is up."""
        promised = [name for name, deadline in self.promised.items() if deadline <= now]
        silent = [m for m in self.members if m.is_expected and m.deadline <= now]
        for name in promised:
            del self.promised[name]
        for member in silent:
            self.remove(member)
        if silent or (promised and self.state is ClassicGroupState.PREPARING):
            names = ", ".join(member.member_id for member in silent)
            self.after_removal(f"{names} was silent for too long", now)
        if self._phase_end <= now:
            self._end_phase(now)
        expected = (member.deadline for member in self.members if member.is_expected)
        self.wake = min((self._phase_end, *self.promised.values(), *expected))

    def _end_phase(self, now: float) -> None:
        self._phase_end = math.inf
        if self.state is ClassicGroupState.PREPARING:
            if self._is_initial and self._has_newcomer and self._initial_left > 0:
                self._wait_for_newcomers(now)
            else:
                self._gather(now)
        elif self.unsynced:
            late = [self.members[member_id] for member_id in sorted(self.unsynced)]
            for member in late:
                self.remove(member)
            names = ", ".join(member.member_id for member in late)
            self.prepare(f"{names} did not ask for a share", now)

    def _wait_for_newcomers(self, now: float) -> None:
        """Members still come to an empty group: give the next ones time too, but not for ever."""
        self._has_newcomer = False
        delay = min(self._initial_delay, self._initial_left)
        self._initial_left -= delay
        self._end_phase_at(now + delay)

    def await_sync(self, now: float) -> None:
        """Have every member ask for its share, within the time that joining again may take."""
        self.unsynced.update(member.member_id for member in self.members)
        self._end_phase_at(now + self.members.rebalance_timeout_ms / 1000)

    def _end_phase_at(self, time: float) -> None:
        self._phase_end = time
        self.wake_by(time)

    def wake_by(self, time: float) -> None:
        """Have `pass_time` called at `time`, or before."""
        self.wake = min(self.wake, time)

    # Answers.

    def answer(
        self, ticket: int, value: GroupJoinResult | GroupSyncResult | MillstreamError
    ) -> None:
        """Answer someone."""
        self._answers.append(TicketAnswer(ticket, value))

    def answer_join(self, member: ClassicMember, value: GroupJoinResult | MillstreamError) -> None:
        """Answer a member that waits to join, if it does."""
        if member.join_ticket is not None:
            self.answer(member.join_ticket, value)
            self.members.wait_for_join(member, None)

    def answer_sync(
        self,
        member: ClassicMember,
        value: GroupSyncResult | MillstreamError,
        now: float | None = None,
    ) -> None:
        """Answer a member that waits for its share, if it does; its session begins at `now`."""
        if member.sync_ticket is not None:
            self.answer(member.sync_ticket, value)
            member.sync_ticket = None
            if now is not None:
                self.touch(member, now)

    def take_answers(self) -> Sequence[TicketAnswer]:
        """Return the answers that were given since this was asked before."""
        answers, self._answers = self._answers, []
        return answers

    def end(self, error: MillstreamError) -> None:
        """Answer all who wait with `error`; nothing happens after that."""
        for member in self.members:
            self.answer_join(member, error)
            self.answer_sync(member, error)
        self.state = ClassicGroupState.DEAD
        self.wake = self._phase_end = math.inf

"""A classic group: members that divide the work among themselves, one generation after another.

`classic_rounds.py` draws the states. Rules that everything here keeps:

1. The generation rises by one each time the members are gathered, and never falls. Whoever speaks
   of another one than the present is refused.
2. Every ticket that is taken in is answered once: with what was asked for, or with an error.
3. What is answered is stored first: the generation and its members when they have gathered, their
   shares when the leader has divided. So a coordinator that comes back knows every generation that
   a member could speak of, and members that are heard in time stay in theirs.
4. A member that waits for us need not be heard. A new one may wait only so long, since it cannot
   tell us that it is gone.

A static member keeps its place by its instance id: when it comes back under a new member id, the
old id is fenced and the share is kept, without dividing anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.broker.groups.classic.members import ClassicMember
from millstream.broker.groups.classic.rebalance import (
    ClassicGroupState,
    ClassicLimits,
    ClassicRebalance,
)
from millstream.broker.groups.classic.record import decode_group, encode_group, group_key
from millstream.broker.groups.group import GroupType, TicketAnswer
from millstream.broker.groups.values import (
    NO_MEMBER,
    ClassicGroupDescription,
    ClassicMemberDescription,
    GroupJoinRequest,
    GroupSyncRequest,
    LeaveResult,
    LeavingMember,
)
from millstream.broker.state.state_log import StateEntry
from millstream.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdNeeded,
    MillstreamError,
    RebalanceInProgress,
    UnknownMember,
)

NEW_MEMBER_SECONDS_MAX = 300.0
"""How long a new member may wait for its first generation. Kafka's own limit."""


class ClassicGroup:
    """The machine of one classic group. Its members' tickets are the caller's to keep."""

    kind = GroupType.CLASSIC

    def __init__(self, group_id: str, limits: ClassicLimits) -> None:
        self.group_id = group_id
        self.empty_since_ms: int | None = None
        self._members_max = limits.members_max
        self._rounds = ClassicRebalance(limits)
        self._is_stored = False

    # What it is.

    @property
    def state(self) -> str:
        """Kafka's word for the state that it is in."""
        return self._rounds.state.value

    @property
    def generation(self) -> int:
        """How often its members were gathered."""
        return self._rounds.generation

    @property
    def protocol_type(self) -> str:
        """What its members are, or were."""
        return self._rounds.protocol_type

    @property
    def rebalance_reason(self) -> str:
        """Why its members were last gathered, for the log."""
        return self._rounds.reason

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self._rounds.state in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD)

    @property
    def member_count(self) -> int:
        """How many members it has."""
        return len(self._rounds.members)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing that would be missed."""
        return self.is_empty and not self._rounds.promised and not self._is_stored

    @property
    def deadline(self) -> float | None:
        """When `pass_time` has to be called; it may come too early, for heartbeats only delay."""
        return None if self._rounds.wake == math.inf else self._rounds.wake

    @property
    def subscriptions(self) -> list[bytes]:
        """What each member said to the strategy in use."""
        rounds = self._rounds
        return [member.protocols.get(rounds.protocol, b"") for member in rounds.members]

    def describe(self) -> ClassicGroupDescription:
        """Return the group as it stands. Strategy and shares show when it is stable."""
        rounds = self._rounds
        is_stable = rounds.state is ClassicGroupState.STABLE
        return ClassicGroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=rounds.protocol_type,
            protocol=rounds.protocol if is_stable else "",
            members=tuple(
                ClassicMemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.host,
                    member.protocols.get(rounds.protocol, b"") if is_stable else b"",
                    member.assignment if is_stable else b"",
                )
                for member in rounds.members
            ),
        )

    # Joining.

    def join(
        self, join: GroupJoinRequest, ticket: int, new_id: str, now: float
    ) -> Sequence[TicketAnswer]:
        """Take a member in, for the first time or again; `new_id` is its id if it has none yet.

        The ticket is answered with `Joined` when the group is divided, at once if the member's
        return changes nothing, or with an error.
        """
        try:
            self._check_room(join, now)
            self._check_protocols(join)
            if join.member_id == NO_MEMBER:
                self._join_anew(join, ticket, new_id, now)
            elif join.member_id in self._rounds.promised and join.instance_id is None:
                self._add(join, join.member_id, ticket, now)
            else:
                self._join_again(join, ticket, now)
        except MillstreamError as error:
            self._rounds.answer(ticket, error)
        return self._rounds.take_answers()

    def _check_room(self, join: GroupJoinRequest, now: float) -> None:
        rounds, most = self._rounds, self._members_max
        known = rounds.members.get(join.member_id) or rounds.members.with_instance(join.instance_id)
        if rounds.state is ClassicGroupState.PREPARING:
            # Those who are back count, so that a group above the limit shrinks to it.
            is_back = known is not None and known.join_ticket is not None
            has_room = rounds.members.joining < most or is_back
        else:
            has_room = len(rounds.members) < most or known is not None
        is_promise = join.member_id == NO_MEMBER and join.instance_id is None
        if has_room and not (is_promise and len(rounds.promised) >= most):
            return
        rounds.promised.pop(join.member_id, None)
        if known is not None:
            rounds.remove(known)
        if rounds.state is ClassicGroupState.PREPARING:
            rounds.after_removal("a member came back to a full group", now)
        found = f"{self.group_id!r} has {len(rounds.members)} members"
        raise GroupFull(f"{found} and {len(rounds.promised)} about to join, allowed are {most}")

    def _check_protocols(self, join: GroupJoinRequest) -> None:
        rounds = self._rounds
        found = f"{join.protocol_type!r} with {', '.join(join.protocols) or 'no strategy'}"
        if not join.protocol_type or not join.protocols:
            raise InconsistentProtocol(f"{found}: a type and a strategy are needed")
        if rounds.members and not (
            join.protocol_type == rounds.protocol_type and rounds.members.support(join.protocols)
        ):
            group = f"{self.group_id!r}, a group of {rounds.protocol_type!r}"
            raise InconsistentProtocol(f"{found} has no strategy in common with {group}")

    def _join_anew(self, join: GroupJoinRequest, ticket: int, new_id: str, now: float) -> None:
        if (known := self._rounds.members.with_instance(join.instance_id)) is not None:
            self._replace(known, join, ticket, new_id, now)
        elif join.instance_id is None and join.needs_known_id:
            self._rounds.promised[new_id] = deadline = now + join.session_timeout_ms / 1000
            self._rounds.wake_by(deadline)
            raise MemberIdNeeded(new_id)
        else:
            self._add(join, new_id, ticket, now)

    def _add(self, join: GroupJoinRequest, member_id: str, ticket: int, now: float) -> None:
        rounds = self._rounds
        rounds.promised.pop(member_id, None)
        if not rounds.members:
            rounds.protocol_type = join.protocol_type
        member = _make_member(join, member_id)
        member.is_new = True
        member.join_ticket = ticket
        member.deadline = now + NEW_MEMBER_SECONDS_MAX
        rounds.admit(member)
        rounds.rebalance(f"{member_id} joins: {join.reason}", now)

    def _join_again(self, join: GroupJoinRequest, ticket: int, now: float) -> None:
        rounds = self._rounds
        member = rounds.members.find(join.member_id, join.instance_id)
        # A leader that joins a stable group again has seen something that its division did not
        # account for; all others, and a leader that missed the answer, are just told once more.
        is_settled = rounds.state is ClassicGroupState.COMPLETING or (
            rounds.state is ClassicGroupState.STABLE and member.member_id != rounds.leader
        )
        if is_settled and member.speaks_as(join):
            rounds.touch(member, now)
            rounds.answer(ticket, rounds.joined(member))
            return
        again = RebalanceInProgress(f"{member.member_id!r} has asked to join once more")
        rounds.answer_join(member, again)
        rounds.members.update(member, join)
        rounds.members.wait_for_join(member, ticket)
        rounds.rebalance(f"{member.member_id} joins again: {join.reason}", now)

    def _replace(
        self, old: ClassicMember, join: GroupJoinRequest, ticket: int, new_id: str, now: float
    ) -> None:
        """A static member came back under another id: the old id is fenced, its share is kept."""
        rounds, former_leader = self._rounds, self._rounds.leader
        fenced = FencedInstance(f"instance {old.instance_id!r} belongs to {new_id!r} now")
        rounds.answer_join(old, fenced)
        rounds.answer_sync(old, fenced)
        member = _make_member(join, new_id)
        member.assignment = old.assignment
        rounds.members.replace(old, member)
        rounds.touch(member, now)
        if old.member_id in rounds.unsynced:
            rounds.unsynced.remove(old.member_id)
            rounds.unsynced.add(new_id)
        if former_leader == old.member_id:
            rounds.leader = new_id
        is_kept = rounds.state is ClassicGroupState.STABLE
        if not is_kept or rounds.members.elect_protocol() != rounds.protocol:
            rounds.members.wait_for_join(member, ticket)
            rounds.rebalance(f"{new_id} takes the place of {old.member_id}: {join.reason}", now)
            return
        rounds.is_changed = True
        if join.can_skip_assignment:
            joined = rounds.joined(member, skip=new_id == rounds.leader)
        else:
            # An old client that is told to be the leader would divide; it must not.
            joined = rounds.joined(member, leader=former_leader)
        rounds.answer(ticket, joined)

    # Syncing.

    def sync(self, sync: GroupSyncRequest, ticket: int, now: float) -> Sequence[TicketAnswer]:
        """Give a member its share, now or when the leader has brought it."""
        rounds = self._rounds
        try:
            member = rounds.members.find(sync.member_id, sync.instance_id)
            self._check_sync(sync)
        except MillstreamError as error:
            rounds.answer(ticket, error)
            return rounds.take_answers()
        rounds.unsynced.discard(member.member_id)
        if rounds.state is ClassicGroupState.STABLE:
            rounds.touch(member, now)
            rounds.answer(ticket, rounds.synced(member))
        else:
            again = RebalanceInProgress(f"{member.member_id!r} has asked for its share once more")
            rounds.answer_sync(member, again)
            member.sync_ticket = ticket
            if member.member_id == rounds.leader:
                rounds.divide(sync.assignments, now)
        return rounds.take_answers()

    def _check_sync(self, sync: GroupSyncRequest) -> None:
        rounds = self._rounds
        self._check_generation(sync.generation)
        said = ((sync.protocol_type, rounds.protocol_type), (sync.protocol, rounds.protocol))
        for found, present in said:
            if found is not None and found != present:
                raise InconsistentProtocol(f"{self.group_id!r} works by {present!r}, not {found!r}")
        if rounds.state is ClassicGroupState.PREPARING:
            raise RebalanceInProgress(f"{self.group_id!r} is being divided anew")

    # Being heard, and leaving.

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> None:
        """Take note that a member is alive; raises what it has to do instead of going on."""
        member = self._rounds.members.find(member_id, instance_id)
        self._check_generation(generation)
        self._rounds.touch(member, now)
        if self._rounds.state is ClassicGroupState.PREPARING:
            raise RebalanceInProgress(f"{self.group_id!r} is being divided anew")

    def touch(self, member_id: str, now: float) -> None:
        """Take note that a member is alive, from something else that it did."""
        if (member := self._rounds.members.get(member_id)) is not None:
            self._rounds.touch(member, now)

    def leave(
        self, leavers: Sequence[LeavingMember], now: float
    ) -> tuple[list[LeaveResult], Sequence[TicketAnswer]]:
        """Let members go; says for each whether it was one."""
        results = [LeaveResult(leaver, self._let_go(leaver)) for leaver in leavers]
        gone = [left.leaver for left in results if left.error is None]
        if gone:
            names = ", ".join(leaver.member_id or str(leaver.instance_id) for leaver in gone)
            self._rounds.after_removal(f"{names} left: {gone[0].reason}", now)
        return results, self._rounds.take_answers()

    def _let_go(self, leaver: LeavingMember) -> MillstreamError | None:
        members = self._rounds.members
        if self._rounds.promised.pop(leaver.member_id, None) is not None:
            return None
        try:
            # An operator removes a static member by its instance id, whatever its member id is.
            member = members.with_instance(leaver.instance_id)
            if member is None or leaver.member_id != NO_MEMBER:
                member = members.find(leaver.member_id, leaver.instance_id)
        except MillstreamError as error:
            return error
        self._rounds.remove(member)
        return None

    def pass_time(self, now: float) -> Sequence[TicketAnswer]:
        """Let go who was silent for too long, and end a phase whose time is up."""
        self._rounds.pass_time(now)
        return self._rounds.take_answers()

    def end(self, error: MillstreamError) -> Sequence[TicketAnswer]:
        """Answer all who wait with `error`: the group ends here, or its node does."""
        self._rounds.end(error)
        return self._rounds.take_answers()

    # Offsets.

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless this caller may commit offsets now."""
        rounds = self._rounds
        if generation < 0 and rounds.state is ClassicGroupState.EMPTY:
            return  # A consumer that takes no part in the group, or an operator.
        if generation >= 0 or member_id != NO_MEMBER or instance_id is not None:
            rounds.members.find(member_id, instance_id)
            self._check_generation(generation)
        elif not is_transactional:
            raise UnknownMember(f"{self.group_id!r} has members, and only they may commit")
        if rounds.state is ClassicGroupState.COMPLETING and not is_transactional:
            raise RebalanceInProgress(f"{self.group_id!r} is being divided anew")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Anyone may see what a classic group has committed."""

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            found = f"generation is {generation}"
            raise IllegalGeneration(f"{found}, {self.group_id!r} is at {self.generation}")

    # Storing.

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return the group's record if it has to be stored.

        While members gather there is nothing to say: the next generation is not there yet.
        """
        rounds = self._rounds
        if not rounds.is_changed or rounds.state is ClassicGroupState.PREPARING:
            return []
        rounds.is_changed = False
        self._is_stored = True
        if rounds.state is not ClassicGroupState.EMPTY:
            self.empty_since_ms = None
        elif self.empty_since_ms is None:
            self.empty_since_ms = now_ms
        return [(group_key(self.group_id), encode_group(rounds, self.empty_since_ms))]

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Nothing has to be noted: the next record says everything again."""

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:
        """Gather the members once more: what they were to be told was not stored."""
        rounds = self._rounds
        rounds.is_changed = True
        if rounds.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE):
            rounds.prepare("the group could not be stored", now)
        return rounds.take_answers()

    def tombstones(self) -> list[StateEntry]:
        """Return the entry that deletes the group's record."""
        return [(group_key(self.group_id), None)]

    @classmethod
    def restore(
        cls, group_id: str, record: bytes, limits: ClassicLimits, now: float
    ) -> ClassicGroup:
        """Return the group as it was stored. Its members have a whole session to be heard."""
        stored = decode_group(record)
        group, rounds = cls(group_id, limits), ClassicRebalance(limits)
        rounds.generation = stored.generation
        rounds.protocol_type = stored.protocol_type
        rounds.protocol = stored.protocol
        rounds.leader = stored.leader
        for kept in stored.members:
            member = kept.to_member()
            rounds.members.add(member)
            rounds.touch(member, now)
        if stored.members:
            rounds.state = (
                ClassicGroupState.STABLE if stored.is_divided else ClassicGroupState.COMPLETING
            )
        if rounds.state is ClassicGroupState.COMPLETING:
            rounds.await_sync(now)
        group._rounds = rounds
        group._is_stored = True
        group.empty_since_ms = stored.empty_since_ms
        return group


def _make_member(join: GroupJoinRequest, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id,
        instance_id=join.instance_id,
        client_id=join.client_id,
        host=join.host,
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=join.protocols,
    )

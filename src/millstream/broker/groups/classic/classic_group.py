"""A classic group: its leader assigns partitions to the members in each generation.

`rebalance.py` draws the states. Rules:

1. The generation rises by one with each rebalance, and never falls. Requests for another generation
   than the current one are refused.
2. Every ticket is answered once: with the result, or with an error.
3. What is answered is stored first: the generation and its members when all have joined, their
   assignments when the leader has sent them. So a coordinator that restarts knows every generation
   that a member could refer to, and members that send a heartbeat in time stay in theirs.
4. The session of a member that waits for an answer does not expire. A new member may wait for a
   limited time only, because a disconnected client would not be noticed.

A static member keeps its membership by its instance id: when it joins under a new member id, the
old id is fenced and the assignment is kept, without a rebalance.
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
"""How long a new member may wait for its first generation. The limit is Kafka's."""


class ClassicGroup:
    """The state machine of one classic group. The caller maps its tickets to requests."""

    kind = GroupType.CLASSIC

    def __init__(self, group_id: str, limits: ClassicLimits) -> None:
        self.group_id = group_id
        self.empty_since_ms: int | None = None
        self._members_max = limits.members_max
        self._rebalance = ClassicRebalance(limits)
        self._is_stored = False

    # State.

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        return self._rebalance.state.value

    @property
    def generation(self) -> int:
        """Number of rebalances so far."""
        return self._rebalance.generation

    @property
    def protocol_type(self) -> str:
        """The type of its current or last members."""
        return self._rebalance.protocol_type

    @property
    def is_empty(self) -> bool:
        return self._rebalance.state in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD)

    @property
    def member_count(self) -> int:
        return len(self._rebalance.members)

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped: no members, no pending joins, nothing stored."""
        return self.is_empty and not self._rebalance.pending_joins and not self._is_stored

    @property
    def deadline(self) -> float | None:
        """When `advance_time` has to be called. May be too early: heartbeats postpone it."""
        return None if self._rebalance.wake == math.inf else self._rebalance.wake

    @property
    def subscriptions(self) -> list[bytes]:
        """The metadata that each member sent for the assignor in use."""
        rebalance = self._rebalance
        return [member.protocols.get(rebalance.protocol, b"") for member in rebalance.members]

    def describe(self) -> ClassicGroupDescription:
        """Describe the group. Assignor and assignments are shown when it is stable."""
        rebalance = self._rebalance
        is_stable = rebalance.state is ClassicGroupState.STABLE
        return ClassicGroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=rebalance.protocol_type,
            protocol=rebalance.protocol if is_stable else "",
            members=tuple(
                ClassicMemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.host,
                    member.protocols.get(rebalance.protocol, b"") if is_stable else b"",
                    member.assignment if is_stable else b"",
                )
                for member in rebalance.members
            ),
        )

    # Joining.

    def join(
        self, join: GroupJoinRequest, ticket: int, new_id: str, now: float
    ) -> Sequence[TicketAnswer]:
        """Add a member, or let it join again; `new_id` is its id if it has none yet.

        The ticket is answered with a `GroupJoinResult` when the generation starts, at once if the
        join changes nothing, or with an error.
        """
        try:
            self._check_member_limit(join, now)
            self._check_protocols(join)
            if join.member_id == NO_MEMBER:
                self._join_new(join, ticket, new_id, now)
            elif join.member_id in self._rebalance.pending_joins and join.instance_id is None:
                self._add(join, join.member_id, ticket, now)
            else:
                self._join_again(join, ticket, now)
        except MillstreamError as error:
            self._rebalance.answer(ticket, error)
        return self._rebalance.take_answers()

    def _check_member_limit(self, join: GroupJoinRequest, now: float) -> None:
        rebalance, most = self._rebalance, self._members_max
        known = rebalance.members.get(join.member_id) or rebalance.members.with_instance(
            join.instance_id
        )
        if rebalance.state is ClassicGroupState.PREPARING:
            # Only members that joined again count, so that a group above the limit shrinks to it.
            is_back = known is not None and known.join_ticket is not None
            has_room = rebalance.members.joining < most or is_back
        else:
            has_room = len(rebalance.members) < most or known is not None
        is_promise = join.member_id == NO_MEMBER and join.instance_id is None
        if has_room and not (is_promise and len(rebalance.pending_joins) >= most):
            return
        rebalance.pending_joins.pop(join.member_id, None)
        if known is not None:
            rebalance.remove(known)
        if rebalance.state is ClassicGroupState.PREPARING:
            rebalance.after_removal(now)
        raise GroupFull(
            f"group {self.group_id!r} has {len(rebalance.members)} members and"
            f" {len(rebalance.pending_joins)} about to join, limit is {most}"
        )

    def _check_protocols(self, join: GroupJoinRequest) -> None:
        rebalance = self._rebalance
        offer = f"{join.protocol_type!r} with {', '.join(join.protocols) or 'no assignor'}"
        if not join.protocol_type or not join.protocols:
            raise InconsistentProtocol(f"{offer}: a protocol type and an assignor are required")
        if rebalance.members and not (
            join.protocol_type == rebalance.protocol_type
            and rebalance.members.supports_any(join.protocols)
        ):
            raise InconsistentProtocol(
                f"{offer} has no assignor in common with group {self.group_id!r}"
                f" of type {rebalance.protocol_type!r}"
            )

    def _join_new(self, join: GroupJoinRequest, ticket: int, new_id: str, now: float) -> None:
        if (known := self._rebalance.members.with_instance(join.instance_id)) is not None:
            self._replace(known, join, ticket, new_id, now)
        elif join.instance_id is None and join.needs_known_id:
            self._rebalance.pending_joins[new_id] = deadline = now + join.session_timeout_ms / 1000
            self._rebalance.wake_by(deadline)
            raise MemberIdNeeded(new_id)
        else:
            self._add(join, new_id, ticket, now)

    def _add(self, join: GroupJoinRequest, member_id: str, ticket: int, now: float) -> None:
        rebalance = self._rebalance
        rebalance.pending_joins.pop(member_id, None)
        if not rebalance.members:
            rebalance.protocol_type = join.protocol_type
        member = _make_member(join, member_id)
        member.is_new = True
        member.join_ticket = ticket
        member.deadline = now + NEW_MEMBER_SECONDS_MAX
        rebalance.admit(member)
        rebalance.trigger(now)

    def _join_again(self, join: GroupJoinRequest, ticket: int, now: float) -> None:
        rebalance = self._rebalance
        member = rebalance.members.find(join.member_id, join.instance_id)
        # A leader joins a stable group again when something changed that its assignment did not
        # consider. All others, and a leader that missed the answer, just get the answer again.
        is_settled = rebalance.state is ClassicGroupState.COMPLETING or (
            rebalance.state is ClassicGroupState.STABLE and member.member_id != rebalance.leader
        )
        if is_settled and member.has_same_protocols(join):
            rebalance.touch(member, now)
            rebalance.answer(ticket, rebalance.join_result(member))
            return
        again = RebalanceInProgress(f"member {member.member_id!r} sent another join")
        rebalance.answer_join(member, again)
        rebalance.members.update(member, join)
        rebalance.members.set_join_ticket(member, ticket)
        rebalance.trigger(now)

    def _replace(
        self, old: ClassicMember, join: GroupJoinRequest, ticket: int, new_id: str, now: float
    ) -> None:
        """Replace a static member that returned under another id.

        The old id is fenced, and the assignment is kept.
        """
        rebalance, former_leader = self._rebalance, self._rebalance.leader
        fenced = FencedInstance(
            f"instance id {old.instance_id!r} was taken over by member {new_id!r}"
        )
        rebalance.answer_join(old, fenced)
        rebalance.answer_sync(old, fenced)
        member = _make_member(join, new_id)
        member.assignment = old.assignment
        rebalance.members.replace(old, member)
        rebalance.touch(member, now)
        if old.member_id in rebalance.unsynced:
            rebalance.unsynced.remove(old.member_id)
            rebalance.unsynced.add(new_id)
        if former_leader == old.member_id:
            rebalance.leader = new_id
        is_kept = rebalance.state is ClassicGroupState.STABLE
        if not is_kept or rebalance.members.elect_protocol() != rebalance.protocol:
            rebalance.members.set_join_ticket(member, ticket)
            rebalance.trigger(now)
            return
        rebalance.is_changed = True
        if join.can_skip_assignment:
            joined = rebalance.join_result(member, skip=new_id == rebalance.leader)
        else:
            # An old client that learns that it is the leader would assign; it must not.
            joined = rebalance.join_result(member, leader=former_leader)
        rebalance.answer(ticket, joined)

    # Syncing.

    def sync(self, sync: GroupSyncRequest, ticket: int, now: float) -> Sequence[TicketAnswer]:
        """Answer a member with its assignment, now or when the leader has sent it."""
        rebalance = self._rebalance
        try:
            member = rebalance.members.find(sync.member_id, sync.instance_id)
            self._check_sync(sync)
        except MillstreamError as error:
            rebalance.answer(ticket, error)
            return rebalance.take_answers()
        rebalance.unsynced.discard(member.member_id)
        if rebalance.state is ClassicGroupState.STABLE:
            rebalance.touch(member, now)
            rebalance.answer(ticket, rebalance.sync_result(member))
        else:
            again = RebalanceInProgress(f"member {member.member_id!r} sent another sync")
            rebalance.answer_sync(member, again)
            member.sync_ticket = ticket
            if member.member_id == rebalance.leader:
                rebalance.assign(sync.assignments, now)
        return rebalance.take_answers()

    def _check_sync(self, sync: GroupSyncRequest) -> None:
        rebalance = self._rebalance
        self._check_generation(sync.generation)
        pairs = ((sync.protocol_type, rebalance.protocol_type), (sync.protocol, rebalance.protocol))
        for sent, current in pairs:
            if sent is not None and sent != current:
                raise InconsistentProtocol(
                    f"group {self.group_id!r} uses {current!r}, not {sent!r}"
                )
        if rebalance.state is ClassicGroupState.PREPARING:
            raise RebalanceInProgress(f"group {self.group_id!r} is rebalancing")

    # Heartbeats and leaving.

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> None:
        """Renew a member's session; raises if the member has to join again."""
        member = self._rebalance.members.find(member_id, instance_id)
        self._check_generation(generation)
        self._rebalance.touch(member, now)
        if self._rebalance.state is ClassicGroupState.PREPARING:
            raise RebalanceInProgress(f"group {self.group_id!r} is rebalancing")

    def touch(self, member_id: str, now: float) -> None:
        """Renew a member's session after any other request from it."""
        if (member := self._rebalance.members.get(member_id)) is not None:
            self._rebalance.touch(member, now)

    def leave(
        self, leavers: Sequence[LeavingMember], now: float
    ) -> tuple[list[LeaveResult], Sequence[TicketAnswer]]:
        """Remove members; returns a result for each."""
        results = [LeaveResult(leaver, self._remove_member(leaver)) for leaver in leavers]
        if any(result.error is None for result in results):
            self._rebalance.after_removal(now)
        return results, self._rebalance.take_answers()

    def _remove_member(self, leaver: LeavingMember) -> MillstreamError | None:
        members = self._rebalance.members
        if self._rebalance.pending_joins.pop(leaver.member_id, None) is not None:
            return None
        try:
            # An operator removes a static member by its instance id, whatever its member id is.
            member = members.with_instance(leaver.instance_id)
            if member is None or leaver.member_id != NO_MEMBER:
                member = members.find(leaver.member_id, leaver.instance_id)
        except MillstreamError as error:
            return error
        self._rebalance.remove(member)
        return None

    def advance_time(self, now: float) -> Sequence[TicketAnswer]:
        """Remove members whose session expired, and end a phase that has timed out."""
        self._rebalance.advance_time(now)
        return self._rebalance.take_answers()

    def end(self, error: MillstreamError) -> Sequence[TicketAnswer]:
        """Fail all waiting requests with `error`: the group is being removed, or the node stops."""
        self._rebalance.end(error)
        return self._rebalance.take_answers()

    # Offsets.

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless this member may commit offsets now."""
        rebalance = self._rebalance
        if generation < 0 and rebalance.state is ClassicGroupState.EMPTY:
            return  # A consumer that is not a member, or an operator.
        if generation >= 0 or member_id != NO_MEMBER or instance_id is not None:
            rebalance.members.find(member_id, instance_id)
            self._check_generation(generation)
        elif not is_transactional:
            raise UnknownMember(f"group {self.group_id!r} has members, and only they may commit")
        if rebalance.state is ClassicGroupState.COMPLETING and not is_transactional:
            raise RebalanceInProgress(f"group {self.group_id!r} is rebalancing")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Do nothing: anyone may read the offsets of a classic group."""

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(
                f"group {self.group_id!r} is at generation {self.generation}, got {generation}"
            )

    # Storage.

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return the group's record if it has to be stored.

        While members join there is nothing to store: the next generation has not started.
        """
        rebalance = self._rebalance
        if not rebalance.is_changed or rebalance.state is ClassicGroupState.PREPARING:
            return []
        rebalance.is_changed = False
        self._is_stored = True
        if rebalance.state is not ClassicGroupState.EMPTY:
            self.empty_since_ms = None
        elif self.empty_since_ms is None:
            self.empty_since_ms = now_ms
        return [(group_key(self.group_id), encode_group(rebalance, self.empty_since_ms))]

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Do nothing: the next record contains everything."""

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:
        """Start another rebalance: the outcome of the last one was not stored."""
        rebalance = self._rebalance
        rebalance.is_changed = True
        if rebalance.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE):
            rebalance.prepare(now)
        return rebalance.take_answers()

    def tombstones(self) -> list[StateEntry]:
        """Return the entry that deletes the group's record."""
        return [(group_key(self.group_id), None)]

    @classmethod
    def restore(
        cls, group_id: str, record: bytes, limits: ClassicLimits, now: float
    ) -> ClassicGroup:
        """Return the group as it was stored. The sessions of its members start again."""
        stored = decode_group(record)
        group, rebalance = cls(group_id, limits), ClassicRebalance(limits)
        rebalance.generation = stored.generation
        rebalance.protocol_type = stored.protocol_type
        rebalance.protocol = stored.protocol
        rebalance.leader = stored.leader
        for saved in stored.members:
            member = saved.to_member()
            rebalance.members.add(member)
            rebalance.touch(member, now)
        if stored.members:
            rebalance.state = (
                ClassicGroupState.STABLE if stored.is_divided else ClassicGroupState.COMPLETING
            )
        if rebalance.state is ClassicGroupState.COMPLETING:
            rebalance.expect_sync(now)
        group._rebalance = rebalance
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

"""One consumer group of the new protocol (KIP-848), in which the server divides the partitions.

Three epochs, none of which ever falls:

- The group's rises when members come or go, want other topics, or when topics change.
- The target's is that of the group when it was last worked out who should have what. That happens
  with the next heartbeat of any member.
- A member's says how far it is towards the target. It is what requests are checked against: one
  that speaks of another epoch is of a member that was overtaken.

A partition is *held* by the member that may have it in its hands: from the answer that grants it
to the request by which the member says that it let go, or to the member's end. Nothing is granted
that another holds. That is the whole of the safety; targets only say where things should go.

The group does no I/O and keeps no time. Events go in together with the time; changes are collected
and have to be durable before the answer that rests on them goes out (`take_changes`). Deadlines are
values: someone calls `pass_time` not long after `deadline`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from millstream.broker.groups.consumer.assignors import ASSIGNORS, MemberSubscription
from millstream.broker.groups.consumer.deadlines import MemberDeadlines
from millstream.broker.groups.consumer.heartbeat_validation import check_heartbeat
from millstream.broker.groups.consumer.member import (
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMember,
    MemberState,
)
from millstream.broker.groups.consumer.member_lookup import (
    check_member_epoch,
    find_leaving_member,
    find_member,
    find_removed_member,
)
from millstream.broker.groups.consumer.members import ConsumerMembers
from millstream.broker.groups.consumer.partition_set import NO_PARTITIONS, PartitionSet
from millstream.broker.groups.consumer.reconciliation import reconcile
from millstream.broker.groups.consumer.records import (
    GROUP_ENTRY_KEY,
    MEMBER_KINDS,
    EntryKey,
    StoredConsumerGroup,
    encode_group,
    key_of,
)
from millstream.broker.groups.consumer.subscriptions import TopicsImage
from millstream.broker.groups.group import GroupType, TicketAnswer
from millstream.broker.groups.values import LeaveResult, LeavingMember
from millstream.broker.state.state_log import StateEntry
from millstream.config.schema import BrokerConfig
from millstream.errors import IllegalGeneration, MillstreamError, StaleMemberEpoch

_MS_PER_SECOND = 1000


class ConsumerGroupState(enum.StrEnum):
    """What a group is doing, in Kafka's words."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """The members of one group, and who of them has what."""

    kind = GroupType.CONSUMER
    protocol_type = "consumer"

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.empty_since_ms: int | None = None
        self._config = config
        self._roster = ConsumerMembers()
        self._deadlines = MemberDeadlines()
        self._is_changed = False
        self._is_stored = False
        self._must_store_again = False
        self._unstored: dict[bytes, bytes | None] = {}
        """Changes that were asked for and are not known to be durable."""

    @classmethod
    def restore(
        cls, group_id: str, saved: StoredConsumerGroup, config: BrokerConfig, now: float
    ) -> ConsumerGroup:
        """Go on where the broker stopped. Every member gets the time of a whole session."""
        group = cls(group_id, config)
        group._is_stored = True
        group.epoch = saved.epoch
        group.target_epoch = saved.target_epoch
        group.empty_since_ms = saved.empty_since_ms
        roster = group._roster
        for member in saved.members:
            roster.put(None, member)
            roster.set_target(member.member_id, saved.targets[member.member_id])
            group._start_session(member.member_id, now)
            if member.state is MemberState.UNREVOKED:
                group._start_revocation(member, now)
        roster.subscriptions.fingerprint = saved.fingerprint
        roster.changed.clear()
        return group

    # What it looks like.

    @property
    def state(self) -> str:
        """What the group is doing."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        """The members by id."""
        return self._roster.members

    @property
    def targets(self) -> Mapping[str, PartitionSet]:
        """What each member should have."""
        return self._roster.targets

    @property
    def is_empty(self) -> bool:
        """Whether it has no members. A static one that is away still counts."""
        return not self.members

    @property
    def member_count(self) -> int:
        """How many members it has."""
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing that would be missed."""
        return self.is_empty and not self._is_stored

    @property
    def assignor(self) -> str:
        """The strategy by which the group is divided."""
        return self._roster.subscriptions.assignor

    def is_subscribed(self, topic_name: str) -> bool:
        """Whether any member wants the topic."""
        return self._roster.subscriptions.includes(topic_name)

    # What members say.

    def heartbeat(
        self, beat: ConsumerHeartbeat, catalog: TopicsImage, now: float
    ) -> ConsumerHeartbeatResult:
        """Hear a member: let it in, move it on, or let it go.

        Either it raises and nothing has changed, or the answer holds once the changes are durable.
        """
        check_heartbeat(beat)
        if beat.is_leaving:
            return self._leave(beat, now)
        found = find_member(self._roster, beat, members_max=self._config.group_members_max)
        member = self._enter(found, beat)
        self._follow_wishes(found, member, catalog)
        moved = self._move(member, beat, now)
        self._start_session(moved.member_id, now)
        has_missed = beat.member_epoch != member.epoch or moved.assigned != member.assigned
        return ConsumerHeartbeatResult(
            member_id=moved.member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self._config.consumer_heartbeat_interval_ms,
            assigned=moved.assigned if beat.is_full or has_missed else None,
        )

    def _enter(self, found: ConsumerMember | None, beat: ConsumerHeartbeat) -> ConsumerMember:
        """Note what the member says of itself, in a new place, or in that of one that left it."""
        if found is None:
            member = ConsumerMember(member_id=beat.member_id, joined_epoch=self.epoch + 1)
        elif found.has_left:
            member = replace(found, member_id=beat.member_id, epoch=0, previous_epoch=0)
            self._deadlines.forget(found.member_id)
        else:
            member = found
        member = member.updated(beat)
        self._roster.put(found, member)
        self.empty_since_ms = None
        return member

    def _follow_wishes(
        self, found: ConsumerMember | None, member: ConsumerMember, catalog: TopicsImage
    ) -> None:
        """Divide the group anew where someone came, or where wishes or topics changed."""
        is_other = found is None or found.wishes != member.wishes
        if self._roster.subscriptions.resolve(catalog) and self.epoch == self.target_epoch:
            is_other = True
        if is_other:
            self.epoch += 1
        if self.epoch > self.target_epoch:
            self._assign()

    def _assign(self) -> None:
        """Work out who should have what."""
        wishes = self._roster.subscriptions
        subscribers = [
            MemberSubscription(
                member.member_id, wishes.topics_of(member), self.targets[member.member_id]
            )
            for member in sorted(self.members.values(), key=lambda member: member.joined_epoch)
        ]
        targets = ASSIGNORS[wishes.assignor](subscribers, wishes.partition_counts)
        for member_id, target in targets.items():
            self._roster.set_target(member_id, target)
        self.target_epoch = self.epoch
        self._is_changed = True

    def _move(self, member: ConsumerMember, beat: ConsumerHeartbeat, now: float) -> ConsumerMember:
        """Bring the member closer to its target, as far as is safe."""
        moved = reconcile(
            member,
            target=self.targets[member.member_id],
            target_epoch=self.target_epoch,
            owned=beat.owned,
            available=lambda wanted: self._roster.available(wanted, member.member_id),
        )
        if moved is member:
            return member
        if moved.epoch != member.epoch:
            moved = replace(moved, previous_epoch=beat.member_epoch)
        self._roster.put(member, moved)
        if moved.state is MemberState.UNREVOKED:
            self._start_revocation(moved, now)
        else:
            self._deadlines.end_revocation(moved.member_id)
        return moved

    # Members that go.

    def _leave(self, beat: ConsumerHeartbeat, now: float) -> ConsumerHeartbeatResult:
        member = find_leaving_member(self._roster, beat)
        if beat.member_epoch == LEAVE_STATIC_EPOCH:
            # It has let go of everything. Its place stays, and what belongs to it.
            left = replace(
                member, epoch=LEAVE_STATIC_EPOCH, state=MemberState.STABLE, revoking=NO_PARTITIONS
            )
            self._roster.put(member, left)
            self._deadlines.end_revocation(member.member_id)
            self._start_session(member.member_id, now)
        else:
            self._remove([member])
        return ConsumerHeartbeatResult(
            member_id=beat.member_id, member_epoch=beat.member_epoch, heartbeat_interval_ms=0
        )

    def remove(self, leavers: Sequence[LeavingMember]) -> list[LeaveResult]:
        """Let members go in whose name another speaks; says for each whether it was one."""
        results, gone = [], {}
        for leaver in leavers:
            try:
                member = find_removed_member(self._roster, leaver)
            except MillstreamError as error:
                results.append(LeaveResult(leaver, error))
            else:
                results.append(LeaveResult(leaver, None))
                gone[member.member_id] = member
        if gone:
            self._remove(gone.values())
        return results

    def _remove(self, members: Iterable[ConsumerMember]) -> None:
        for member in members:
            self._roster.put(member, None)
            self._deadlines.forget(member.member_id)
        self.epoch += 1
        self._is_changed = True

    # Time.

    @property
    def deadline(self) -> float | None:
        """When `pass_time` has to be called. It may come too early, for heartbeats only delay."""
        return None if self._deadlines.wake_at == math.inf else self._deadlines.wake_at

    def pass_time(self, now: float) -> Sequence[TicketAnswer]:
        """Remove the members whose time is up. Nobody waits for an answer here.

        That is a member that was silent for a whole session, or that did not let go of what it was
        told to give up.
        """
        if late := self._deadlines.take_late(now):
            self._remove([self.members[member_id] for member_id in late])
        return ()

    def _start_session(self, member_id: str, now: float) -> None:
        session = self._config.consumer_session_timeout_ms / _MS_PER_SECOND
        self._deadlines.start_session(member_id, now + session)

    def _start_revocation(self, member: ConsumerMember, now: float) -> None:
        deadline = now + member.rebalance_timeout_ms / _MS_PER_SECOND
        self._deadlines.start_revocation(member.member_id, deadline)

    # What others ask.

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless offsets may be committed in the name of this member, at this epoch.

        Without members, anyone may who claims to be none.
        """
        if generation < 0 and self.is_empty:
            return
        try:
            check_member_epoch(self._roster, member_id, generation, instance_id)
        except StaleMemberEpoch as error:
            if is_transactional:  # Producers know no member epochs.
                raise IllegalGeneration(str(error)) from None
            raise

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise unless offsets may be asked for by this member, at this epoch, or by no member."""
        if member_id or epoch >= 0:
            check_member_epoch(self._roster, member_id or "", epoch, None)

    # What is written down.

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return what has to be stored since this was asked before; nothing where nothing has.

        What was asked for earlier and is not known to be stored comes along: a grant must not
        outlive, in the log, the release that made it possible.
        """
        places = self._roster.take_changed() | ({GROUP_ENTRY_KEY} if self._is_changed else set())
        if not places and not self._must_store_again:
            return []
        if self.is_empty and self.empty_since_ms is None:
            self.empty_since_ms = now_ms
        self._is_changed = self._must_store_again = False
        self._is_stored = True
        for place in sorted(places):
            self._unstored[key_of(self.group_id, place)] = self._encoded(place)
        return list(self._unstored.items())

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Take note that these changes are durable."""
        for key, value in changes:
            if key in self._unstored and self._unstored[key] == value:
                del self._unstored[key]

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:  # noqa: ARG002
        """Take note that changes were not stored: they will be, with the next ones.

        The members that caused them were told of the failure and come again, as they do when an
        answer is lost.
        """
        self._must_store_again = bool(self._unstored)
        return ()

    def tombstones(self) -> list[StateEntry]:
        """Return the entries that delete all that is stored of it."""
        places = [GROUP_ENTRY_KEY, *((kind, id_) for id_ in self.members for kind in MEMBER_KINDS)]
        keys = {key_of(self.group_id, place) for place in places} | self._unstored.keys()
        return [(key, None) for key in sorted(keys)]

    def _encoded(self, place: EntryKey) -> bytes | None:
        if place != GROUP_ENTRY_KEY:
            return self._roster.encoded(place)
        return encode_group(
            epoch=self.epoch,
            target_epoch=self.target_epoch,
            fingerprint=self._roster.subscriptions.fingerprint,
            empty_since_ms=self.empty_since_ms,
        )

"""A consumer group of the new protocol (KIP-848), in which the server assigns the partitions.

There are three epochs, none of which ever falls:

- The group's epoch rises when members join or leave, change their subscription, or when topics
  change.
- The target epoch is the group's epoch for which the target assignment was last computed. That
  happens with the next heartbeat of any member.
- A member's epoch tells how far it is towards the target. Requests are checked against it: one with
  another epoch comes from a member that was fenced.

A partition is *held* by the member that may be reading it: from the answer that grants it to the
request by which the member confirms its release, or to the removal of the member. A partition that
another member holds is never granted. Safety depends on this alone; targets only say where
partitions should be.

The group does no I/O and reads no clock. Events are passed in together with the time; changes are
collected and have to be durable before the answer that depends on them is sent (`take_changes`).
Deadlines are values: the caller calls `advance_time` soon after `deadline`.
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
    """The states of a group. The values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """The members of one group, and the partitions of each."""

    kind = GroupType.CONSUMER
    protocol_type = "consumer"

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.empty_since_ms: int | None = None
        self.config = config
        """The config of the group; may be replaced at any time."""
        self._members = ConsumerMembers()
        self._deadlines = MemberDeadlines()
        self._is_changed = False
        self._is_stored = False
        self._must_store_again = False
        self._unstored: dict[bytes, bytes | None] = {}
        """Changes that were returned by `take_changes` and are not known to be durable."""

    @classmethod
    def restore(
        cls, group_id: str, saved: StoredConsumerGroup, config: BrokerConfig, now: float
    ) -> ConsumerGroup:
        """Return the group as it was stored. The sessions of its members start again."""
        group = cls(group_id, config)
        group._is_stored = True
        group.epoch = saved.epoch
        group.target_epoch = saved.target_epoch
        group.empty_since_ms = saved.empty_since_ms
        for member in saved.members:
            group._members.put(None, member)
            group._members.set_target(member.member_id, saved.targets[member.member_id])
            group._start_session(member.member_id, now)
            if member.state is MemberState.UNREVOKED:
                group._start_revocation(member, now)
        group._members.subscriptions.fingerprint = saved.fingerprint
        group._members.changed.clear()
        return group

    # State.

    @property
    def state(self) -> str:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self._members.by_id

    @property
    def targets(self) -> Mapping[str, PartitionSet]:
        """The partitions that each member should have."""
        return self._members.targets

    @property
    def is_empty(self) -> bool:
        """Whether it has no members. A static member that left temporarily counts."""
        return not self.members

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped: it has no members, and nothing is stored."""
        return self.is_empty and not self._is_stored

    @property
    def assignor(self) -> str:
        """The name of the assignor in use."""
        return self._members.subscriptions.assignor

    def is_subscribed(self, topic_name: str) -> bool:
        """Return whether a member subscribes to the topic."""
        return self._members.subscriptions.includes(topic_name)

    # Heartbeats.

    def heartbeat(
        self, beat: ConsumerHeartbeat, catalog: TopicsImage, now: float
    ) -> ConsumerHeartbeatResult:
        """Handle a heartbeat: add the member, reconcile it with its target, or remove it.

        Either it raises and nothing has changed, or the answer is valid once the changes are
        durable.
        """
        check_heartbeat(beat)
        if beat.is_leaving:
            return self._leave(beat, now)
        former = find_member(self._members, beat, members_max=self.config.group_members_max)
        member = self._enter(former, beat)
        self._update_target(former, member, catalog)
        moved = self._reconcile(member, beat, now)
        self._start_session(moved.member_id, now)
        has_missed = beat.member_epoch != member.epoch or moved.assigned != member.assigned
        return ConsumerHeartbeatResult(
            member_id=moved.member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self.config.consumer_heartbeat_interval_ms,
            assigned=moved.assigned if beat.is_full or has_missed else None,
        )

    def _enter(self, former: ConsumerMember | None, beat: ConsumerHeartbeat) -> ConsumerMember:
        """Update the member from its heartbeat, or add it.

        A new member may replace a static one that left temporarily.
        """
        if former is None:
            member = ConsumerMember(member_id=beat.member_id, joined_epoch=self.epoch + 1)
        elif former.has_left:
            member = replace(former, member_id=beat.member_id, epoch=0, previous_epoch=0)
            self._deadlines.forget(former.member_id)
        else:
            member = former
        member = member.updated(beat)
        self._members.put(former, member)
        self.empty_since_ms = None
        return member

    def _update_target(
        self, former: ConsumerMember | None, member: ConsumerMember, catalog: TopicsImage
    ) -> None:
        """Compute a new target if a member joined, or if subscriptions or topics changed."""
        is_changed = former is None or former.subscription != member.subscription
        if self._members.subscriptions.resolve(catalog) and self.epoch == self.target_epoch:
            is_changed = True
        if is_changed:
            self.epoch += 1
        if self.epoch > self.target_epoch:
            self._assign()

    def _assign(self) -> None:
        """Compute the target assignment of all members."""
        subscriptions = self._members.subscriptions
        subscribers = [
            MemberSubscription(
                member.member_id, subscriptions.topics_of(member), self.targets[member.member_id]
            )
            for member in sorted(self.members.values(), key=lambda member: member.joined_epoch)
        ]
        targets = ASSIGNORS[subscriptions.assignor](subscribers, subscriptions.partition_counts)
        for member_id, target in targets.items():
            self._members.set_target(member_id, target)
        self.target_epoch = self.epoch
        self._is_changed = True

    def _reconcile(
        self, member: ConsumerMember, beat: ConsumerHeartbeat, now: float
    ) -> ConsumerMember:
        """Move the member towards its target, as far as is safe."""
        moved = reconcile(
            member,
            target=self.targets[member.member_id],
            target_epoch=self.target_epoch,
            owned=beat.owned,
            available=lambda wanted: self._members.available(wanted, member.member_id),
        )
        if moved is member:
            return member
        if moved.epoch != member.epoch:
            moved = replace(moved, previous_epoch=beat.member_epoch)
        self._members.put(member, moved)
        if moved.state is MemberState.UNREVOKED:
            self._start_revocation(moved, now)
        else:
            self._deadlines.end_revocation(moved.member_id)
        return moved

    # Leaving.

    def _leave(self, beat: ConsumerHeartbeat, now: float) -> ConsumerHeartbeatResult:
        member = find_leaving_member(self._members, beat)
        if beat.member_epoch == LEAVE_STATIC_EPOCH:
            # It released everything. Its membership and its target are kept.
            left = replace(
                member, epoch=LEAVE_STATIC_EPOCH, state=MemberState.STABLE, revoking=NO_PARTITIONS
            )
            self._members.put(member, left)
            self._deadlines.end_revocation(member.member_id)
            self._start_session(member.member_id, now)
        else:
            self._remove([member])
        return ConsumerHeartbeatResult(
            member_id=beat.member_id, member_epoch=beat.member_epoch, heartbeat_interval_ms=0
        )

    def remove(self, leavers: Sequence[LeavingMember]) -> list[LeaveResult]:
        """Remove members on behalf of an operator; returns a result for each."""
        results, gone = [], {}
        for leaver in leavers:
            try:
                member = find_removed_member(self._members, leaver)
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
            self._members.put(member, None)
            self._deadlines.forget(member.member_id)
        self.epoch += 1
        self._is_changed = True

    # Time.

    @property
    def deadline(self) -> float | None:
        """When `advance_time` has to be called. May be too early: heartbeats postpone it."""
        return None if self._deadlines.wake_at == math.inf else self._deadlines.wake_at

    def advance_time(self, now: float) -> Sequence[TicketAnswer]:
        """Remove members whose session expired, or that did not release partitions in time.

        There are never answers: no request waits in a consumer group.
        """
        if late := self._deadlines.pop_late(now):
            self._remove([self.members[member_id] for member_id in late])
        return ()

    def _start_session(self, member_id: str, now: float) -> None:
        session = self.config.consumer_session_timeout_ms / _MS_PER_SECOND
        self._deadlines.start_session(member_id, now + session)

    def _start_revocation(self, member: ConsumerMember, now: float) -> None:
        deadline = now + member.rebalance_timeout_ms / _MS_PER_SECOND
        self._deadlines.start_revocation(member.member_id, deadline)

    # Checks.

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless offsets may be committed by this member at this epoch.

        If there are no members, anyone who does not claim to be one may commit.
        """
        if generation < 0 and self.is_empty:
            return
        try:
            check_member_epoch(self._members, member_id, generation, instance_id)
        except StaleMemberEpoch as error:
            if is_transactional:  # Producers know no member epochs.
                raise IllegalGeneration(str(error)) from None
            raise

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise unless offsets may be read by this member at this epoch, or by a non-member."""
        if member_id or epoch >= 0:
            check_member_epoch(self._members, member_id or "", epoch, None)

    # Storage.

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return what has to be stored since the last call.

        Earlier changes that are not known to be durable are included: in the log, a grant must not
        survive without the release that made it possible.
        """
        entries = self._members.take_changed() | ({GROUP_ENTRY_KEY} if self._is_changed else set())
        if not entries and not self._must_store_again:
            return []
        if self.is_empty and self.empty_since_ms is None:
            self.empty_since_ms = now_ms
        self._is_changed = self._must_store_again = False
        self._is_stored = True
        for entry in sorted(entries):
            self._unstored[key_of(self.group_id, entry)] = self._encode_entry(entry)
        return list(self._unstored.items())

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Take note that these changes are durable."""
        for key, value in changes:
            if key in self._unstored and self._unstored[key] == value:
                del self._unstored[key]

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:  # noqa: ARG002
        """Take note that changes were not stored: they are stored with the next ones.

        The members that caused them got an error and repeat their heartbeat, as they do when an
        answer is lost.
        """
        self._must_store_again = bool(self._unstored)
        return ()

    def tombstones(self) -> list[StateEntry]:
        """Return the entries that delete everything stored about the group."""
        entries = [GROUP_ENTRY_KEY, *((kind, id_) for id_ in self.members for kind in MEMBER_KINDS)]
        keys = {key_of(self.group_id, entry) for entry in entries} | self._unstored.keys()
        return [(key, None) for key in sorted(keys)]

    def _encode_entry(self, entry: EntryKey) -> bytes | None:
        if entry != GROUP_ENTRY_KEY:
            return self._members.encode_entry(entry)
        return encode_group(
            epoch=self.epoch,
            target_epoch=self.target_epoch,
            fingerprint=self._members.subscriptions.fingerprint,
            empty_since_ms=self.empty_since_ms,
        )

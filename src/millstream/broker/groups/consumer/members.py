"""The members of a consumer group, and all that follows from them, kept in step.

There is one way to change a member: `put`. It keeps the table of instance ids, the count of wishes,
the list of what has to be written down and, above all, the table of holders, in which each
partition that may be in someone's hands has one holder. That none has two is asserted there.
"""

from __future__ import annotations

from uuid import UUID

from millstream.broker.groups.consumer.member import ConsumerMember
from millstream.broker.groups.consumer.partition_set import NO_PARTITIONS, PartitionSet
from millstream.broker.groups.consumer.records import (
    MEMBER_KINDS,
    ConsumerRecordKind,
    EntryKey,
    encode_current,
    encode_member,
    encode_target,
    identity_of,
)
from millstream.broker.groups.consumer.subscriptions import GroupSubscriptions


class ConsumerMembers:
    """Who is in the group, what each should have and what each holds."""

    def __init__(self) -> None:
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, PartitionSet] = {}
        """What each member should have."""

        self.subscriptions = GroupSubscriptions()
        self.changed: set[EntryKey] = set()
        """The entries of members that are not as they were written down."""

        self._instances: dict[str, str] = {}
        self._holders: dict[UUID, dict[int, str]] = {}

    def with_instance(self, instance_id: str | None) -> ConsumerMember | None:
        """The static member that has this instance id."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def available(self, wanted: PartitionSet, member_id: str) -> PartitionSet:
        """Of `wanted`, what no other member than this one holds."""
        available = {}
        for topic, numbers in wanted.items():
            holders = self._holders.get(topic, {})
            if free := frozenset(n for n in numbers if holders.get(n, member_id) == member_id):
                available[topic] = free
        return available

    def put(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Put `new` in the place of `old`: None before it comes, None after it went.

        Where a static member comes back under another id, it gets the target of the one before.
        """
        if old is new:
            return
        if old is not None:
            self._release(old.held)
            if new is None or new.member_id != old.member_id:
                self._forget(old, new)
        if new is not None:
            self._hold(new)
            self._note(old, new)
            self.members[new.member_id] = new
            self.targets.setdefault(new.member_id, NO_PARTITIONS)
            if new.instance_id is not None:
                self._instances[new.instance_id] = new.member_id
        self.subscriptions.replace(old, new)

    def set_target(self, member_id: str, target: PartitionSet) -> None:
        """Have the member move towards `target` from now on."""
        if target is not (former := self.targets[member_id]) and target != former:
            self.targets[member_id] = target
            self.changed.add((ConsumerRecordKind.TARGET, member_id))

    def take_changed(self) -> set[EntryKey]:
        """Return what is not as it was written down, and take it for written."""
        changed, self.changed = self.changed, set()
        return changed

    def encoded(self, place: EntryKey) -> bytes | None:
        """The entry of a member as it has to be written down; None where the member is gone."""
        kind, member_id = place
        member = self.members.get(member_id)
        if member is None:
            return None
        if kind is ConsumerRecordKind.TARGET:
            return encode_target(self.targets[member_id])
        return (
            encode_member(member) if kind is ConsumerRecordKind.MEMBER else encode_current(member)
        )

    def _forget(self, old: ConsumerMember, new: ConsumerMember | None) -> None:
        del self.members[old.member_id]
        if old.instance_id is not None:
            del self._instances[old.instance_id]
        target = self.targets.pop(old.member_id)
        if new is not None:
            self.targets[new.member_id] = target
        self.changed.update((kind, old.member_id) for kind in MEMBER_KINDS)

    def _note(self, old: ConsumerMember | None, new: ConsumerMember) -> None:
        if old is None or old.member_id != new.member_id:
            self.changed.update((kind, new.member_id) for kind in MEMBER_KINDS)
            return
        self.changed.add((ConsumerRecordKind.CURRENT, new.member_id))
        if identity_of(old) != identity_of(new):
            self.changed.add((ConsumerRecordKind.MEMBER, new.member_id))

    def _hold(self, member: ConsumerMember) -> None:
        for topic, numbers in member.held.items():
            holders = self._holders.setdefault(topic, {})
            for number in numbers:
                assert number not in holders, f"partition {topic}-{number} is in two hands"
                holders[number] = member.member_id

    def _release(self, partitions: PartitionSet) -> None:
        for topic, numbers in partitions.items():
            holders = self._holders[topic]
            for number in numbers:
                del holders[number]
            if not holders:
                del self._holders[topic]

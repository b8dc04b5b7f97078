"""The members of a consumer group, with the tables derived from them.

`put` is the only way to change a member. It updates the table of instance ids, the subscriptions,
the set of entries to store and, above all, the table of holders, in which each partition that a
member may be reading has one holder. `put` asserts that none has two.
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
    """The members of a group, their targets, and the partitions that they hold."""

    def __init__(self) -> None:
        self.by_id: dict[str, ConsumerMember] = {}
        self.targets: dict[str, PartitionSet] = {}
        """The partitions that each member should have."""

        self.subscriptions = GroupSubscriptions()
        self.changed: set[EntryKey] = set()
        """The entries of members that differ from what is stored."""

        self._instances: dict[str, str] = {}
        self._holders: dict[UUID, dict[int, str]] = {}

    def with_instance(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the static member with this instance id, if there is one."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self.by_id[member_id]

    def available(self, wanted: PartitionSet, member_id: str) -> PartitionSet:
        """Return those of `wanted` that no other member holds."""
        available = {}
        for topic, numbers in wanted.items():
            holders = self._holders.get(topic, {})
            if free := frozenset(n for n in numbers if holders.get(n, member_id) == member_id):
                available[topic] = free
        return available

    def put(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Replace `old` by `new`: `None` to add, `None` to remove.

        A static member that returns under another id gets the target of the old one.
        """
        if old is new:
            return
        if old is not None:
            self._release(old.held)
            if new is None or new.member_id != old.member_id:
                self._forget(old, new)
        if new is not None:
            self._hold(new)
            self._mark_changed(old, new)
            self.by_id[new.member_id] = new
            self.targets.setdefault(new.member_id, NO_PARTITIONS)
            if new.instance_id is not None:
                self._instances[new.instance_id] = new.member_id
        self.subscriptions.replace(old, new)

    def set_target(self, member_id: str, target: PartitionSet) -> None:
        if target is not (former := self.targets[member_id]) and target != former:
            self.targets[member_id] = target
            self.changed.add((ConsumerRecordKind.TARGET, member_id))

    def take_changed(self) -> set[EntryKey]:
        """Return the entries that differ from what is stored, and treat them as stored."""
        changed, self.changed = self.changed, set()
        return changed

    def encode_entry(self, entry: EntryKey) -> bytes | None:
        """Return the value of a member's entry; `None` if the member was removed."""
        kind, member_id = entry
        member = self.by_id.get(member_id)
        if member is None:
            return None
        if kind is ConsumerRecordKind.TARGET:
            return encode_target(self.targets[member_id])
        return (
            encode_member(member) if kind is ConsumerRecordKind.MEMBER else encode_current(member)
        )

    def _forget(self, old: ConsumerMember, new: ConsumerMember | None) -> None:
        del self.by_id[old.member_id]
        if old.instance_id is not None:
            del self._instances[old.instance_id]
        target = self.targets.pop(old.member_id)
        if new is not None:
            self.targets[new.member_id] = target
        self.changed.update((kind, old.member_id) for kind in MEMBER_KINDS)

    def _mark_changed(self, old: ConsumerMember | None, new: ConsumerMember) -> None:
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
                assert number not in holders, f"partition {topic}-{number} has two holders"
                holders[number] = member.member_id

    def _release(self, partitions: PartitionSet) -> None:
        for topic, numbers in partitions.items():
            holders = self._holders[topic]
            for number in numbers:
                del holders[number]
            if not holders:
                del self._holders[topic]

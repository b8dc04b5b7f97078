"""The stored form of a consumer group: one entry for the group, three for each member.

    ["consumer", group, "group", ""]         epochs, and the topics that they were computed from
    ["consumer", group, "member", member]    its identity and its subscription
    ["consumer", group, "target", member]    the partitions that it should have
    ["consumer", group, "current", member]   its epoch, and the partitions that it holds

Entries that change together are written together, so contradicting entries are damage, and
reported.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from uuid import UUID

import msgspec

from millstream.broker.groups.consumer.member import ConsumerMember, MemberState
from millstream.broker.groups.consumer.partition_set import PartitionSet, partition_set
from millstream.broker.groups.group import decode_key, encode_key
from millstream.errors import CorruptData, UnknownFormat

FAMILY = "consumer"
"""The first part of every key here."""

_VERSION = 1


class ConsumerRecordKind(enum.StrEnum):
    """The kinds of entries."""

    GROUP = "group"
    MEMBER = "member"
    TARGET = "target"
    CURRENT = "current"


EntryKey: TypeAlias = tuple[ConsumerRecordKind, str]
"""An entry within its group: the kind, and the member id; no id for the entry of the group."""

GROUP_ENTRY_KEY: EntryKey = (ConsumerRecordKind.GROUP, "")
MEMBER_KINDS = (ConsumerRecordKind.MEMBER, ConsumerRecordKind.TARGET, ConsumerRecordKind.CURRENT)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION


class _Group(_Record, frozen=True):
    epoch: int
    target_epoch: int
    fingerprint: str
    empty_since_ms: int | None


class _Member(_Record, frozen=True):
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: list[str]
    topic_regex: str
    assignor: str | None
    client_id: str
    client_host: str
    joined_epoch: int


class _Target(_Record, frozen=True):
    partitions: dict[str, list[int]]


class _Current(_Record, frozen=True):
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: dict[str, list[int]]
    revoking: dict[str, list[int]]


_R = TypeVar("_R", bound=_Record)


@dataclass(slots=True)
class StoredConsumerGroup:
    """A group as it was stored."""

    epoch: int
    target_epoch: int
    fingerprint: str
    empty_since_ms: int | None
    members: list[ConsumerMember]
    """In the order in which they joined."""
    targets: dict[str, PartitionSet]


def key_of(group_id: str, entry: EntryKey) -> bytes:
    """Return the key of an entry in the state log."""
    return encode_key(FAMILY, group_id, *entry)


def identity_of(member: ConsumerMember) -> tuple[object, ...]:
    """Return the fields that `encode_member` depends on."""
    return (
        member.instance_id,
        member.rack_id,
        member.rebalance_timeout_ms,
        member.topic_names,
        member.topic_regex,
        member.assignor,
        member.client_id,
        member.client_host,
        member.joined_epoch,
    )


def encode_group(
    *, epoch: int, target_epoch: int, fingerprint: str, empty_since_ms: int | None
) -> bytes:
    return msgspec.json.encode(
        _Group(
            epoch=epoch,
            target_epoch=target_epoch,
            fingerprint=fingerprint,
            empty_since_ms=empty_since_ms,
        )
    )


def encode_member(member: ConsumerMember) -> bytes:
    """Encode the identity and the subscription of a member."""
    return msgspec.json.encode(
        _Member(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topic_names=sorted(member.topic_names),
            topic_regex=member.topic_regex,
            assignor=member.assignor,
            client_id=member.client_id,
            client_host=member.client_host,
            joined_epoch=member.joined_epoch,
        )
    )


def encode_target(target: PartitionSet) -> bytes:
    return msgspec.json.encode(_Target(partitions=_listed(target)))


def encode_current(member: ConsumerMember) -> bytes:
    """Encode the epoch of a member, and the partitions that it holds."""
    return msgspec.json.encode(
        _Current(
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            state=member.state,
            assigned=_listed(member.assigned),
            revoking=_listed(member.revoking),
        )
    )


def decode_groups(entries: Iterable[tuple[bytes, bytes]]) -> dict[str, StoredConsumerGroup]:
    """Decode consumer groups from their entries."""
    groups: dict[str, dict[EntryKey, bytes]] = {}
    for key, value in entries:
        group_id, entry = _read_key(key)
        groups.setdefault(group_id, {})[entry] = value
    return {group_id: _read_group(group_id, values) for group_id, values in groups.items()}


def _read_key(key: bytes) -> tuple[str, EntryKey]:
    match decode_key(key):
        case ["consumer", str(group_id), str(kind), str(member_id)] if kind in set(
            ConsumerRecordKind
        ):
            return group_id, (ConsumerRecordKind(kind), member_id)
        case parts:
            raise CorruptData(f"groups: {parts!r} is not a key of a consumer group")


def _read_group(group_id: str, values: Mapping[EntryKey, bytes]) -> StoredConsumerGroup:
    member_ids = [member_id for kind, member_id in values if kind is ConsumerRecordKind.MEMBER]
    expected = {(kind, member_id) for kind in MEMBER_KINDS for member_id in member_ids}
    if odd := sorted((expected | {GROUP_ENTRY_KEY}) ^ values.keys()):
        raise CorruptData(f"group {group_id!r}: unexpected or missing entries: {odd}")
    group = _read(values[GROUP_ENTRY_KEY], _Group)
    members = [
        _member(
            member_id,
            _read(values[ConsumerRecordKind.MEMBER, member_id], _Member),
            _read(values[ConsumerRecordKind.CURRENT, member_id], _Current),
        )
        for member_id in member_ids
    ]
    _check_assigned_once(group_id, members)
    return StoredConsumerGroup(
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        fingerprint=group.fingerprint,
        empty_since_ms=group.empty_since_ms,
        members=sorted(members, key=lambda member: member.joined_epoch),
        targets={
            member_id: _partitions(
                _read(values[ConsumerRecordKind.TARGET, member_id], _Target).partitions
            )
            for member_id in member_ids
        },
    )


def _check_assigned_once(group_id: str, members: list[ConsumerMember]) -> None:
    held: dict[UUID, frozenset[int]] = {}
    for member in members:
        for topic, numbers in member.held.items():
            if twice := held.get(topic, frozenset()) & numbers:
                raise CorruptData(f"group {group_id!r}: {topic}-{min(twice)} has two holders")
            held[topic] = held.get(topic, frozenset()) | numbers


def _member(member_id: str, record: _Member, current: _Current) -> ConsumerMember:
    return ConsumerMember(
        member_id=member_id,
        instance_id=record.instance_id,
        rack_id=record.rack_id,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        topic_names=frozenset(record.topic_names),
        topic_regex=record.topic_regex,
        assignor=record.assignor,
        client_id=record.client_id,
        client_host=record.client_host,
        joined_epoch=record.joined_epoch,
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=_partitions(current.assigned),
        revoking=_partitions(current.revoking),
    )


def _read(value: bytes, kind: type[_R]) -> _R:
    """Decode an entry, its version first: one of another version may have another shape."""
    try:
        version = msgspec.json.decode(value, type=_Record).version
        if version != _VERSION:
            raise UnknownFormat(f"consumer group entry has version {version}, expected {_VERSION}")
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptData(f"invalid consumer group entry: {error}") from error


def _listed(partitions: PartitionSet) -> dict[str, list[int]]:
    return {topic.hex: sorted(numbers) for topic, numbers in partitions.items()}


def _partitions(listed: dict[str, list[int]]) -> PartitionSet:
    try:
        return partition_set((UUID(hex=topic), numbers) for topic, numbers in listed.items())
    except ValueError as error:
        raise CorruptData(f"consumer group entry has an invalid topic id: {error}") from error

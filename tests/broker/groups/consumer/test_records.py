"""The stored form of consumer groups: decodes to the same group, and damage is detected."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.member import ConsumerMember, MemberState
from millstream.broker.groups.consumer.records import (
    GROUP_ENTRY_KEY,
    ConsumerRecordKind,
    decode_groups,
    encode_current,
    encode_group,
    encode_member,
    encode_target,
    key_of,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import CorruptData, UnknownFormat

from .consumer_clients import Client, FakeTopics, subscription_fields

PARTITIONS = st.dictionaries(
    st.integers(0, 9).map(lambda number: UUID(int=number)),
    st.frozensets(st.integers(0, 5), min_size=1),
    max_size=3,
)
TEXT = st.text(max_size=5)
MEMBERS = st.builds(
    ConsumerMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    topic_names=st.frozensets(TEXT, max_size=3),
    topic_regex=TEXT,
    assignor=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    joined_epoch=st.integers(1, 2**31 - 1),
    epoch=st.integers(-2, 2**31 - 1),
    previous_epoch=st.integers(0, 2**31 - 1),
    state=st.sampled_from(MemberState),
    assigned=PARTITIONS,
    revoking=PARTITIONS,
)
MEMBER = ConsumerMember(member_id="m", joined_epoch=1, assigned={UUID(int=1): frozenset({0})})


def entries_of(group_id: str, member: ConsumerMember) -> dict[bytes, bytes]:
    def key(kind: ConsumerRecordKind) -> bytes:
        return key_of(group_id, (kind, member.member_id))

    return {
        key_of(group_id, GROUP_ENTRY_KEY): encode_group(
            epoch=7, target_epoch=6, fingerprint="f", empty_since_ms=None
        ),
        key(ConsumerRecordKind.MEMBER): encode_member(member),
        key(ConsumerRecordKind.TARGET): encode_target(member.revoking),
        key(ConsumerRecordKind.CURRENT): encode_current(member),
    }


@given(group_id=TEXT, member=MEMBERS)
def test_what_was_written_is_read(group_id: str, member: ConsumerMember) -> None:
    saved = decode_groups(entries_of(group_id, member).items())[group_id]
    assert saved.members == [member]
    assert saved.targets == {member.member_id: member.revoking}
    assert (saved.epoch, saved.target_epoch, saved.fingerprint) == (7, 6, "f")


def test_groups_whose_names_look_alike_are_told_apart() -> None:
    names = ["g", 'g","group', "g\x00", "g\\", "ĝ"]
    entries = {key: value for name in names for key, value in entries_of(name, MEMBER).items()}
    assert set(decode_groups(entries.items())) == set(names)


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_entry_is_reported(lost: int) -> None:
    entries = entries_of("g", MEMBER)
    del entries[list(entries)[lost]]
    with pytest.raises(CorruptData, match="unexpected or missing entries"):
        decode_groups(entries.items())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (GROUP_ENTRY_KEY, b"{}"),
        (GROUP_ENTRY_KEY, b"nothing"),
        ((ConsumerRecordKind.TARGET, "m"), b'{"version":1,"partitions":{"no id":[1]}}'),
        ((ConsumerRecordKind.TARGET, "m"), b'{"version":1,"partitions":[]}'),
        ((ConsumerRecordKind.CURRENT, "m"), b'{"version":1,"epoch":"one"}'),
    ],
)
def test_a_damaged_entry_is_reported(place: tuple[ConsumerRecordKind, str], value: bytes) -> None:
    entries = entries_of("g", MEMBER)
    entries[key_of("g", place)] = value
    with pytest.raises(CorruptData):
        decode_groups(entries.items())


@pytest.mark.parametrize(
    "key", [b'["consumer","g","other","m"]', b'["consumer","g"]', b'["consumer",1,"group",""]']
)
def test_a_key_that_is_none_is_reported(key: bytes) -> None:
    with pytest.raises(CorruptData, match="not a key of a consumer group"):
        decode_groups([(key, b"{}")])


def test_an_entry_of_a_later_version_is_refused() -> None:
    entries = entries_of("g", MEMBER)
    key = key_of("g", GROUP_ENTRY_KEY)
    entries[key] = msgspec.json.encode({**msgspec.json.decode(entries[key]), "version": 2})
    with pytest.raises(UnknownFormat, match="version 2, expected 1"):
        decode_groups(entries.items())


def test_members_that_hold_the_same_partition_are_damage() -> None:
    first, second = MEMBER, replace(MEMBER, member_id="n", joined_epoch=2)
    entries = {**entries_of("g", first), **entries_of("g", second)}
    with pytest.raises(CorruptData, match="has two holders"):
        decode_groups(entries.items())


def test_a_group_is_forgotten_with_all_its_entries() -> None:
    group = ConsumerGroup("g", BrokerConfig())
    topics = FakeTopics(apple=1)
    client = Client("m", subscription=subscription_fields(topic_names=frozenset({"apple"})))
    group.heartbeat(client.beat(), topics.catalog, 0.0)
    written = group.take_changes(0)
    group.heartbeat(client.leave_request(), topics.catalog, 0.0)
    group.take_changes(0)
    assert {key for key, _ in written} <= {key for key, _ in group.tombstones()}
    assert all(value is None for _, value in group.tombstones())


def test_an_empty_group_remembers_since_when() -> None:
    group = ConsumerGroup("g", BrokerConfig())
    topics = FakeTopics(apple=1)
    client = Client("m")
    group.heartbeat(client.beat(), topics.catalog, 0.0)
    entries = dict(group.take_changes(1000))
    assert group.empty_since_ms is None
    group.heartbeat(client.leave_request(), topics.catalog, 0.0)
    entries.update(group.take_changes(2000))
    live = {key: value for key, value in entries.items() if value is not None}
    saved = decode_groups(live.items())["g"]
    again = ConsumerGroup.restore("g", saved, BrokerConfig(), 0.0)
    assert (group.empty_since_ms, again.empty_since_ms) == (2000, 2000)
    assert again.is_empty
    assert not again.is_idle
    again.heartbeat(Client("n").beat(), topics.catalog, 0.0)
    assert again.empty_since_ms is None

"""Committed offsets of groups, as clients see them, in every version."""

from __future__ import annotations

import itertools
import struct
import uuid

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.offsets import (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
)
from millstream.servers.kafka.handlers.offsets import subscribed_topics
from millstream.testing.broker import running_broker
from tests.servers.kafka.client import RawClient
from tests.servers.kafka.conftest import make_topic

from .test_groups import join, join_request, stable, versions

_numbers = itertools.count()
NO_ID = uuid.UUID(int=0)


@pytest.fixture
def group():
    return f"reader-{next(_numbers)}"


def id_of(client, topic):
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
    )
    return client.call(request, 12).topics[0].topic_id


def commit(client, group, topic, version=OFFSET_COMMIT.last, *, offsets, **changes):
    """Commit `offsets` by partition; return the codes by partition."""
    parts = tuple(
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=changes.get("metadata", "note"),
        )
        for index, offset in offsets.items()
    )
    changes.pop("metadata", None)
    topic_id = changes.pop("topic_id", None)
    if version >= 10:
        wanted = OffsetCommitRequestTopic(
            topic_id=topic_id or id_of(client, topic), partitions=parts
        )
    else:
        wanted = OffsetCommitRequestTopic(name=topic, partitions=parts)
    request = OffsetCommitRequest(
        **{"group_id": group, "member_id": "", "topics": (wanted,), **changes}
    )
    (answer,) = client.call(request, version).topics
    assert (answer.name, answer.topic_id) == (wanted.name, wanted.topic_id)
    return {part.partition_index: part.error_code for part in answer.partitions}


def fetch(client, group, topic, version=OFFSET_FETCH.last, *, partitions=(0, 1), **changes):
    """Return the committed offsets by partition."""
    if version >= 8:
        by = {"topic_id": id_of(client, topic)} if version >= 10 else {"name": topic}
        wanted = OffsetFetchRequestTopics(partition_indexes=partitions, **by)
        asked = OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
        (found,) = client.call(OffsetFetchRequest(groups=(asked,), **changes), version).groups
        assert (found.group_id, found.error_code) == (group, 0)
    else:
        wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)
        found = client.call(
            OffsetFetchRequest(group_id=group, topics=(wanted,), **changes), version
        )
        assert found.error_code == 0
    (answer,) = found.topics
    return {part.partition_index: part for part in answer.partitions}


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
def test_what_is_committed_is_fetched(client, topic, group, version):
    assert commit(client, group, topic, version, offsets={0: 5, 1: 6}) == {0: 0, 1: 0}
    found = fetch(client, group, topic)
    assert [part.committed_offset for part in found.values()] == [5, 6]
    assert [part.metadata for part in found.values()] == ["note", "note"]
    epoch = 3 if version >= 6 else -1
    assert [part.committed_leader_epoch for part in found.values()] == [epoch, epoch]


@pytest.mark.parametrize("version", versions(OFFSET_FETCH))
def test_every_version_fetches_what_is_committed_and_what_is_not(client, topic, group, version):
    commit(client, group, topic, offsets={0: 5})
    found = fetch(client, group, topic, version)
    assert [part.committed_offset for part in found.values()] == [5, -1]
    assert [part.metadata for part in found.values()] == ["note", ""]
    assert [part.error_code for part in found.values()] == [0, 0]
    if version >= 5:
        assert [part.committed_leader_epoch for part in found.values()] == [3, -1]


@pytest.mark.parametrize("version", versions(OFFSET_FETCH))
def test_of_an_unknown_group_nothing_is_committed_and_that_is_no_error(client, topic, version):
    found = fetch(client, "no such group", topic, version)
    assert [(p.committed_offset, p.error_code) for p in found.values()] == [(-1, 0), (-1, 0)]


@pytest.mark.parametrize("version", range(2, OFFSET_FETCH.last + 1))
def test_all_that_a_group_has_committed_can_be_fetched(client, topic, group, version):
    other = make_topic(client)
    commit(client, group, topic, offsets={0: 5, 1: 6})
    commit(client, group, other, offsets={0: 7})
    if version >= 8:
        asked = OffsetFetchRequestGroup(group_id=group, topics=None)
        found = client.call(OffsetFetchRequest(groups=(asked,)), version).groups[0].topics
    else:
        found = client.call(OffsetFetchRequest(group_id=group, topics=None), version).topics
    names = {id_of(client, name): name for name in (topic, other)}
    offsets = {
        names[t.topic_id] if version >= 10 else t.name: [p.committed_offset for p in t.partitions]
        for t in found
    }
    assert offsets == {topic: [5, 6], other: [7]}


def test_several_groups_are_fetched_at_once(client, topic):
    commit(client, "one of two", topic, offsets={0: 5})
    commit(client, "two of two", topic, offsets={0: 6})
    wanted = (OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)
    asked = tuple(
        OffsetFetchRequestGroup(group_id=group, topics=wanted)
        for group in ("one of two", "two of two", "none")
    )
    found = client.call(OffsetFetchRequest(groups=asked), 9).groups
    offsets = {g.group_id: g.topics[0].partitions[0].committed_offset for g in found}
    assert offsets == {"one of two": 5, "two of two": 6, "none": -1}


def test_nothing_asked_for_is_nothing_found(client, group):
    asked = OffsetFetchRequestGroup(group_id=group, topics=())
    assert client.call(OffsetFetchRequest(groups=(asked,))).groups[0].topics == ()


# What is refused.


@pytest.mark.parametrize("version", [2, 9])
def test_a_topic_or_partition_that_is_not_there_is_refused_by_itself(client, topic, group, version):
    codes = commit(client, group, topic, version, offsets={0: 5, 2: 6, -1: 7})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {0: 0, 2: unknown, -1: unknown}
    assert commit(client, group, "no-such-topic", version, offsets={0: 5}) == {0: unknown}
    assert fetch(client, group, topic)[0].committed_offset == 5


def test_a_topic_id_that_is_not_there_is_refused(client, group):
    codes = commit(client, group, "", offsets={0: 5}, topic_id=uuid.uuid4())
    assert codes == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    assert commit(client, group, "", offsets={0: 5}, topic_id=NO_ID) != {0: 0}
    asked = OffsetFetchRequestGroup(
        group_id=group,
        topics=(OffsetFetchRequestTopics(topic_id=uuid.uuid4(), partition_indexes=(0, 1)),),
    )
    (found,) = client.call(OffsetFetchRequest(groups=(asked,)), 10).groups
    codes = [part.error_code for part in found.topics[0].partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_a_note_that_is_too_long_is_refused_by_itself(client, topic, group):
    long = commit(client, group, topic, offsets={0: 5}, metadata="x" * 4097)
    assert long == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert commit(client, group, topic, offsets={0: 5}, metadata="x" * 4096) == {0: 0}
    assert commit(client, group, topic, offsets={1: 5}, metadata=None) == {1: 0}
    assert fetch(client, group, topic)[1].metadata == ""


def test_only_members_commit_for_a_group_that_has_members(client, topic, group):
    joined = stable(client, group)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert commit(client, group, topic, offsets={0: 5}, **member) == {0: 0}
    for changes, code in (
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({**member, "generation_id_or_member_epoch": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({**member, "generation_id_or_member_epoch": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({**member, "member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({**member, "group_instance_id": "one"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert commit(client, group, topic, offsets={0: 9}, **changes) == {0: code}
    again = join(client, group, member_id=joined.member_id)
    assert again.generation_id == 2
    code = {0: ErrorCode.ILLEGAL_GENERATION}
    assert commit(client, group, topic, offsets={0: 9}, **member) == code
    member["generation_id_or_member_epoch"] = 2
    code = {0: ErrorCode.REBALANCE_IN_PROGRESS}
    assert commit(client, group, topic, offsets={0: 9}, **member) == code
    assert fetch(client, group, topic)[0].committed_offset == 5


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
def test_a_member_of_a_group_that_is_not_there_is_told_so(client, topic, group, version):
    codes = commit(
        client,
        group,
        topic,
        version,
        offsets={0: 5},
        generation_id_or_member_epoch=1,
        member_id="m",
    )
    is_said = version >= 9
    assert codes == {0: ErrorCode.GROUP_ID_NOT_FOUND if is_said else ErrorCode.ILLEGAL_GENERATION}


@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
def test_a_group_whose_name_is_too_long_is_refused_where_the_version_can_say_so(
    client, topic, version
):
    long = "x" * 1025
    if version >= 8:
        asked = OffsetFetchRequestGroup(group_id=long, topics=None)
        (found,) = client.call(OffsetFetchRequest(groups=(asked,)), version).groups
        assert found.error_code == ErrorCode.INVALID_GROUP_ID
        return
    wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=(0,))
    found = client.call(OffsetFetchRequest(group_id=long, topics=(wanted,)), version)
    if version >= 2:
        assert found.error_code == ErrorCode.INVALID_GROUP_ID
    else:
        assert found.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID


# Topics that go.


def test_the_offsets_of_a_deleted_topic_do_not_pass_to_its_successor(client, group):
    topic = make_topic(client)
    commit(client, group, topic, offsets={0: 5})
    gone = DeleteTopicsRequestTopic(name=topic)
    client.call(DeleteTopicsRequest(topics=(gone,), timeout_ms=10_000))
    wanted = CreateTopicsRequestTopic(name=topic, num_partitions=1, replication_factor=1)
    made = client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000))
    assert made.topics[0].error_code == 0
    for version in (7, 9, 10):
        found = fetch(client, group, topic, version, partitions=(0,))
        assert found[0].committed_offset == -1


# Deleting.


def delete(client, group, topic, *partitions):
    parts = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in partitions)
    request = OffsetDeleteRequest(
        group_id=group, topics=(OffsetDeleteRequestTopic(name=topic, partitions=parts),)
    )
    answer = client.call(request)
    if answer.error_code:
        return answer.error_code
    return [part.error_code for part in answer.topics[0].partitions]


def subscription(*topics, version=1):
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1)


def test_offsets_of_a_group_without_members_are_deleted(client, topic, group):
    commit(client, group, topic, offsets={0: 5, 1: 6})
    codes = delete(client, group, topic, 0, 9)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    found = fetch(client, group, topic)
    assert [part.committed_offset for part in found.values()] == [-1, 6]
    assert delete(client, "no such group", topic, 0) == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(client, "", topic, 0) == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("metadata", "is_refused"),
    [
        (lambda topic: subscription("other", topic), True),
        (lambda topic: subscription("other"), False),
        (lambda topic: subscription(), False),
        (lambda topic: b"nonsense", True),
        (lambda topic: b"", True),
    ],
)
def test_offsets_that_a_member_may_need_are_not_deleted(client, topic, group, metadata, is_refused):
    protocol = join_request(group).protocols[0]
    protocols = (type(protocol)(name="range", metadata=metadata(topic)),)
    joined = stable(client, group, protocols=protocols)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    commit(client, group, topic, offsets={0: 5}, **member)
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_refused else 0
    assert delete(client, group, topic, 0) == [code]


def test_members_that_are_no_consumers_keep_all_their_offsets(client, topic, group):
    stable(client, group, protocol_type="connect")
    assert delete(client, group, topic, 0) == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        (subscription("a", "b"), ["a", "b"]),
        (subscription("a", version=9), ["a"]),
        (subscription(), []),
        (b"", None),
        (subscription("abc")[:8], None),
        (struct.pack(">hi", 1, 2**31 - 1), None),
        (struct.pack(">hi", 1, -5), None),
        (struct.pack(">hih", 1, 1, -1), None),
        (struct.pack(">hih", 1, 1, 2) + b"\xff\xfe", None),
    ],
)
def test_a_subscription_names_topics_or_is_not_understood(data, topics):
    assert subscribed_topics(data) == topics


def test_what_was_committed_is_there_when_the_node_starts_again(tmp_path):
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        topic = make_topic(client, partitions=2)
        commit(client, "g", topic, offsets={0: 5})
        commit(client, "g", topic, offsets={1: 6}, retention_time_ms=1, version=4)
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        found = fetch(client, "g", topic)
        assert [part.committed_offset for part in found.values()] == [5, 6]

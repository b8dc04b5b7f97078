"""Classic groups, as clients see them, in every version."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from millstream.servers.kafka.handlers.groups import OPERATIONS_NOT_REQUESTED
from millstream.testing.broker import running_broker
from tests.servers.kafka.client import RawClient

_numbers = itertools.count()

RANGE = (JoinGroupRequestProtocol(name="range", metadata=b"topics"),)

GROUP_BITS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe configs, alter configs: all operations on a group."""


def versions(spoken):
    return range(spoken.first, spoken.last + 1)


@pytest.fixture
def group():
    return f"group-{next(_numbers)}"


def join_request(group, member_id="", **changes):
    fields = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": RANGE,
    }
    return JoinGroupRequest(**{**fields, **changes})


def join(client, group, version=JOIN_GROUP.last, **changes):
    """Join as a client of that version does; return the response."""
    answer = client.call(join_request(group, **changes), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = client.call(join_request(group, answer.member_id, **changes), version)
    return answer


def sync(client, group, joined, version=SYNC_GROUP.last, **shares):
    assignments = tuple(
        SyncGroupRequestAssignment(member_id=member_id, assignment=share)
        for member_id, share in shares.items()
    )
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=assignments,
    )
    return client.call(request, version)


def heartbeat(client, group, joined, version=HEARTBEAT.last, **changes):
    fields = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
    }
    return client.call(HeartbeatRequest(**{**fields, **changes}), version).error_code


def stable(client, group, **changes):
    """A group of one member with an assignment."""
    joined = join(client, group, **changes)
    assert joined.error_code == 0
    assert sync(client, group, joined, **{joined.member_id: b"share"}).error_code == 0
    return joined


@contextmanager
def another(broker):
    with RawClient(broker.bootstrap, client_id="other") as client:
        yield client


@pytest.mark.parametrize("version", versions(JOIN_GROUP))
def test_a_member_joins_alone_and_leads(client, group, version):
    joined = join(client, group, version)
    assert joined.error_code == 0
    assert (joined.generation_id, joined.leader) == (1, joined.member_id)
    assert joined.member_id.startswith("raw-")
    assert joined.protocol_name == "range"
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert not joined.skip_assignment
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"topics")]


@pytest.mark.parametrize("version", versions(JOIN_GROUP))
def test_a_refused_member_is_told_why_in_every_version(client, group, version):
    answer = client.call(join_request(group, session_timeout_ms=1), version)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert (answer.generation_id, answer.member_id, answer.leader) == (-1, "", "")
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_a_join_that_cannot_be_met_is_refused(client, group, changes, code):
    assert client.call(join_request(**{"group": group, **changes}), 9).error_code == code


@pytest.mark.parametrize("version", versions(SYNC_GROUP))
def test_a_member_gets_its_share(client, group, version):
    joined = join(client, group)
    synced = sync(client, group, joined, version, **{joined.member_id: b"share"})
    assert (synced.error_code, synced.assignment) == (0, b"share")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_two_members_share_the_work(broker, client, group):
    with another(broker) as other:
        client.send(join_request(group), 3)
        other.send(join_request(group), 3)
        first, second = client.receive(), other.receive()
        leader, follower = (first, second) if first.members else (second, first)
        assert {m.member_id for m in leader.members} == {first.member_id, second.member_id}
        by_id = {first.member_id: client, second.member_id: other}
        waiting = by_id[follower.member_id]
        waiting.send(
            SyncGroupRequest(
                group_id=group,
                generation_id=1,
                member_id=follower.member_id,
                assignments=(),
            )
        )
        shares = {leader.member_id: b"one", follower.member_id: b"two"}
        synced = sync(by_id[leader.member_id], group, leader, **shares)
        assert synced.assignment == b"one"
        assert waiting.receive().assignment == b"two"
        assert heartbeat(client, group, first) == 0
        assert heartbeat(other, group, second) == 0


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_a_heartbeat_is_taken_only_of_the_present_generation(client, group, version):
    joined = stable(client, group)
    assert heartbeat(client, group, joined, version) == 0
    found = heartbeat(client, group, joined, version, generation_id=7)
    assert found == ErrorCode.ILLEGAL_GENERATION
    found = heartbeat(client, group, joined, version, member_id="stranger")
    assert found == ErrorCode.UNKNOWN_MEMBER_ID
    found = heartbeat(client, "no such group", joined, version)
    assert found == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat(client, "", joined, version) == ErrorCode.INVALID_GROUP_ID


def test_members_are_told_to_join_again_when_one_comes(broker, client, group):
    joined = stable(client, group)
    with another(broker) as other:
        other.send(join_request(group), 3)
        codes = iter(lambda: heartbeat(client, group, joined), ErrorCode.REBALANCE_IN_PROGRESS)
        assert set(codes) <= {0}
        again = client.call(join_request(group, joined.member_id), 9)
        assert (again.error_code, again.generation_id) == (0, 2)
        assert other.receive().generation_id == 2


@pytest.mark.parametrize("version", versions(LEAVE_GROUP))
def test_a_member_leaves(client, group, version):
    joined = stable(client, group)
    if version >= 3:
        members = (
            LeaveGroupRequestMember(member_id="stranger"),
            LeaveGroupRequestMember(member_id=joined.member_id),
        )
        answer = client.call(LeaveGroupRequest(group_id=group, members=members), version)
        assert [m.error_code for m in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0]
        assert [m.member_id for m in answer.members] == ["stranger", joined.member_id]
    else:
        request = LeaveGroupRequest(group_id=group, member_id="stranger")
        assert client.call(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        request = LeaveGroupRequest(group_id=group, member_id=joined.member_id)
        answer = client.call(request, version)
    assert answer.error_code == 0
    assert heartbeat(client, group, joined) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_leaves_a_group_that_is_not_there_is_unknown(client):
    request = LeaveGroupRequest(
        group_id="no such group", members=(LeaveGroupRequestMember(member_id="m"),)
    )
    assert client.call(request).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_to_its_share_and_fences_its_former_self(broker, client, group):
    joined = stable(client, group, group_instance_id="one")
    with another(broker) as again:
        back = join(again, group, group_instance_id="one")
        assert (back.error_code, back.generation_id) == (0, 1)
        assert back.skip_assignment
        assert back.member_id != joined.member_id
        assert sync(again, group, back).assignment == b"share"
        found = heartbeat(client, group, joined, group_instance_id="one")
        assert found == ErrorCode.FENCED_INSTANCE_ID
        left = client.call(
            LeaveGroupRequest(
                group_id=group,
                members=(LeaveGroupRequestMember(member_id="", group_instance_id="one"),),
            )
        )
        assert left.members[0].error_code == 0
        assert heartbeat(again, group, back) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(DESCRIBE_GROUPS))
def test_a_group_is_described(client, group, version):
    joined = stable(client, group, group_instance_id="one")
    request = DescribeGroupsRequest(
        groups=(group, "no such group"), include_authorized_operations=version >= 3
    )
    found, missing = client.call(request, version).groups
    assert (found.error_code, found.group_id, found.group_state) == (0, group, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id) == (joined.member_id, "raw")
    assert member.client_host == "/127.0.0.1"
    assert (member.member_metadata, member.member_assignment) == (b"topics", b"share")
    assert member.group_instance_id == ("one" if version >= 4 else None)
    assert found.authorized_operations == (GROUP_BITS if version >= 3 else OPERATIONS_NOT_REQUESTED)
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert (missing.error_message is None) == (version < 6)


@pytest.mark.parametrize("version", versions(LIST_GROUPS))
def test_groups_are_listed(client, group, version):
    stable(client, group)
    listed = {g.group_id: g for g in client.call(ListGroupsRequest(), version).groups}
    assert listed[group].protocol_type == "consumer"
    assert listed[group].group_state == ("Stable" if version >= 4 else "")
    assert listed[group].group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("filters", "is_there"),
    [
        ({"states_filter": ("stable",)}, True),
        ({"states_filter": ("Empty", "STABLE")}, True),
        ({"states_filter": ("Empty",)}, False),
        ({"types_filter": ("Classic",)}, True),
        ({"types_filter": ("consumer",)}, False),
        ({"types_filter": ("unheard of",)}, False),
        ({"states_filter": ("Stable",), "types_filter": ("consumer",)}, False),
    ],
)
def test_groups_are_listed_by_state_and_kind(client, group, filters, is_there):
    stable(client, group)
    listed = [g.group_id for g in client.call(ListGroupsRequest(**filters)).groups]
    assert (group in listed) is is_there


@pytest.mark.parametrize("version", versions(DELETE_GROUPS))
def test_a_group_is_deleted_when_it_has_no_members(client, group, version):
    joined = stable(client, group)
    request = DeleteGroupsRequest(groups_names=(group, "no such group"))
    codes = [result.error_code for result in client.call(request, version).results]
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    leaving = (LeaveGroupRequestMember(member_id=joined.member_id),)
    client.call(LeaveGroupRequest(group_id=group, members=leaving))
    assert client.call(request, version).results[0].error_code == 0
    codes = [result.error_code for result in client.call(request, version).results]
    assert codes == [ErrorCode.GROUP_ID_NOT_FOUND] * 2


def test_members_stay_in_their_generation_when_the_node_starts_again(tmp_path):
    with ExitStack() as first_life:
        broker = first_life.enter_context(running_broker(tmp_path))
        client = first_life.enter_context(RawClient(broker.bootstrap))
        joined = stable(client, "g", session_timeout_ms=60_000)
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        assert heartbeat(client, "g", joined) == 0
        assert sync(client, "g", joined).assignment == b"share"

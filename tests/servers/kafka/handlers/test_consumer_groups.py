"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, as clients see them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millstream.config.schema import KafkaConfig
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from millstream.servers.kafka.handlers.consumer_groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
)
from millstream.servers.kafka.request_context import RequestContext
from tests.broker.groups.consumer.consumer_node import ConsumerNode, on_a_node


class GroupClient:
    """Calls the handlers of a node, with every request and response encoded."""

    def __init__(self, node: ConsumerNode) -> None:
        self.broker: Any = SimpleNamespace(
            groups=SimpleNamespace(of=lambda _: node.groups), topics=node.topics
        )
        self._apple = node.topics.find("apple").id

    async def ask(self, handler: Callable[..., Any], request: Any, version: int) -> Any:
        context = RequestContext(
            broker=self.broker,
            config=KafkaConfig(),
            fetch_sessions=None,  # type: ignore[arg-type]
            version=version,
            client_id="reader",
            host="10.0.0.7",
        )
        answer = handler(
            decode(type(request), memoryview(encode(request, version)), version), context
        )
        if inspect.isawaitable(answer):
            answer = await answer
        return decode(type(answer), memoryview(encode(answer, version)), version)

    async def beat(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(**{"group_id": "g", "member_id": "a", **fields})
        return await self.ask(consumer_group_heartbeat, request, version)

    async def join(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        said = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ("apple",),
            "topic_partitions": (),
        }
        return await self.beat(version, **{**said, **fields})

    async def describe(self, *group_ids: str, version: int = 1, **fields: Any) -> Any:
        request = ConsumerGroupDescribeRequest(
            group_ids=group_ids, **{"include_authorized_operations": False, **fields}
        )
        return (await self.ask(consumer_group_describe, request, version)).groups

    def owned(self, *numbers: int) -> tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...]:
        return (
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=self._apple, partitions=numbers),
        )


def partitions(answer: ConsumerGroupHeartbeatResponse) -> list[tuple[int, ...]]:
    assert answer.assignment is not None
    return [part.partitions for part in answer.assignment.topic_partitions]


@on_a_node
async def test_a_member_joins_and_is_given_partitions(node: ConsumerNode) -> None:
    answer = await GroupClient(node).join()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 1)
    assert answer.heartbeat_interval_ms == 5000
    assert partitions(answer) == [(0, 1, 2, 3)]


@on_a_node
async def test_null_and_minus_one_stand_for_what_was_said_before(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join()
    answer = await client.beat(member_epoch=1)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 1, None)
    answer = await client.beat(
        member_epoch=1,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("apple",),
        topic_partitions=client.owned(0),
    )
    assert partitions(answer) == [(0, 1, 2, 3)]


@on_a_node
async def test_a_partition_changes_hands_when_it_was_let_go(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join()
    assert partitions(await client.join(member_id="b")) == []
    assert partitions(await client.beat(member_epoch=1)) == [(0, 1)]
    answer = await client.beat(member_epoch=1, topic_partitions=client.owned(0, 1))
    assert (answer.member_epoch, answer.assignment) == (2, None)
    assert partitions(await client.beat(member_id="b", member_epoch=2)) == [(2, 3)]


@on_a_node
async def test_clients_of_version_0_are_given_an_id_and_later_ones_bring_their_own(
    node: ConsumerNode,
) -> None:
    client = GroupClient(node)
    answer = await client.join(version=0, member_id="")
    assert UUID(answer.member_id)
    answer = await client.join(version=1, member_id="")
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message == "member id must not be empty"


@on_a_node
async def test_a_pattern_is_a_subscription_from_version_1_on(node: ConsumerNode) -> None:
    client = GroupClient(node)
    wants = {"subscribed_topic_names": None, "subscribed_topic_regex": "ap+le"}
    assert partitions(await client.join(**wants)) == [(0, 1, 2, 3)]
    answer = await client.join(member_id="b", subscribed_topic_regex="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing )" in (answer.error_message or "")


@on_a_node
async def test_each_refusal_has_its_code(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join(instance_id="i")
    for refused, code in [
        (client.beat(member_epoch=5), ErrorCode.FENCED_MEMBER_EPOCH),
        (client.beat(member_id="b", member_epoch=1), ErrorCode.UNKNOWN_MEMBER_ID),
        (client.join(member_id="b", instance_id="i"), ErrorCode.UNRELEASED_INSTANCE_ID),
        (
            client.beat(member_id="b", member_epoch=1, instance_id="i"),
            ErrorCode.FENCED_INSTANCE_ID,
        ),
        (client.join(member_id="b", server_assignor="mine"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (client.join(member_id="b", rebalance_timeout_ms=-1), ErrorCode.INVALID_REQUEST),
        (client.join(group_id=""), ErrorCode.INVALID_GROUP_ID),
        (client.beat(member_epoch=-3), ErrorCode.INVALID_REQUEST),
    ]:
        answer = await refused
        assert answer.error_code == code
        assert answer.error_message
        assert answer.assignment is None


@pytest.mark.parametrize(("epoch", "left"), [(-1, 0), (-2, 1)])
def test_a_member_leaves_for_good_or_for_a_while(epoch: int, left: int) -> None:
    @on_a_node
    async def leave(node: ConsumerNode) -> None:
        client = GroupClient(node)
        await client.join(instance_id="i")
        answer = await client.beat(member_epoch=epoch, instance_id="i")
        assert (answer.error_code, answer.member_epoch) == (0, epoch)
        assert len(node.groups.consumers.describe("g").members) == left

    leave()


@on_a_node
async def test_a_group_is_described(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join(rack_id="r", instance_id="i", subscribed_topic_regex="x.*")
    await client.join(member_id="b", server_assignor="range")
    await client.beat(member_epoch=1)
    (group,) = await client.describe("g")
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Reconciling")
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (2, 2, "range")
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id) == ("a", "i", "r")
    assert (first.client_id, first.client_host) == ("reader", "/10.0.0.7")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("apple",), "x.*")
    assert (second.subscribed_topic_regex, second.member_epoch, second.member_type) == (None, 2, 1)
    apple = node.topics.find("apple").id
    half = ConsumerGroupDescribeResponseTopicPartitions(
        topic_id=apple, topic_name="apple", partitions=(0, 1)
    )
    assert first.assignment == ConsumerGroupDescribeResponseAssignment(topic_partitions=(half,))
    assert first.target_assignment == first.assignment
    assert second.assignment.topic_partitions == ()
    assert second.target_assignment.topic_partitions[0].partitions == (2, 3)


@on_a_node
async def test_partitions_of_topics_that_are_gone_are_not_described(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join()
    node.topics.delete("apple")
    (group,) = await client.describe("g", version=0)
    assert group.members[0].assignment.topic_partitions == ()


@on_a_node
async def test_a_group_that_is_not_there_or_of_the_other_kind_is_not_found(
    node: ConsumerNode,
) -> None:
    await node.stable("classic")
    groups = await GroupClient(node).describe("none", "classic")
    assert [group.group_id for group in groups] == ["none", "classic"]
    assert {group.error_code for group in groups} == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert all(group.error_message for group in groups)


@on_a_node
async def test_operations_are_named_when_asked_for(node: ConsumerNode) -> None:
    client = GroupClient(node)
    await client.join()
    (group,) = await client.describe("g")
    assert group.authorized_operations == -(2**31)
    (group,) = await client.describe("g", include_authorized_operations=True)
    assert group.authorized_operations > 0

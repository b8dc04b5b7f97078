"""Metadata, as clients see it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from millstream.broker.topics.topic import NO_ID
from millstream.config.schema import BrokerConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.metadata import (
    METADATA,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    TopicPartitionsCursor,
)
from millstream.servers.kafka.handlers.metadata import describe_topic_partitions, metadata
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import CLUSTER_ID, NODE_ID, HandlerNode, open_handler_node

UNASKED = -(2**31)
EACH_VERSION = pytest.mark.parametrize("version", range(METADATA.first, METADATA.last + 1))


async def ask(
    node: HandlerNode,
    *names: str | None,
    version: int = 13,
    is_creating: bool = True,
    ids: tuple[uuid.UUID, ...] = (),
    **rest: Any,
) -> Any:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    topics += tuple(MetadataRequestTopic(topic_id=topic_id) for topic_id in ids)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=is_creating, **rest)
    return await node.ask(metadata, request, version=version)


def codes(response: Any) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@EACH_VERSION
def test_a_topic_is_described(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            created = await node.topics.create("a", partitions=2)
            await created.partitions[1].open()
            response = await ask(node, "a", version=version)
            (broker,) = response.brokers
            assert (broker.node_id, broker.host, broker.port) == (NODE_ID, "there", 9092)
            assert broker.rack is None
            (topic,) = response.topics
            assert (topic.name, topic.error_code, topic.is_internal) == ("a", 0, False)
            for index, partition in enumerate(topic.partitions):
                assert (partition.partition_index, partition.error_code) == (index, 0)
                assert partition.leader_id == NODE_ID
                assert partition.replica_nodes == partition.isr_nodes == (NODE_ID,)
                assert partition.offline_replicas == ()
            if version >= 1:
                assert response.controller_id == NODE_ID
            if version >= 2:
                assert response.cluster_id == CLUSTER_ID
            if version >= 7:
                epochs = [partition.leader_epoch for partition in topic.partitions]
                assert epochs == [-1, 0]
            if version >= 8:
                assert topic.topic_authorized_operations == UNASKED
            if version >= 10:
                assert topic.topic_id == created.id
            assert response.cluster_authorized_operations == UNASKED
            assert response.error_code == 0

    run()


@EACH_VERSION
def test_all_topics_and_none(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            for name in ("b", "a"):
                await node.topics.create(name)
            nothing = await node.ask(metadata, MetadataRequest(topics=()), version=version)
            assert list(codes(nothing)) == (["a", "b"] if version == 0 else [])
            if version >= 1:
                everything = await node.ask(metadata, MetadataRequest(topics=None), version=version)
                assert list(codes(everything)) == ["a", "b"]

    run()


@EACH_VERSION
def test_a_topic_that_is_asked_for_is_created(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node(BrokerConfig(node_id=NODE_ID, num_partitions=3)) as node:
            response = await ask(node, "new", version=version)
            assert codes(response) == {"new": 0}
            assert len(response.topics[0].partitions) == 3
            assert node.topics.get("new").partition_count == 3

    run()


@pytest.mark.parametrize("version", range(4, 14))
def test_a_client_that_wants_nothing_created_creates_nothing(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            response = await ask(node, "new", version=version, is_creating=False)
            assert codes(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert response.topics[0].partitions == ()
            assert node.topics.all() == []

    run()


@in_loop
async def test_a_node_that_creates_nothing_creates_nothing():
    async with open_handler_node(BrokerConfig(node_id=NODE_ID, auto_create_topics=False)) as node:
        assert codes(await ask(node, "new")) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert node.topics.all() == []


@EACH_VERSION
@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 250])
def test_a_name_that_cannot_be_is_said_to_be_so(version, name):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await node.topics.create("good")
            response = await ask(node, name, "good", version=version)
            assert codes(response) == {name: ErrorCode.INVALID_TOPIC_EXCEPTION, "good": 0}

    run()


@in_loop
async def test_a_name_that_cannot_be_is_said_to_be_so_even_if_nothing_is_created():
    async with open_handler_node() as node:
        response = await ask(node, "a/b", is_creating=False)
        assert codes(response) == {"a/b": ErrorCode.INVALID_TOPIC_EXCEPTION}


@in_loop
async def test_what_cannot_be_created_is_said_why():
    config = BrokerConfig(node_id=NODE_ID, partitions_max=1)
    async with open_handler_node(config) as node:
        assert codes(await ask(node, "a.b", "a_b", "c")) == {
            "a.b": 0,
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "c": ErrorCode.INVALID_PARTITIONS,
        }


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            topic = await node.topics.create("a")
            unknown = uuid.uuid4()
            response = await ask(node, version=version, ids=(topic.id, unknown))
            found, missing = response.topics
            assert (found.name, found.topic_id, found.error_code) == ("a", topic.id, 0)
            assert (missing.name, missing.topic_id) == (None, unknown)
            assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run()


@pytest.mark.parametrize("version", [10, 11])
def test_before_that_ids_are_refused(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            topic = await node.topics.create("a")
            (result,) = (await ask(node, version=version, ids=(topic.id,))).topics
            assert (result.name, result.error_code) == ("", ErrorCode.INVALID_REQUEST)

    run()


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_a_topic_needs_a_name_or_an_id(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            (result,) = (await ask(node, version=version, ids=(NO_ID,))).topics
            assert result.error_code == ErrorCode.INVALID_REQUEST
            assert node.topics.all() == []

    run()


@in_loop
async def test_a_topic_that_is_asked_for_twice_is_answered_once():
    async with open_handler_node() as node:
        response = await ask(node, "b", "a", "b", "a")
        assert [topic.name for topic in response.topics] == ["b", "a"]


@in_loop
async def test_many_who_ask_for_a_new_topic_at_once_all_get_it():
    async with open_handler_node() as node:
        responses = await asyncio.gather(*(ask(node, "new") for _ in range(5)))
        assert [codes(response) for response in responses] == [{"new": 0}] * 5
        assert len({response.topics[0].topic_id for response in responses}) == 1


@pytest.mark.parametrize("version", range(8, 14))
def test_who_asks_what_it_may_do_is_told_everything(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            rest = {"include_topic_authorized_operations": True}
            if version <= 10:
                rest["include_cluster_authorized_operations"] = True
            response = await ask(node, "a", version=version, **rest)
            assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
            wanted = 0b1_1111_1010_0000 if version <= 10 else UNASKED
            assert response.cluster_authorized_operations == wanted

    run()


# DescribeTopicPartitions.


async def page(
    node: HandlerNode, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> Any:
    request = DescribeTopicPartitionsRequest(
        topics=tuple(DescribeTopicPartitionsRequestTopic(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else TopicPartitionsCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await node.ask(describe_topic_partitions, request, version=0)


def shown(response: Any) -> list[tuple[str, list[int]]]:
    return [
        (topic.name, [part.partition_index for part in topic.partitions])
        for topic in response.topics
    ]


@in_loop
async def test_partitions_of_a_topic_are_described():
    async with open_handler_node() as node:
        created = await node.topics.create("a", partitions=2)
        await created.partitions[1].open()
        response = await page(node, "a")
        [topic] = response.topics
        assert (topic.error_code, topic.name, topic.topic_id) == (0, "a", created.id)
        assert [part.leader_epoch for part in topic.partitions] == [-1, 0]
        for part in topic.partitions:
            assert (part.leader_id, part.replica_nodes, part.isr_nodes) == (
                NODE_ID,
                (NODE_ID,),
                (NODE_ID,),
            )
            assert part.eligible_leader_replicas == part.last_known_elr == ()
        assert response.next_cursor is None


@in_loop
async def test_all_partitions_come_page_by_page_each_once_and_sorted():
    async with open_handler_node() as node:
        for name, count in (("b", 3), ("a", 2), ("c", 1)):
            await node.topics.create(name, partitions=count)
        for limit in range(1, 8):
            pages, cursor = [], None
            while True:
                response = await page(node, limit=limit, cursor=cursor)
                pages += [(name, index) for name, parts in shown(response) for index in parts]
                assert sum(len(parts) for _, parts in shown(response)) <= limit
                if response.next_cursor is None:
                    break
                cursor = response.next_cursor.topic_name, response.next_cursor.partition_index
            assert pages == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


@in_loop
async def test_a_page_starts_at_its_cursor_though_its_topic_is_gone_or_shorter():
    async with open_handler_node() as node:
        await node.topics.create("a", partitions=2)
        await node.topics.create("c")
        assert shown(await page(node, cursor=("b", 5))) == [("c", [0])]
        assert shown(await page(node, cursor=("a", 9))) == [("a", []), ("c", [0])]


@in_loop
async def test_a_topic_that_is_not_there_is_an_error_of_its_own_and_not_created():
    async with open_handler_node() as node:
        await node.topics.create("a")
        assert codes(await page(node, "a", "x", "not/valid", "a")) == {
            "a": 0,
            "not/valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "x": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert node.topics.find("x") is None
        assert codes(await page(node, "a", cursor=("a", -1))) == {"a": ErrorCode.INVALID_REQUEST}

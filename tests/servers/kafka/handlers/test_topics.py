"""CreateTopics, CreatePartitions, DeleteTopics and ElectLeaders, as clients see them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millstream.broker.quotas import DEFAULT, ClientQuotaEntity
from millstream.broker.topics.configs.topic_settings import TOPIC_CONFIGS
from millstream.broker.topics.topic import NO_ID
from millstream.config.schema import BrokerConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.topics import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    ELECT_LEADERS,
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
)
from millstream.servers.kafka.handlers.elections import elect_leaders
from millstream.servers.kafka.handlers.topics import (
    create_partitions,
    create_topics,
    delete_topics,
)
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import NODE_ID, HandlerNode, open_handler_node


def each_version(versions: Any) -> Any:
    return pytest.mark.parametrize("version", range(versions.first, versions.last + 1))


def new_topic(
    name: str,
    partitions: int = -1,
    replicas: int = -1,
    assignments: dict[int, tuple[int, ...]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreateTopicsRequestTopic:
    return CreateTopicsRequestTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(
            CreateTopicsRequestAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in (assignments or {}).items()
        ),
        configs=tuple(
            CreateTopicsRequestConfig(name=name, value=value)
            for name, value in (configs or {}).items()
        ),
    )


async def create(
    node: HandlerNode,
    *topics: CreateTopicsRequestTopic,
    version: int = 7,
    is_validate_only: bool = False,
) -> Any:
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=is_validate_only)
    return await node.ask(create_topics, request, version=version)


# Creating.


@each_version(CREATE_TOPICS)
def test_a_topic_is_created_and_described(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            wanted = new_topic("a", 3, 1, configs={"cleanup.policy": "compact"})
            response = await create(node, wanted, version=version)
            (result,) = response.topics
            topic = node.topics.get("a")
            assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
            assert topic.partition_count == 3
            assert topic.config.is_compacted
            if version >= 5:
                assert (result.num_partitions, result.replication_factor) == (3, 1)
                configs = {config.name: config for config in result.configs}
                assert configs.keys() == TOPIC_CONFIGS.keys()
                assert configs["cleanup.policy"].value == "compact"
                assert configs["cleanup.policy"].config_source == 1
                assert configs["retention.ms"].value == "604800000"
                assert configs["retention.ms"].config_source == 5
                assert not any(config.read_only for config in result.configs)
            if version >= 7:
                assert result.topic_id == topic.id

    run()


@in_loop
async def test_what_is_unsaid_is_as_the_node_has_it():
    async with open_handler_node(BrokerConfig(node_id=NODE_ID, num_partitions=4)) as node:
        response = await create(node, new_topic("a"))
        assert response.topics[0].num_partitions == 4
        assert response.topics[0].replication_factor == 1


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "letters, digits"),
        (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "characters, got 0"),
        (new_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..'"),
        (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "characters, got 250"),
        (new_topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "'there' already exists"),
        (new_topic("dot.ted"), ErrorCode.INVALID_TOPIC_EXCEPTION, "differs from 'dot_ted'"),
        (new_topic("a", 0), ErrorCode.INVALID_PARTITIONS, "must be at least 1, got 0"),
        (new_topic("a", -2), ErrorCode.INVALID_PARTITIONS, "must be at least 1, got -2"),
        (new_topic("a", 10**6), ErrorCode.INVALID_PARTITIONS, "limit is 100000"),
        (new_topic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "got 0"),
        (new_topic("a", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR, "got 3"),
        (new_topic("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "got -2"),
        (
            new_topic("a", 1, assignments={0: (NODE_ID,)}),
            ErrorCode.INVALID_REQUEST,
            "must be -1, got 1 and -1",
        ),
        (
            new_topic("a", -1, 1, assignments={0: (NODE_ID,)}),
            ErrorCode.INVALID_REQUEST,
            "must be -1, got -1 and 1",
        ),
        (
            new_topic("a", assignments={0: (NODE_ID,), 2: (NODE_ID,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "must be 0, 1, 2 and so on",
        ),
        (
            new_topic("a", assignments={1: (NODE_ID,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "must be 0, 1, 2 and so on",
        ),
        (
            new_topic("a", assignments={0: (8,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "must be on nodes [7], got [8]",
        ),
        (
            new_topic("a", assignments={0: (NODE_ID, 8)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "must be on nodes [7], got [7, 8]",
        ),
        (
            new_topic("a", assignments={0: ()}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "must be on nodes [7], got []",
        ),
        (
            new_topic("a", configs={"retention.ms": "x"}),
            ErrorCode.INVALID_CONFIG,
            "got 'x'",
        ),
        (
            new_topic("a", configs={"nonsense": "x"}),
            ErrorCode.INVALID_CONFIG,
            "'nonsense' is not a topic config",
        ),
        (
            new_topic("a", configs={"retention.ms": None}),
            ErrorCode.INVALID_CONFIG,
            "retention.ms has no value",
        ),
    ],
)
@pytest.mark.parametrize("is_validate_only", [False, True])
def test_a_topic_that_cannot_be_is_refused_and_its_neighbour_is_not(
    topic, code, message, is_validate_only
):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await create(node, new_topic("there"), new_topic("dot_ted"))
            response = await create(
                node, topic, new_topic("good"), is_validate_only=is_validate_only
            )
            refused, good = response.topics
            assert (refused.error_code, good.error_code) == (code, 0)
            assert message in refused.error_message
            assert refused.num_partitions == refused.replication_factor == -1
            assert not refused.configs
            names = {topic.name for topic in node.topics.all()}
            assert names == {"there", "dot_ted"} | (set() if is_validate_only else {"good"})

    run()


@in_loop
async def test_partitions_may_be_placed_by_hand_on_the_one_node():
    async with open_handler_node() as node:
        wanted = new_topic("a", assignments={1: (NODE_ID,), 0: (NODE_ID,)})
        response = await create(node, wanted)
        assert response.topics[0].error_code == 0
        assert node.topics.get("a").partition_count == 2


@in_loop
async def test_a_topic_that_is_there_twice_is_refused_both_times():
    async with open_handler_node() as node:
        response = await create(node, new_topic("a"), new_topic("b"), new_topic("a", 2))
        assert [(result.name, result.error_code) for result in response.topics] == [
            ("a", ErrorCode.INVALID_REQUEST),
            ("b", 0),
            ("a", ErrorCode.INVALID_REQUEST),
        ]
        assert response.topics[0].error_message == "topic 'a' is repeated"
        assert [topic.name for topic in node.topics.all()] == ["b"]


@in_loop
async def test_a_config_that_is_there_twice_is_refused():
    async with open_handler_node() as node:
        wanted = CreateTopicsRequestTopic(
            name="a",
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(CreateTopicsRequestConfig(name="flush.ms", value="1"),) * 2,
        )
        response = await create(node, wanted)
        assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_only_validating_creates_nothing():
    async with open_handler_node() as node:
        response = await create(node, new_topic("a", 2), is_validate_only=True)
        (result,) = response.topics
        assert (result.error_code, result.num_partitions) == (0, 2)
        assert result.topic_id == NO_ID
        assert node.topics.all() == []


# Growing.


async def grow(
    node: HandlerNode,
    *topics: tuple[str, int, tuple[tuple[int, ...], ...] | None],
    version: int = 3,
    is_validate_only: bool = False,
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(
        topics=tuple(
            CreatePartitionsRequestTopic(
                name=name,
                count=count,
                assignments=None
                if nodes is None
                else tuple(CreatePartitionsRequestAssignment(broker_ids=some) for some in nodes),
            )
            for name, count, nodes in topics
        ),
        timeout_ms=1000,
        validate_only=is_validate_only,
    )
    response = await node.ask(create_partitions, request, version=version)
    return [(found.name, found.error_code, found.error_message) for found in response.results]


@each_version(CREATE_PARTITIONS)
def test_a_topic_grows(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await create(node, new_topic("a"), new_topic("b"))
            wanted = [("a", 3, None), ("b", 2, ((NODE_ID,),))]
            assert await grow(node, *wanted, version=version, is_validate_only=True) == [
                ("a", 0, None),
                ("b", 0, None),
            ]
            assert node.topics.partition_count == 2
            await grow(node, *wanted, version=version)
            assert node.topics.get("a").partition_count == 3
            assert node.topics.get("b").partition_count == 2

    run()


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (("a", 2, None), ErrorCode.INVALID_PARTITIONS, "has 2 partitions, got 2"),
        (("a", 1, None), ErrorCode.INVALID_PARTITIONS, "has 2 partitions, got 1"),
        (("a", 1, ()), ErrorCode.INVALID_PARTITIONS, "has 2 partitions, got 1"),
        (("a", 10**9, None), ErrorCode.INVALID_PARTITIONS, "limit is 100000"),
        (("x", 2, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'x' does not exist"),
        (("a", 4, ((7,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "1 assignments for 2 new"),
        (("a", 3, ((8,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "must be on nodes [7]"),
        (("a", 3, ((7, 7),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "must be on nodes [7]"),
    ],
)
def test_growth_that_cannot_be_is_refused(wanted, code, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await create(node, new_topic("a", 2))
            ((_, found, words),) = await grow(node, wanted)
            assert found == code
            assert message in (words or "")
            assert node.topics.get("a").partition_count == 2

    run()


@in_loop
async def test_a_topic_that_is_to_grow_twice_does_not():
    async with open_handler_node() as node:
        await create(node, new_topic("a"))
        results = await grow(node, ("a", 2, None), ("a", 3, None))
        assert [code for _, code, _ in results] == [ErrorCode.INVALID_REQUEST] * 2
        assert node.topics.partition_count == 1


# Deleting.


@each_version(DELETE_TOPICS)
def test_topics_are_deleted_by_name(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await create(node, new_topic("a"), new_topic("b"))
            topic_id = node.topics.get("a").id
            names = ("a", "x")
            request = DeleteTopicsRequest(
                topic_names=names if version < 6 else (),
                topics=()
                if version < 6
                else tuple(DeleteTopicsRequestTopic(name=name, topic_id=NO_ID) for name in names),
                timeout_ms=1000,
            )
            response = await node.ask(delete_topics, request, version=version)
            gone, unknown = response.responses
            assert (gone.name, gone.error_code) == ("a", 0)
            assert (unknown.name, unknown.error_code) == ("x", 3)
            if version >= 5:
                assert unknown.error_message == "topic 'x' does not exist"
            if version >= 6:
                assert gone.topic_id == topic_id
            assert [topic.name for topic in node.topics.all()] == ["b"]

    run()


async def delete(node: HandlerNode, *topics: tuple[str | None, uuid.UUID]) -> Any:
    request = DeleteTopicsRequest(
        topics=tuple(DeleteTopicsRequestTopic(name=name, topic_id=found) for name, found in topics),
        timeout_ms=1000,
    )
    return (await node.ask(delete_topics, request, version=6)).responses


@in_loop
async def test_topics_are_deleted_by_id():
    async with open_handler_node() as node:
        await create(node, new_topic("a"))
        topic = node.topics.get("a")
        (result,) = await delete(node, (None, topic.id))
        assert (result.name, result.topic_id, result.error_code) == ("a", topic.id, 0)
        (result,) = await delete(node, (None, topic.id))
        assert (result.name, result.topic_id) == (None, topic.id)
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@in_loop
async def test_a_topic_to_delete_is_named_once_and_in_one_way():
    async with open_handler_node() as node:
        await create(node, new_topic("a"), new_topic("b"))
        topic_id = node.topics.get("a").id
        results = await delete(
            node, (None, NO_ID), ("a", topic_id), ("b", NO_ID), ("b", NO_ID), (None, uuid.uuid4())
        )
        assert [result.error_code for result in results] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]
        assert len(node.topics.all()) == 2


# Elections.


@each_version(ELECT_LEADERS)
def test_no_election_is_needed(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await create(node, new_topic("a", 2))
            wanted = (
                ElectLeadersRequestTopic(topic="a", partitions=(0, 1, 2)),
                ElectLeadersRequestTopic(topic="x", partitions=(0,)),
            )
            request = ElectLeadersRequest(topic_partitions=wanted, timeout_ms=1)
            response = await node.ask(elect_leaders, request, version=version)
            assert response.error_code == 0
            assert [
                (topic.topic, found.partition_id, found.error_code)
                for topic in response.replica_election_results
                for found in topic.partition_result
            ] == [
                ("a", 0, ErrorCode.ELECTION_NOT_NEEDED),
                ("a", 1, ErrorCode.ELECTION_NOT_NEEDED),
                ("a", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ("x", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ]
            request = ElectLeadersRequest(topic_partitions=None, timeout_ms=1)
            response = await node.ask(elect_leaders, request, version=version)
            assert (response.error_code, response.replica_election_results) == (0, ())

    run()


@in_loop
async def test_an_election_of_an_unknown_kind_is_refused():
    async with open_handler_node() as node:
        request = ElectLeadersRequest(election_type=5, topic_partitions=None, timeout_ms=1)
        response = await node.ask(elect_leaders, request, version=2)
        assert response.error_code == ErrorCode.INVALID_REQUEST


# Quotas.


@in_loop
async def test_who_changes_too_many_partitions_is_refused_until_its_quota_allows_more():
    async with open_handler_node() as node:
        await node.quotas.alter(ClientQuotaEntity(None, DEFAULT), {"controller_mutation_rate": 1.0})
        response = await create(node, new_topic("a", 12), new_topic("b", 1))
        assert [result.error_code for result in response.topics] == [
            0,
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ]
        assert response.throttle_time_ms == 2000
        assert "try again in 2000 ms" in response.topics[1].error_message
        ((_, code, _),) = await grow(node, ("a", 13, None))
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        (result,) = await delete(node, ("a", NO_ID))
        assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        node.clock.advance(2.0)
        assert (await grow(node, ("a", 13, None)))[0][1] == 0
        node.clock.advance(1.0)
        assert (await delete(node, ("a", NO_ID)))[0].error_code == 0
        assert node.topics.partition_count == 0


@in_loop
async def test_older_clients_are_only_slowed_down():
    async with open_handler_node() as node:
        await node.quotas.alter(ClientQuotaEntity(None, DEFAULT), {"controller_mutation_rate": 1.0})
        response = await create(node, new_topic("a", 12), new_topic("b", 3), version=5)
        assert [result.error_code for result in response.topics] == [0, 0]
        assert response.throttle_time_ms == 5000


@in_loop
async def test_only_validating_uses_nothing_up():
    async with open_handler_node() as node:
        await node.quotas.alter(ClientQuotaEntity(None, DEFAULT), {"controller_mutation_rate": 1.0})
        response = await create(node, new_topic("a", 100), is_validate_only=True)
        assert response.throttle_time_ms == 0

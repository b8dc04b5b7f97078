"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, as clients see them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.broker.topics.configs.node_settings import DYNAMIC_NODE_FIELDS
from millstream.broker.topics.configs.topic_setting import SettingType
from millstream.broker.topics.configs.topic_settings import DURABILITY, TOPIC_CONFIGS
from millstream.broker.topics.configs.value_format import (
    VALUE_FORMAT,
    VALUE_SCHEMA,
    VALUE_SCHEMA_SIZE_MAX,
)
from millstream.config.schema import BrokerConfig, Durability, KafkaConfig, LogConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListConfigResourcesRequest,
)
from millstream.servers.kafka.handlers.configs import (
    KINDS,
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tests.in_loop import in_loop
from tests.metadata.memory import MemoryMetadata
from tests.servers.kafka.socketless import NODE_ID, HandlerNode, open_handler_node

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
TOPIC_SOURCE, STATIC_BROKER, DEFAULT_SOURCE = 1, 4, 5
DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, GROUP_SOURCE = 2, 3, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def each_version(versions: Any) -> Any:
    return pytest.mark.parametrize("version", range(versions.first, versions.last + 1))


async def describe(
    node: HandlerNode,
    kind: int,
    name: str,
    *keys: str,
    version: int = 4,
    has_synonyms: bool = True,
    has_documentation: bool = True,
) -> Any:
    resource = DescribeConfigsRequestResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    request = DescribeConfigsRequest(
        resources=(resource,),
        include_synonyms=has_synonyms,
        include_documentation=has_documentation,
    )
    response = await node.ask(describe_configs, request, version=version)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result: Any) -> dict[str, Any]:
    assert result.error_code == 0
    found = {config.name: config for config in result.configs}
    assert len(found) == len(result.configs)
    return found


# Topics.


@each_version(DESCRIBE_CONFIGS)
def test_every_config_of_a_topic_is_shown(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await node.topics.create("a", configs={"cleanup.policy": "compact"})
            configs = by_name(await describe(node, TOPIC, "a", version=version))
            assert configs.keys() == TOPIC_CONFIGS.keys()
            for name, config in configs.items():
                setting = TOPIC_CONFIGS[name]
                is_own = name == "cleanup.policy"
                assert config.value == ("compact" if is_own else setting.default)
                assert config.config_source == (TOPIC_SOURCE if is_own else DEFAULT_SOURCE)
                assert not config.read_only
                assert not config.is_sensitive
                if version >= 3:
                    assert config.config_type == KINDS[setting.kind]
                    assert config.documentation == setting.meaning

    run()


@each_version(DESCRIBE_CONFIGS)
def test_the_longest_schema_is_shown_whole(version):
    schema = "n STRING COMMENT '".ljust(VALUE_SCHEMA_SIZE_MAX - 1, "x") + "'"

    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await node.topics.create("a", configs={VALUE_FORMAT: "json", VALUE_SCHEMA: schema})
            configs = by_name(await describe(node, TOPIC, "a", VALUE_SCHEMA, version=version))
            assert configs[VALUE_SCHEMA].value == schema
            assert configs[VALUE_SCHEMA].config_source == TOPIC_SOURCE

    run()


@in_loop
async def test_synonyms_say_where_a_value_comes_from_and_what_it_would_be_otherwise():
    async with open_handler_node(log_config=LogConfig(durability=Durability.DISK)) as node:
        await node.topics.create("a", configs={"cleanup.policy": "compact", DURABILITY: "fsync"})
        await node.topics.create("b")

        async def synonyms(topic: str, name: str) -> list[tuple[str, str, int]]:
            configs = by_name(await describe(node, TOPIC, topic, name))
            return [(found.name, found.value, found.source) for found in configs[name].synonyms]

        assert await synonyms("a", "cleanup.policy") == [
            ("cleanup.policy", "compact", TOPIC_SOURCE),
            ("log.cleanup.policy", "delete", DEFAULT_SOURCE),
        ]
        assert await synonyms("b", "cleanup.policy") == [
            ("log.cleanup.policy", "delete", DEFAULT_SOURCE)
        ]
        assert await synonyms("a", DURABILITY) == [
            (DURABILITY, "fsync", TOPIC_SOURCE),
            (DURABILITY, "disk", STATIC_BROKER),
            (DURABILITY, "fsync", DEFAULT_SOURCE),
        ]
        configs = by_name(await describe(node, TOPIC, "b", has_synonyms=False))
        assert configs[DURABILITY].config_source == STATIC_BROKER
        assert configs[DURABILITY].value == "disk"
        assert not any(config.synonyms for config in configs.values())


@in_loop
async def test_only_what_is_asked_for_is_shown():
    async with open_handler_node() as node:
        await node.topics.create("a")
        configs = by_name(await describe(node, TOPIC, "a", "retention.ms", "nonsense"))
        assert configs.keys() == {"retention.ms"}
        result = await describe(node, TOPIC, "a", "flush.ms", has_documentation=False)
        assert by_name(result)["flush.ms"].documentation is None


@in_loop
async def test_an_empty_list_of_names_means_all():
    async with open_handler_node() as node:
        await node.topics.create("a")
        resource = DescribeConfigsRequestResource(
            resource_type=TOPIC, resource_name="a", configuration_keys=()
        )
        request = DescribeConfigsRequest(resources=(resource,) * 2)
        response = await node.ask(describe_configs, request, version=4)
        assert [len(result.configs) for result in response.results] == [len(TOPIC_CONFIGS)] * 2


def test_every_kind_of_value_has_kafkas_number():
    assert KINDS.keys() == set(SettingType)
    assert KINDS == {
        SettingType.BOOLEAN: 1,
        SettingType.STRING: 2,
        SettingType.INT: 3,
        SettingType.LONG: 5,
        SettingType.DOUBLE: 6,
        SettingType.LIST: 7,
    }


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'x' does not exist"),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "characters, got 0"),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, "'a/b'"),
        (BROKER, "8", ErrorCode.INVALID_REQUEST, "node must be 7, got '8'"),
        (BROKER, "x", ErrorCode.INVALID_REQUEST, "node must be 7, got 'x'"),
        (GROUP, "", ErrorCode.INVALID_REQUEST, "a group name is required"),
        (BROKER_LOGGER, "7", ErrorCode.INVALID_REQUEST, "must be one of 2 TOPIC"),
        (CLIENT_METRICS, "x", ErrorCode.INVALID_REQUEST, "got 16 CLIENT_METRICS"),
        (99, "x", ErrorCode.INVALID_REQUEST, "got 99 unknown"),
        (-1, "x", ErrorCode.INVALID_REQUEST, "got -1 unknown"),
    ],
)
def test_what_has_no_configs_is_refused(kind, name, code, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            result = await describe(node, kind, name)
            assert (result.error_code, result.configs) == (code, ())
            assert message in result.error_message

    run()


# The node and its groups.


@in_loop
async def test_the_node_shows_what_it_is_set_to_under_kafkas_names():
    config = BrokerConfig(node_id=NODE_ID, num_partitions=4, offsets_retention_ms=120_000)
    async with open_handler_node(config) as node:
        configs = by_name(await describe(node, BROKER, str(NODE_ID)))
        assert {
            name: (configs[name].value, configs[name].config_source)
            for name in (
                "num.partitions",
                "auto.create.topics.enable",
                "offsets.retention.minutes",
                "group.max.session.timeout.ms",
                "log.retention.ms",
                "socket.request.max.bytes",
            )
        } == {
            "num.partitions": ("4", STATIC_BROKER),
            "auto.create.topics.enable": ("true", DEFAULT_SOURCE),
            "offsets.retention.minutes": ("2", STATIC_BROKER),
            "group.max.session.timeout.ms": ("1800000", DEFAULT_SOURCE),
            "log.retention.ms": ("604800000", DEFAULT_SOURCE),
            "socket.request.max.bytes": ("104857600", DEFAULT_SOURCE),
        }
        assert {name for name, config in configs.items() if not config.read_only} == set(
            DYNAMIC_NODE_FIELDS
        )
        assert all(config.documentation for config in configs.values())
        assert [
            (found.name, found.value, found.source) for found in configs["num.partitions"].synonyms
        ] == [
            ("num.partitions", "4", STATIC_BROKER),
            ("num.partitions", "1", DEFAULT_SOURCE),
        ]


@in_loop
async def test_nothing_is_set_for_all_nodes():
    async with open_handler_node() as node:
        assert by_name(await describe(node, BROKER, "")) == {}


@in_loop
async def test_a_group_shows_what_holds_for_all_groups():
    async with open_handler_node() as node:
        configs = by_name(await describe(node, GROUP, "any"))
        assert {name: config.value for name, config in configs.items()} == {
            "consumer.heartbeat.interval.ms": "5000",
            "consumer.session.timeout.ms": "45000",
        }
        assert not any(config.read_only for config in configs.values())


@in_loop
async def test_the_node_shows_where_it_listens_and_what_it_tells_clients():
    async with open_handler_node() as node:
        names = ("advertised.listeners", "listeners")
        configs = by_name(await describe(node, BROKER, str(NODE_ID), *names))
        assert {name: config.value for name, config in configs.items()} == {
            "advertised.listeners": "PLAINTEXT://there:9092",
            "listeners": "PLAINTEXT://0.0.0.0:9092",
        }


def sources(config: Any) -> list[tuple[str, int]]:
    """Return the values of a config with their sources, the one that counts first."""
    return [(synonym.value, synonym.source) for synonym in config.synonyms]


@in_loop
async def test_a_config_of_the_node_is_changed_shown_kept_and_removed():
    name, metadata = "max.connections", MemoryMetadata()
    async with open_handler_node(metadata=metadata) as node:
        default = str(KafkaConfig().connections_max)
        assert await change(node, (BROKER, "", [(name, SET, "50")])) == [(0, None)]
        assert await change(node, (BROKER, "7", [(name, SET, " 60 ")])) == [(0, None)]
        shown = by_name(await describe(node, BROKER, "7", name))[name]
        assert (shown.value, shown.config_source, shown.read_only) == ("60", DYNAMIC_BROKER, False)
        assert sources(shown) == [
            ("60", DYNAMIC_BROKER),
            ("50", DYNAMIC_DEFAULT_BROKER),
            (default, DEFAULT_SOURCE),
        ]
        for_all = by_name(await describe(node, BROKER, ""))
        assert {key: sources(found)[0] for key, found in for_all.items()} == {
            name: ("50", DYNAMIC_DEFAULT_BROKER)
        }
        assert node.configs.kafka_config(KafkaConfig()).connections_max == 60
    async with open_handler_node(metadata=metadata) as node:
        assert node.configs.kafka_config(KafkaConfig()).connections_max == 60
        assert await change(node, (BROKER, "7", [(name, DELETE, None)])) == [(0, None)]
        assert node.configs.kafka_config(KafkaConfig()).connections_max == 50
        assert await alter(node, (BROKER, "", {})) == [(0, None)]
        shown = by_name(await describe(node, BROKER, "7", name))[name]
        assert sources(shown) == [(default, DEFAULT_SOURCE)]


@in_loop
async def test_a_config_of_a_group_is_changed_shown_kept_and_removed():
    name, metadata = "consumer.session.timeout.ms", MemoryMetadata()
    async with open_handler_node(metadata=metadata) as node:
        told: list[str] = []
        node.configs.on_group_change.append(told.append)
        assert await change(node, (GROUP, "a/b ü", [(name, SET, "50000")])) == [(0, None)]
        assert told == ["a/b ü"]
        shown = by_name(await describe(node, GROUP, "a/b ü", name))[name]
        assert sources(shown) == [("50000", GROUP_SOURCE), ("45000", DEFAULT_SOURCE)]
        assert sources(by_name(await describe(node, GROUP, "other"))[name])[0][0] == "45000"
    async with open_handler_node(metadata=metadata) as node:
        assert node.configs.group_config("a/b ü").consumer_session_timeout_ms == 50_000
        assert node.configs.group_config("other").consumer_session_timeout_ms == 45_000
        assert await alter(node, (GROUP, "a/b ü", {})) == [(0, None)]
        assert node.configs.groups() == []


@in_loop
async def test_what_is_only_validated_is_not_set():
    async with open_handler_node() as node:
        changes = [("max.connections", SET, "50")]
        assert await change(node, (BROKER, "7", changes), is_validate_only=True) == [(0, None)]
        assert node.configs.of("configs/node/7") == {}


async def resources(node: HandlerNode, *kinds: int, version: int = 1) -> Any:
    request = ListConfigResourcesRequest(resource_types=kinds)
    return await node.ask(list_config_resources, request, version=version)


@in_loop
async def test_resources_with_configs_are_listed():
    async with open_handler_node() as node:
        await node.topics.create("a")
        await change(node, (GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]))
        everything = [("a", TOPIC), ("7", BROKER), ("g", GROUP)]
        for kinds, expected in (
            ((), everything),
            ((TOPIC,), everything[:1]),
            ((BROKER, GROUP), everything[1:]),
            ((BROKER_LOGGER, CLIENT_METRICS), []),
        ):
            answer = await resources(node, *kinds)
            listed = [
                (found.resource_name, found.resource_type) for found in answer.config_resources
            ]
            assert (answer.error_code, listed) == (0, expected)
        assert (await resources(node, version=0)).config_resources == ()
        assert (await resources(node, 3)).error_code == ErrorCode.UNSUPPORTED_VERSION


# Setting all.


async def alter(
    node: HandlerNode,
    *resources: tuple[int, str, dict[str, str | None]],
    version: int = 2,
    is_validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    request = AlterConfigsRequest(
        resources=tuple(
            AlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    AlterConfigsRequestConfig(name=name, value=value)
                    for name, value in configs.items()
                ),
            )
            for kind, name, configs in resources
        ),
        validate_only=is_validate_only,
    )
    response = await node.ask(alter_configs, request, version=version)
    found = [(found.resource_type, found.resource_name) for found in response.responses]
    assert found == [(kind, name) for kind, name, _ in resources]
    return [(found.error_code, found.error_message) for found in response.responses]


@each_version(ALTER_CONFIGS)
def test_a_topic_is_set_to_these_configs_and_no_others(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            topic = await node.topics.create("a", configs={"flush.ms": "1"})
            change = (TOPIC, "a", {"retention.ms": "5"})
            assert await alter(node, change, version=version, is_validate_only=True) == [(0, None)]
            assert topic.config.overrides == {"flush.ms": "1"}
            assert await alter(node, change, version=version) == [(0, None)]
            assert topic.config.overrides == {"retention.ms": "5"}
            assert await alter(node, (TOPIC, "a", {}), version=version) == [(0, None)]
            assert topic.config.overrides == {}

    run()


READ_ONLY = "configs of a node are read-only"


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code", "message"),
    [
        (TOPIC, "x", {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'x' does not exist"),
        (TOPIC, "", {}, ErrorCode.INVALID_REQUEST, "a topic name is required"),
        (TOPIC, "a", {"flush.ms": "x"}, ErrorCode.INVALID_CONFIG, "flush.ms must be between 0 and"),
        (TOPIC, "a", {"x": "1"}, ErrorCode.INVALID_CONFIG, "'x' is not a topic config"),
        (TOPIC, "a", {"flush.ms": None}, ErrorCode.INVALID_REQUEST, "has no value"),
        (
            TOPIC,
            "a",
            {"remote.storage.enable": "true"},
            ErrorCode.INVALID_CONFIG,
            "must be false on a node without tier.store, got true",
        ),
        (
            TOPIC,
            "a",
            {DURABILITY: "ephemeral"},
            ErrorCode.INVALID_CONFIG,
            "become or cease to be ephemeral",
        ),
        (BROKER, "7", {"num.partitions": "2"}, ErrorCode.INVALID_REQUEST, READ_ONLY),
        (BROKER, "", {"num.partitions": "2"}, ErrorCode.INVALID_REQUEST, READ_ONLY),
        (BROKER, "8", {}, ErrorCode.INVALID_REQUEST, "node must be 7, got '8'"),
        (
            GROUP,
            "g",
            {"consumer.session.timeout.ms": "1"},
            ErrorCode.INVALID_CONFIG,
            "consumer.session.timeout.ms must be between 1000 and 3600000, got 1",
        ),
        (
            GROUP,
            "g",
            {"consumer.heartbeat.interval.ms": "45000"},
            ErrorCode.INVALID_CONFIG,
            "must be less than consumer.session.timeout.ms, 45000, got 45000",
        ),
        (GROUP, "g", {"x": "1"}, ErrorCode.INVALID_CONFIG, "'x' is not a group config"),
        (GROUP, "", {}, ErrorCode.INVALID_REQUEST, "a group name is required"),
        (
            BROKER,
            "7",
            {"max.connections": "-1"},
            ErrorCode.INVALID_CONFIG,
            "max.connections must be a whole number, got '-1'",
        ),
        (
            BROKER,
            "",
            {"max.connections": "0"},
            ErrorCode.INVALID_CONFIG,
            "max.connections must be between 1 and",
        ),
        (
            BROKER,
            "7",
            {"max.connections": "5", "log.retention.ms": "1"},
            ErrorCode.INVALID_REQUEST,
            "cannot change log.retention.ms: configs of a node are read-only here, except",
        ),
        (BROKER_LOGGER, "7", {"root": "DEBUG"}, ErrorCode.INVALID_REQUEST, "8 BROKER_LOGGER"),
        (99, "x", {}, ErrorCode.INVALID_REQUEST, "99 unknown"),
    ],
)
def test_what_cannot_be_set_is_refused_and_its_neighbour_is_not(kind, name, configs, code, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            await node.topics.create("a")
            await node.topics.create("good")
            refused, good = await alter(
                node, (kind, name, configs), (TOPIC, "good", {"flush.ms": "1"})
            )
            assert refused[0] == code
            assert message in (refused[1] or "")
            assert good == (0, None)
            assert node.topics.get("a").config.overrides == {}
            assert node.topics.get("good").config.overrides == {"flush.ms": "1"}
            changes = [(key, SET, value) for key, value in configs.items()]
            assert (await change(node, (kind, name, changes)))[0] == refused

    run()


@in_loop
async def test_nothing_is_no_change_of_a_node():
    async with open_handler_node() as node:
        assert await alter(node, (BROKER, "7", {}), (BROKER, "", {})) == [(0, None)] * 2


@in_loop
async def test_a_resource_that_is_there_twice_is_refused_both_times():
    async with open_handler_node() as node:
        await node.topics.create("a")
        results = await alter(
            node, (TOPIC, "a", {"flush.ms": "1"}), (BROKER, "7", {}), (TOPIC, "a", {})
        )
        assert [code for code, _ in results] == [
            ErrorCode.INVALID_REQUEST,
            0,
            ErrorCode.INVALID_REQUEST,
        ]
        assert node.topics.get("a").config.overrides == {}


# Changing some.


async def change(
    node: HandlerNode,
    *resources: tuple[int, str, list[tuple[str, int, str | None]]],
    version: int = 1,
    is_validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        resources=tuple(
            IncrementalAlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    IncrementalAlterConfigsRequestConfig(
                        name=name, config_operation=operation, value=value
                    )
                    for name, operation, value in changes
                ),
            )
            for kind, name, changes in resources
        ),
        validate_only=is_validate_only,
    )
    response = await node.ask(incremental_alter_configs, request, version=version)
    return [(found.error_code, found.error_message) for found in response.responses]


@each_version(INCREMENTAL_ALTER_CONFIGS)
def test_configs_are_set_deleted_appended_to_and_subtracted_from(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            topic = await node.topics.create("a", configs={"flush.ms": "1", "segment.ms": "2"})
            changes = [
                ("retention.ms", SET, "5"),
                ("flush.ms", DELETE, None),
                ("cleanup.policy", APPEND, "compact"),
            ]
            wanted = (TOPIC, "a", changes)
            assert await change(node, wanted, version=version, is_validate_only=True) == [(0, None)]
            assert len(topic.config.overrides) == 2
            assert await change(node, wanted, version=version) == [(0, None)]
            assert topic.config.overrides == {
                "cleanup.policy": "delete,compact",
                "retention.ms": "5",
                "segment.ms": "2",
            }
            wanted = (TOPIC, "a", [("cleanup.policy", SUBTRACT, "delete")])
            assert await change(node, wanted, version=version) == [(0, None)]
            assert topic.config.value("cleanup.policy") == "compact"

    run()


def test_throttles_of_replication_can_be_cleared_and_not_set():
    """`kafka-reassign-partitions --verify` clears them, whether they were set or not."""
    names = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            cleared = (BROKER, "7", [(name, DELETE, None) for name in names])
            assert await change(node, cleared) == [(0, None)]
            [(code, message)] = await change(node, (BROKER, "7", [(names[0], SET, "1")]))
            assert code == ErrorCode.INVALID_REQUEST
            assert f"cannot change {names[0]}" in (message or "")

    run()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("flush.ms", 4, "1")], ErrorCode.INVALID_REQUEST, "operation must be one of 0 set"),
        ([("flush.ms", -1, "1")], ErrorCode.INVALID_REQUEST, "got -1"),
        ([("flush.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "flush.ms is not a list"),
        ([("cleanup.policy", APPEND, "x")], ErrorCode.INVALID_CONFIG, "a list of compact, delete"),
        ([("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST, "has no value"),
        ([("x", DELETE, None)], ErrorCode.INVALID_CONFIG, "'x' is not a topic config"),
        (
            [("retention.ms", SET, "1"), ("flush.ms", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "flush.ms must be between",
        ),
        (
            [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            "config 'flush.ms' is repeated",
        ),
    ],
)
def test_of_changes_of_which_one_cannot_be_none_is_made(changes, code, message):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            topic = await node.topics.create("a")
            ((found, words),) = await change(node, (TOPIC, "a", changes))
            assert found == code
            assert message in (words or "")
            assert topic.config.overrides == {}

    run()

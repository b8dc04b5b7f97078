"""Settings of a node, under Kafka's names.

A node is set up by its own configuration, and reports the result under these names. Clients can
change those in `DYNAMIC_NODE_FIELDS`; the others are read-only. Settings that Kafka does not have
start with `millstream.`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from millstream.broker.topics.configs.topic_setting import SettingType
from millstream.broker.topics.configs.topic_settings import TOPIC_CONFIGS
from millstream.config.schema import BrokerConfig, Endpoint, KafkaConfig, LogConfig

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """One setting of a node."""

    name: str
    """Kafka's name."""
    field: str
    """Our name: a field of `BrokerConfig`, `KafkaConfig` or `LogConfig`; empty if the value is
    fixed."""
    kind: SettingType
    value: str
    default: str
    """The value of a node that does not set it."""
    meaning: str
    is_dynamic: bool = False
    """Whether clients can change it."""


BROKER_NAMES: dict[str, str] = {
    "node_id": "node.id",
    "auto_create_topics": "auto.create.topics.enable",
    "num_partitions": "num.partitions",
    "group_initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
    "group_session_timeout_ms_min": "group.min.session.timeout.ms",
    "group_session_timeout_ms_max": "group.max.session.timeout.ms",
    "group_members_max": "group.max.size",
    "consumer_session_timeout_ms": "group.consumer.session.timeout.ms",
    "consumer_heartbeat_interval_ms": "group.consumer.heartbeat.interval.ms",
    "offsets_retention_ms": "offsets.retention.minutes",
    "offset_metadata_bytes_max": "offset.metadata.max.bytes",
    "transaction_timeout_ms_max": "transaction.max.timeout.ms",
    "transactional_id_expiration_ms": "transactional.id.expiration.ms",
    "producer_id_expiration_ms": "producer.id.expiration.ms",
}
"""Kafka's names of the fields of `BrokerConfig`."""

KAFKA_SERVER_NAMES: dict[str, str] = {
    "request_size_max": "socket.request.max.bytes",
    "connections_max": "max.connections",
    "connections_per_address_max": "max.connections.per.ip",
    "idle_ms_max": "connections.max.idle.ms",
    "fetch_bytes_max": "fetch.max.bytes",
    "fetch_sessions_max": "max.incremental.fetch.session.cache.slots",
}
"""Kafka's names of the fields of `KafkaConfig`."""

GROUP_NAMES: dict[str, str] = {
    "consumer_session_timeout_ms": "consumer.session.timeout.ms",
    "consumer_heartbeat_interval_ms": "consumer.heartbeat.interval.ms",
}
"""Kafka's names, in the configs of a group, of those fields of `BrokerConfig` that apply to it."""

DYNAMIC_NODE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "max.connections": "connections_max",
        "max.connections.per.ip": "connections_per_address_max",
        "millstream.limit.producer.bytes.per.second": "limit_producer_bytes_per_second",
        "millstream.limit.consumer.bytes.per.second": "limit_consumer_bytes_per_second",
        "millstream.limit.request.percent": "limit_request_percent",
        "millstream.limit.mutations.per.second": "limit_mutations_per_second",
    }
)
"""Settings of a node that clients can change, and the fields that they stand for."""

FIXED_SETTINGS = (
    NodeSetting(
        "delete.topic.enable",
        "",
        SettingType.BOOLEAN,
        "true",
        "true",
        "Topics can always be deleted.",
    ),
)


def node_settings(
    broker: BrokerConfig, kafka: KafkaConfig, log: LogConfig, *, default_factor: int = 1
) -> Sequence[NodeSetting]:
    """Return all settings of a node, sorted by name.

    `default_factor` is the number of replicas of a topic that is created without one.
    """
    return sorted(
        [
            *_named(broker, BrokerConfig(), lambda field: BROKER_NAMES.get(field, _ours(field))),
            *_named(
                kafka, KafkaConfig(), lambda field: KAFKA_SERVER_NAMES.get(field, _ours(field))
            ),
            *_topic_defaults(log),
            *FIXED_SETTINGS,
            NodeSetting(
                "default.replication.factor",
                "",
                SettingType.INT,
                str(default_factor),
                str(default_factor),
                "Replicas of a topic that is created without a replication factor: as many as"
                " topics.replicas says, or as there are nodes.",
            ),
        ],
        key=lambda setting: setting.name,
    )


def listener_settings(listener: Endpoint, advertised: Endpoint) -> Sequence[NodeSetting]:
    """Return the addresses of the Kafka server in Kafka's notation."""
    return [
        NodeSetting(
            name, "", SettingType.STRING, f"PLAINTEXT://{endpoint}", "PLAINTEXT://:9092", meaning
        )
        for name, endpoint, meaning in (
            ("advertised.listeners", advertised, "The address that clients are told to use."),
            ("listeners", listener, "The address at which the Kafka server listens."),
        )
    ]


def group_settings(broker: BrokerConfig) -> Sequence[NodeSetting]:
    """Return the settings of all consumer groups of the node, sorted by name."""
    settings = _named(broker, BrokerConfig(), lambda field: GROUP_NAMES.get(field, ""))
    return sorted((item for item in settings if item.name), key=lambda item: item.name)


def _ours(field: str) -> str:
    return "millstream." + field.replace("_", ".")


def _named(config: Any, default: Any, name_of: Callable[[str], str]) -> list[NodeSetting]:
    return [
        NodeSetting(
            name := name_of(field.name),
            field.name,
            SettingType.BOOLEAN
            if isinstance(value := getattr(config, field.name), bool)
            else SettingType.LONG,
            _text(name, value),
            _text(name, getattr(default, field.name)),
            f"Set as `{field.name}` in the configuration of the node.",
            is_dynamic=name in DYNAMIC_NODE_FIELDS or name in GROUP_NAMES.values(),
        )
        for field in fields(config)
    ]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value // MINUTE_MS if name.endswith(".minutes") else value)


def _topic_defaults(log: LogConfig) -> list[NodeSetting]:
    """Return the node's defaults of topic configs, under Kafka's names for them."""
    return [
        NodeSetting(
            setting.server_name,
            setting.log_field or "",
            setting.kind,
            setting.default_of(log),
            setting.default,
            f"Default of `{setting.name}` for all topics. {setting.meaning}",
        )
        for setting in TOPIC_CONFIGS.values()
        if setting.server_name is not None
    ]

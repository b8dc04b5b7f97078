"""All keys with their names: one table, derived from the fields of the configs.

    [kafka]                     a table of the file, named after its subject
    connections_max = 5000      kafka.connections_max, MILLSTREAM_KAFKA_CONNECTIONS_MAX

A field becomes a key in the table of its class under its own name, unless `_NAMES` renames it. So a
field that is added to a config can be set from then on, and has its entry in the manual.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from millstream.config.schema import (
    AccessConfig,
    BrokerConfig,
    ClusterConfig,
    Endpoint,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    LoggingConfig,
    NativeConfig,
    NodeConfig,
    OAuthConfig,
    OutboundConfig,
    StoreConfig,
    TelemetryConfig,
    TierConfig,
    TlsConfig,
)

PREFIX = "MILLSTREAM_"
"""Prefix of all our environment variables."""

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
"""Names the file to read."""


class ConfigKeyType(enum.Enum):
    """Type of the value of a key."""

    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"
    RATIO = "ratio"
    SWITCH = "switch"
    CHOICE = "choice"
    ENDPOINT = "endpoint"
    PATH = "path"
    URL = "url"
    LABEL = "label"
    HOSTS = "hosts"
    ORIGINS = "origins"
    CLUSTER_NAME = "cluster name"
    SERVER_URLS = "server urls"
    CPUS = "processors"
    PRINCIPAL_RULES = "principal rules"
    USERS = "users"
    MECHANISMS = "mechanisms"
    ALGORITHMS = "algorithms"
    SERVERS = "servers"
    NETWORKS = "networks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One setting: its names, type, default and limits."""

    table: str
    name: str
    part: str
    """The field of `NodeConfig` with the config that it belongs to; empty for `NodeConfig`
    itself.
    """
    field: str
    kind: ConfigKeyType
    default: Any
    is_optional: bool
    """Whether it can be `none`."""
    limits: tuple[int, int] | None
    choices: tuple[enum.Enum, ...]
    flag: str
    """The option of `millstream serve`; empty if there is only `--set`."""
    short_variable: str
    """A shorter variable that sets it too; empty if there is none."""

    @property
    def path(self) -> str:
        """Table and name: the full name of the key."""
        return f"{self.table}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{PREFIX}{self.table}_{self.name}".upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables that set it."""
        return (self.variable, self.short_variable) if self.short_variable else (self.variable,)


TABLES: Mapping[str, str] = {
    "node": "the node itself",
    "kafka": "the Kafka server: its address and its limits",
    "http": "the HTTP server: its address and its limits",
    "native": "the native server: its address and its limits",
    "topics": "defaults of topics",
    "storage": "all logs together: disk, memory, maintenance",
    "tier": "the cold store, and what is moved there",
    "groups": "consumer groups and their offsets",
    "queues": "queues and their leases",
    "transactions": "transactions, publications and producers",
    "limits": "clients without a quota of their own, and how much clients may create",
    "logging": "the log on standard error",
    "telemetry": "traces and metrics for an OpenTelemetry collector",
    "cluster": "the cluster that the node belongs to, and etcd",
    "tls": "TLS for clients: certificates of the node and of clients",
    "access": "logins and rights",
    "oauth": "logins by JWTs that another server issues",
    "outbound": "requests that the node sends to other servers",
}
"""The tables of a file, in the order in which they are shown."""

PARTS: Mapping[str, tuple[type, str]] = {
    "": (NodeConfig, "node"),
    "broker": (BrokerConfig, "node"),
    "kafka_server": (KafkaConfig, "kafka"),
    "http_server": (HttpConfig, "http"),
    "native_server": (NativeConfig, "native"),
    "log": (LogConfig, "topics"),
    "store": (StoreConfig, "storage"),
    "tier": (TierConfig, "tier"),
    "logging": (LoggingConfig, "logging"),
    "telemetry": (TelemetryConfig, "telemetry"),
    "cluster": (ClusterConfig, "cluster"),
    "tls": (TlsConfig, "tls"),
    "access": (AccessConfig, "access"),
    "oauth": (OAuthConfig, "oauth"),
    "outbound": (OutboundConfig, "outbound"),
}
"""Each config of a node by its field in `NodeConfig`, with the table that its fields belong to."""

_NAMES: Mapping[tuple[str, str], str] = {
    ("", "kafka"): "kafka.listen",
    ("", "http"): "http.listen",
    ("", "native"): "native.listen",
    ("", "advertised"): "kafka.advertise",
    ("", "is_insecure"): "node.insecure",
    ("broker", "node_id"): "node.id",
    ("broker", "auto_create_topics"): "topics.auto_create",
    ("broker", "adopt_topics"): "topics.adopt",
    ("broker", "num_partitions"): "topics.partitions",
    ("cluster", "replicas"): "topics.replicas",
    ("broker", "transactional_id_expiration_ms"): "transactions.id_expiration_ms",
    ("broker", "producer_id_expiration_ms"): "transactions.producer_id_expiration_ms",
}
"""Keys that are named differently from their field, by part and field."""

_PREFIXES: Mapping[str, str] = {
    "group_": "groups.",
    "consumer_": "groups.consumer_",
    "offset_": "groups.offset_",
    "offsets_": "groups.offsets_",
    "queue_": "queues.",
    "transaction_": "transactions.",
    "publication_": "transactions.publication_",
    "limit_": "limits.",
}
"""Prefixes of broker fields that belong to other tables."""

TOPIC_ONLY_FIELDS: Mapping[tuple[str, str], str] = {
    ("log", "is_compacted"): "set for a topic with `cleanup.policy`",
    ("log", "is_tiered"): "set for a topic with `remote.storage.enable`",
    ("log", "local_retention_ms"): "set for a topic with `local.retention.ms`",
    ("log", "local_retention_bytes"): "set for a topic with `local.retention.bytes`",
    ("log", "batch_size_max"): "set for a topic with `max.message.bytes`",
}
"""Fields that have no key, because every topic has a value of its own."""

_TEXTS: Mapping[tuple[str, str], ConfigKeyType] = {
    ("native_server", "default_topic"): ConfigKeyType.LABEL,
    ("http_server", "allowed_hosts"): ConfigKeyType.HOSTS,
    ("http_server", "allowed_origins"): ConfigKeyType.ORIGINS,
    ("telemetry", "endpoint"): ConfigKeyType.URL,
    ("telemetry", "service_name"): ConfigKeyType.LABEL,
    ("cluster", "etcd"): ConfigKeyType.SERVER_URLS,
    ("cluster", "name"): ConfigKeyType.CLUSTER_NAME,
    ("cluster", "etcd_user"): ConfigKeyType.LABEL,
    ("cluster", "rack"): ConfigKeyType.LABEL,
    ("tier", "store"): ConfigKeyType.LABEL,
    ("", "cpus"): ConfigKeyType.CPUS,
    ("store", "maintenance_cpus"): ConfigKeyType.CPUS,
    ("tls", "principal_rules"): ConfigKeyType.PRINCIPAL_RULES,
    ("access", "super_users"): ConfigKeyType.USERS,
    ("access", "sasl_mechanisms"): ConfigKeyType.MECHANISMS,
    ("oauth", "issuer"): ConfigKeyType.LABEL,
    ("oauth", "audience"): ConfigKeyType.LABEL,
    ("oauth", "principal_claim"): ConfigKeyType.LABEL,
    ("oauth", "jwks_url"): ConfigKeyType.URL,
    ("oauth", "algorithms"): ConfigKeyType.ALGORITHMS,
    ("outbound", "allowed_hosts"): ConfigKeyType.SERVERS,
    ("outbound", "allowed_networks"): ConfigKeyType.NETWORKS,
}
"""Text fields that are not paths, and lists, by part and field."""

_FLAGS: Mapping[str, str] = {
    "node.data": "--data",
    "node.id": "--node-id",
    "node.insecure": "--insecure",
    "node.processes": "--processes",
    "node.cpus": "--cpus",
    "kafka.listen": "--kafka",
    "kafka.advertise": "--advertise",
    "http.listen": "--http",
    "native.listen": "--native",
    "topics.durability": "--durability",
    "topics.partitions": "--partitions",
    "topics.auto_create": "--auto-create",
    "cluster.etcd": "--etcd",
    "cluster.name": "--cluster-name",
    "cluster.peer": "--peer",
    "cluster.peer_advertised": "--advertise-peer",
    "cluster.rack": "--rack",
    "logging.level": "--log-level",
    "logging.format": "--log-format",
}

_SHORT_VARIABLES: Mapping[str, str] = {
    "node.data": "MILLSTREAM_DATA",
    "node.insecure": "MILLSTREAM_INSECURE",
    "node.processes": "MILLSTREAM_PROCESSES",
    "node.cpus": "MILLSTREAM_CPUS",
    "kafka.listen": "MILLSTREAM_KAFKA",
    "kafka.advertise": "MILLSTREAM_ADVERTISE",
    "http.listen": "MILLSTREAM_HTTP",
    "native.listen": "MILLSTREAM_NATIVE",
    "topics.durability": "MILLSTREAM_DURABILITY",
    "topics.partitions": "MILLSTREAM_PARTITIONS",
    "topics.auto_create": "MILLSTREAM_AUTO_CREATE",
    "cluster.etcd": "MILLSTREAM_ETCD",
    "cluster.peer": "MILLSTREAM_PEER",
    "cluster.peer_advertised": "MILLSTREAM_ADVERTISE_PEER",
    "cluster.rack": "MILLSTREAM_RACK",
    "logging.level": "MILLSTREAM_LOG_LEVEL",
    "logging.format": "MILLSTREAM_LOG_FORMAT",
}


def _path(part: str, field: str) -> str:
    if (part, field) in _NAMES:
        return _NAMES[part, field]
    if part == "broker":
        for prefix, place in _PREFIXES.items():
            if field.startswith(prefix):
                return place + field.removeprefix(prefix)
    return f"{PARTS[part][1]}.{field}"


def _kind(name: str, hint: Any) -> ConfigKeyType:
    """Return the type of a field's value, from its Python type and the words of its name."""
    if hint is int:
        words = name.split("_")
        if "ms" in words:
            return ConfigKeyType.TIME
        return ConfigKeyType.BYTES if "bytes" in words or "size" in words else ConfigKeyType.COUNT
    kinds = {
        bool: ConfigKeyType.SWITCH,
        float: ConfigKeyType.RATIO,
        str: ConfigKeyType.PATH,
        Endpoint: ConfigKeyType.ENDPOINT,
    }
    return kinds.get(hint, ConfigKeyType.CHOICE)


def _keys() -> Iterator[ConfigKey]:
    for part, (config, _) in PARTS.items():
        hints = typing.get_type_hints(config)
        defaults = config()
        for field in fields(config):
            hint = hints[field.name]
            if (field.name in PARTS and not part) or (part, field.name) in TOPIC_ONLY_FIELDS:
                continue
            is_optional = isinstance(hint, types.UnionType)
            if is_optional:
                hint = typing.get_args(hint)[0]
            path = _path(part, field.name)
            table, _, name = path.partition(".")
            kind = _TEXTS.get((part, field.name)) or _kind(field.name, hint)
            yield ConfigKey(
                table=table,
                name=name,
                part=part,
                field=field.name,
                kind=kind,
                default=getattr(defaults, field.name),
                is_optional=is_optional,
                limits=vars(config).get("_limits", {}).get(field.name),
                choices=tuple(hint) if kind is ConfigKeyType.CHOICE else (),
                flag=_FLAGS.get(path, ""),
                short_variable=_SHORT_VARIABLES.get(path, ""),
            )


_ORDER = list(TABLES)

KEYS: Mapping[str, ConfigKey] = {
    key.path: key for key in sorted(_keys(), key=lambda key: _ORDER.index(key.table))
}
"""All keys by path, table by table."""

VARIABLES: Mapping[str, ConfigKey] = {name: key for key in KEYS.values() for name in key.variables}
"""All keys by the variables that set them."""

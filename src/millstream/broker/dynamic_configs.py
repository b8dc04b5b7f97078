"""Configs that clients change while the node runs: of the node, and of consumer groups.

They are stored in metadata, take effect at once, and precede the configuration file:

    configs/nodes            all nodes
    configs/node/ID          one node, before those of all nodes
    configs/group/GROUP      one consumer group

All other settings of a node are read-only. Names are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.topics.configs.node_settings import DYNAMIC_NODE_FIELDS, GROUP_NAMES
from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.config.schema import BrokerConfig, InvalidField, KafkaConfig
from millstream.errors import CorruptFile, InvalidConfig, InvalidRequest, Unavailable, UnknownFormat
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    Metadata,
    MetadataChange,
    Watch,
)

CONFIGS_PREFIX = "configs/"
ALL_NODES = CONFIGS_PREFIX + "nodes"
"""The key of the configs of all nodes."""

ROW_VERSION = 1

GROUPS_MAX = 10_000
"""Groups that may have configs of their own: a list of them has to fit in one response."""

GROUP_FIELDS: Mapping[str, str] = MappingProxyType(
    {name: field for field, name in GROUP_NAMES.items()}
)
"""Fields of `BrokerConfig` by the names of group configs."""

REPLICATION_THROTTLES = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Throttles of Kafka that no node has. `kafka-reassign-partitions --verify` clears them, whether
they were set or not, so clearing them succeeds; setting them is refused.
"""

_NODE_PREFIX = CONFIGS_PREFIX + "node/"
_GROUP_PREFIX = CONFIGS_PREFIX + "group/"
_DIGITS_MAX = 18
_SESSION, _HEARTBEAT = "consumer_session_timeout_ms", "consumer_heartbeat_interval_ms"

C = TypeVar("C", BrokerConfig, KafkaConfig)


class ConfigsRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored configs of one node or group."""

    version: int
    configs: Mapping[str, str]


def node_key(node_id: int) -> str:
    """Return the metadata key of the configs of one node."""
    return f"{_NODE_PREFIX}{node_id}"


def is_node_key(key: str) -> bool:
    """Return whether a metadata key is that of the configs of one node."""
    return key.startswith(_NODE_PREFIX)


def group_key(group_id: str) -> str:
    """Return the metadata key of the configs of one group."""
    return _GROUP_PREFIX + quote(group_id, safe="")


class DynamicConfigs:
    """The configs that clients have changed. One event loop owns it."""

    def __init__(self, metadata: Metadata, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._config = config
        self._configs: dict[str, Mapping[str, str]] = {}
        self._revisions: dict[str, int] = {}
        self._locks = KeyedLocks()
        self.on_node_change: list[Callable[[], None]] = []
        """Called after the configs of the node have changed."""
        self.on_group_change: list[Callable[[str], None]] = []
        """Called with the id of a group whose configs have changed."""

    async def open(self) -> None:
        """Load what was stored."""
        for entry in await self._metadata.list(CONFIGS_PREFIX):
            self._configs[entry.key] = _decode(entry.key, entry.value)
            self._revisions[entry.key] = entry.revision

    def follow(self) -> Watch:
        """Apply what other nodes of a cluster change, from now on. Call it before `open`."""
        return self._metadata.watch(CONFIGS_PREFIX, self._on_change)

    def _on_change(self, change: MetadataChange) -> None:
        key = change.key
        if change.revision <= self._revisions.get(key, ABSENT):
            return
        if change.value is None:
            if self._configs.pop(key, None) is None:
                return
            del self._revisions[key]
        else:
            configs = _decode(key, change.value)
            self._configs[key], self._revisions[key] = configs, change.revision
        self._notify(key)

    async def close(self) -> None:
        """Reject further changes, and wait for those that were started."""
        await self._locks.close()

    # Reading.

    def of(self, key: str) -> Mapping[str, str]:
        """Return the configs that were set for a key, by name."""
        return self._configs.get(key, {})

    def groups(self) -> list[str]:
        """Return the groups that have configs of their own, sorted."""
        keys = (key for key in self._configs if key.startswith(_GROUP_PREFIX))
        return sorted(unquote(key.removeprefix(_GROUP_PREFIX)) for key in keys)

    def broker_config(self) -> BrokerConfig:
        """Return the effective config of the node's topics, groups and transactions."""
        return self._applied(self._config, self._node_configs(), DYNAMIC_NODE_FIELDS)

    def kafka_config(self, config: KafkaConfig) -> KafkaConfig:
        """Return the effective config of a Kafka server with the config `config`."""
        return self._applied(config, self._node_configs(), DYNAMIC_NODE_FIELDS)

    def group_config(self, group_id: str) -> BrokerConfig:
        """Return the effective config of one group."""
        return self._applied(self._config, self.of(group_key(group_id)), GROUP_FIELDS)

    def _node_configs(self) -> Mapping[str, str]:
        return {**self.of(ALL_NODES), **self.of(node_key(self._config.node_id))}

    def _applied(self, config: C, configs: Mapping[str, str], fields: Mapping[str, str]) -> C:
        values: dict[str, Any] = {
            fields[name]: int(text)
            for name, text in configs.items()
            if name in fields and hasattr(config, fields[name])
        }
        return replace(config, **values) if values else config

    # Changing.

    async def put(
        self, key: str, configs: Mapping[str, str], *, is_validate_only: bool = False
    ) -> None:
        """Replace all configs of a key by these, or only validate that."""
        await self._locks.run(
            key, self._put(key, lambda _: configs, is_validate_only=is_validate_only)
        )

    async def change(
        self, key: str, changes: Sequence[ConfigChange], *, is_validate_only: bool = False
    ) -> None:
        """Change some configs of a key, all of them or none, or only validate that."""
        changes = [change for change in changes if not _clears_throttle(change)]
        _check_names(key, (change.name for change in changes))
        await self._locks.run(
            key,
            self._put(key, lambda old: _changed(old, changes), is_validate_only=is_validate_only),
        )

    async def _put(
        self,
        key: str,
        make: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_validate_only: bool,
    ) -> None:
        old = self.of(key)
        new = {name: text.strip() for name, text in make(old).items()}
        self._check(key, new)
        if is_validate_only or new == old:
            return
        if not old and key.startswith(_GROUP_PREFIX) and len(self.groups()) >= GROUPS_MAX:
            raise InvalidRequest(f"{GROUPS_MAX} groups have configs, limit is {GROUPS_MAX}")
        revision = await self._metadata.transact(
            compares=[Compare(key, self._revisions.get(key, ABSENT))],
            puts={key: _encode(new)} if new else {},
            deletes=() if new else (key,),
        )
        if revision is None:
            raise Unavailable(f"{key} was changed concurrently")
        if revision <= self._revisions.get(key, ABSENT):
            return  # The watch was faster.
        if new:
            self._configs[key], self._revisions[key] = new, revision
        else:
            self._configs.pop(key, None)
            self._revisions.pop(key, None)
        self._notify(key)

    def _notify(self, key: str) -> None:
        if key.startswith(_GROUP_PREFIX):
            for group_changed in self.on_group_change:
                group_changed(unquote(key.removeprefix(_GROUP_PREFIX)))
        else:
            for node_changed in self.on_node_change:
                node_changed()

    def _check(self, key: str, configs: Mapping[str, str]) -> None:
        """Raise unless all of these can be set."""
        _check_names(key, configs)
        fields = _fields_of(key)
        names = {field: name for name, field in fields.items()}
        values: dict[str, Any] = {}
        for name, text in configs.items():
            if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
                raise InvalidConfig(f"{name} must be a whole number, got {text[:100]!r}")
            values[fields[name]] = int(text)
        try:
            for config in (self._config, KafkaConfig()):
                replace(config, **{k: v for k, v in values.items() if hasattr(config, k)})
        except InvalidField as error:
            raise InvalidConfig(error.with_names(names)) from None
        if key.startswith(_GROUP_PREFIX):
            session = values.get(_SESSION, self._config.consumer_session_timeout_ms)
            heartbeat = values.get(_HEARTBEAT, self._config.consumer_heartbeat_interval_ms)
            if heartbeat >= session:
                raise InvalidConfig(
                    f"{names[_HEARTBEAT]} must be less than {names[_SESSION]}, {session},"
                    f" got {heartbeat}"
                )


def _fields_of(key: str) -> Mapping[str, str]:
    return GROUP_FIELDS if key.startswith(_GROUP_PREFIX) else DYNAMIC_NODE_FIELDS


def _check_names(key: str, names: Iterable[str]) -> None:
    """Raise unless configs of these names can be set for the key."""
    fields = _fields_of(key)
    others = sorted(name[:100] for name in names if name not in fields)
    if not others:
        return
    allowed = ", ".join(sorted(fields))
    if fields is GROUP_FIELDS:
        raise InvalidConfig(f"{others[0]!r} is not a group config; allowed are {allowed}")
    raise InvalidRequest(
        f"cannot change {', '.join(others)}: configs of a node are read-only here, except"
        f" {allowed}; change its configuration file"
    )


def _clears_throttle(change: ConfigChange) -> bool:
    is_removed = change.operation is AlterConfigOperation.DELETE
    return is_removed and change.name in REPLICATION_THROTTLES


def _changed(old: Mapping[str, str], changes: Sequence[ConfigChange]) -> Mapping[str, str]:
    configs = dict(old)
    for change in changes:
        match change.operation:
            case AlterConfigOperation.DELETE:
                configs.pop(change.name, None)
            case AlterConfigOperation.SET if change.value is not None:
                configs[change.name] = change.value
            case _:
                raise InvalidConfig(
                    f"{change.name} is not a list: it can only be set, not appended to or"
                    " subtracted from"
                )
    return configs


def _encode(configs: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(ConfigsRow(version=ROW_VERSION, configs=configs))


def _decode(key: str, value: bytes) -> Mapping[str, str]:
    try:
        row = msgspec.json.decode(value, type=ConfigsRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{key} is not a valid row of configs: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    return row.configs

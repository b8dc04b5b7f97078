"""The config of one topic, as a validated value."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from millstream.broker.topics.configs.topic_setting import (
    LONG_MAX,
    SettingType,
    TopicSetting,
    split_list,
)
from millstream.broker.topics.configs.topic_settings import (
    DISCARD,
    DURABILITY,
    FLUSH_MESSAGES,
    FLUSH_MS,
    LAKE_DELETIONS,
    LAKE_POSITIONS,
    LAKE_REQUIRED,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    REMOTE_STORAGE_ENABLE,
    REMOVED_CONFIGS,
    RETENTION_MS,
    RETENTION_RECORDS,
    TOPIC_CONFIGS,
)
from millstream.broker.topics.configs.value_format import (
    VALUE_CHECK,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    TopicValueFormat,
    ValueCheckLevel,
    check_value_check,
    check_value_schema,
)
from millstream.config.schema import Discard, Durability, LogConfig
from millstream.errors import InvalidConfig

LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
DELETE = "delete"

TIME_MS_MAX = 2**53
"""The largest duration that a log accepts. Kafka's limit, in effect the same, is three hundred
million years."""

NO_LIMIT = -1
"""The value of a config without a limit."""

LIKE_RETENTION = -2
"""The value of a local limit that the topic does not set."""

BATCH_SIZE_MAX_LEAST = 1024
"""However small `max.message.bytes` is, the marker that ends a transaction fits."""


class AlterConfigOperation(enum.Enum):
    """How a change affects a config."""

    SET = "set"
    DELETE = "delete"
    """Reset it to its default."""
    APPEND = "append"
    """Add items to a list."""
    SUBTRACT = "subtract"
    """Remove items from a list."""


class ConfigChange(NamedTuple):
    """A change of one config."""

    name: str
    operation: AlterConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The config of one topic. Create it by `parse`, which validates everything."""

    overrides: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The configs that the topic sets itself, as given; all others have their default."""

    node: LogConfig = field(default_factory=LogConfig)
    """The node's default config of logs."""

    cleanup_policy: frozenset[str]
    message_bytes_max: int
    timestamp_type: str
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression_type: str
    durability: Durability
    """The effective class, with `flush.messages` considered."""
    flush_messages: int
    flush_ms: int
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    retention_ms: int | None
    """None is forever; the three limits apply if `cleanup_policy` has `delete`."""
    retention_bytes: int | None
    retention_records: int | None
    discard: Discard
    delete_retention_ms: int
    compaction_lag_min_ms: int
    compaction_lag_max_ms: int
    cleanable_dirty_ratio_min: float
    is_tiered: bool
    local_retention_ms: int | None
    """How long segments stay on the local disk if `is_tiered`; None if that is not limited."""
    local_retention_bytes: int | None
    value_format: TopicValueFormat
    value_schema: str
    """Empty if the values are raw."""
    lake_deletions: str
    """Topic that records deletions by key; empty if none does."""
    lake_positions: Mapping[int, int] | None
    """How far the lake has each partition, if retention waits for it."""
    value_check: ValueCheckLevel

    @classmethod
    def parse(cls, overrides: Mapping[str, str | None], node: LogConfig | None = None) -> Self:
        """Validate the configs of a topic, one by one and in combination, and fill in the defaults.

        Raises `InvalidConfig` with the name, the value and the allowed values.
        """
        node = node or LogConfig()
        values = _defaults(node) | {name: _parse(name, text) for name, text in overrides.items()}
        _check_together(values)
        _check_flush(values, overrides)
        return cls(
            node=node,
            overrides=MappingProxyType(
                {name: text.strip() for name, text in sorted(overrides.items()) if text is not None}
            ),
            cleanup_policy=frozenset(values["cleanup.policy"]),
            message_bytes_max=values["max.message.bytes"],
            timestamp_type=values["message.timestamp.type"],
            timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
            timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
            compression_type=values["compression.type"],
            durability=_durability(values),
            flush_messages=values[FLUSH_MESSAGES],
            flush_ms=values[FLUSH_MS],
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
            index_interval_bytes=values["index.interval.bytes"],
            retention_ms=_limit(values[RETENTION_MS]),
            retention_bytes=_limit(values["retention.bytes"]),
            retention_records=_limit(values[RETENTION_RECORDS]),
            discard=Discard(values[DISCARD]),
            delete_retention_ms=values["delete.retention.ms"],
            compaction_lag_min_ms=values["min.compaction.lag.ms"],
            compaction_lag_max_ms=values["max.compaction.lag.ms"],
            cleanable_dirty_ratio_min=values["min.cleanable.dirty.ratio"],
            is_tiered=values[REMOTE_STORAGE_ENABLE],
            local_retention_ms=_local_limit(values, LOCAL_RETENTION_MS),
            local_retention_bytes=_local_limit(values, LOCAL_RETENTION_BYTES),
            value_format=TopicValueFormat(values[VALUE_FORMAT]),
            value_schema=values[VALUE_SCHEMA],
            lake_deletions=values[LAKE_DELETIONS],
            lake_positions=_lake_positions(values) if values[LAKE_REQUIRED] else None,
            value_check=ValueCheckLevel(values[VALUE_CHECK]),
        )

    @property
    def is_compacted(self) -> bool:
        """Whether records need keys."""
        return COMPACT in self.cleanup_policy

    @property
    def checked_values(self) -> tuple[str, str] | None:
        """Format and schema that values must have; `None` if they are not checked."""
        if self.value_check is ValueCheckLevel.NONE:
            return None
        return self.value_format.value, self.value_schema

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker sets the timestamps of records."""
        return self.timestamp_type == LOG_APPEND_TIME

    def value(self, name: str) -> str:
        """Return a config as text: the topic's own value, or the default."""
        own = self.overrides.get(name)
        return setting_named(name).default_of(self.node) if own is None else own

    def log_config(self) -> LogConfig:
        """Return the config of the topic's logs."""
        age = self.segment_ms
        if self.is_compacted:
            age = min(age, self.compaction_lag_max_ms)
        is_limited = DELETE in self.cleanup_policy
        return replace(
            self.node,
            durability=self.durability,
            flush_ms=min(self.flush_ms, TIME_MS_MAX),
            flush_records=self.flush_messages,
            segment_bytes_max=self.segment_bytes,
            segment_age_ms_max=min(age, TIME_MS_MAX),
            index_interval_bytes=self.index_interval_bytes,
            batch_size_max=max(self.message_bytes_max, BATCH_SIZE_MAX_LEAST),
            retention_ms=_time(self.retention_ms) if is_limited else None,
            retention_bytes=self.retention_bytes if is_limited else None,
            retention_records=self.retention_records if is_limited else None,
            discard=self.discard,
            is_compacted=self.is_compacted,
            tombstone_ms=min(self.delete_retention_ms, TIME_MS_MAX),
            dirty_ratio_min=self.cleanable_dirty_ratio_min,
            compaction_lag_ms_min=min(self.compaction_lag_min_ms, TIME_MS_MAX),
            compaction_lag_ms_max=_time(self.compaction_lag_max_ms),
            is_tiered=self.is_tiered,
            local_retention_ms=_local_time(self.local_retention_ms),
            local_retention_bytes=self.local_retention_bytes,
        )

    def lake_position(self, partition: int) -> int | None:
        """Return the first offset that the lake still needs; `None` if retention does not wait."""
        return None if self.lake_positions is None else self.lake_positions.get(partition, 0)

    def changed(self, changes: Sequence[ConfigChange]) -> Self:
        """Return the config after some changes, applied in their order."""
        overrides: dict[str, str | None] = dict(self.overrides)
        for change in changes:
            _apply(overrides, change)
        return type(self).parse(overrides, self.node)

    def check_successor(self, other: TopicConfig) -> None:
        """Raise `InvalidConfig` unless a topic can be changed from this config to `other`."""
        if (Durability.EPHEMERAL in (self.durability, other.durability)) and (
            self.durability is not other.durability
        ):
            raise InvalidConfig(
                f"{DURABILITY} cannot be changed from {self.durability.value} to"
                f" {other.durability.value}: a topic cannot become or cease to be ephemeral"
            )


def setting_named(name: str) -> TopicSetting:
    """Return the declaration of a config; raises `InvalidConfig` if it does not exist."""
    if setting := TOPIC_CONFIGS.get(name):
        return setting
    if why := REMOVED_CONFIGS.get(name):
        raise InvalidConfig(f"{name} was removed in Kafka 4: {why}")
    raise InvalidConfig(f"{name[:100]!r} is not a topic config")


@cache
def _defaults(node: LogConfig) -> dict[str, Any]:
    return {
        name: setting.parse(setting.default_of(node)) for name, setting in TOPIC_CONFIGS.items()
    }


def _parse(name: str, text: str | None) -> Any:
    setting = setting_named(name)
    if text is None:
        raise InvalidConfig(f"{name} has no value, it must be {setting.allowed}")
    return setting.parse(text)


def _check_together(values: Mapping[str, Any]) -> None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise InvalidConfig(
            f"min.compaction.lag.ms must be at most max.compaction.lag.ms, {most}, got {least}"
        )
    value_format = TopicValueFormat(values[VALUE_FORMAT])
    check_value_schema(value_format, values[VALUE_SCHEMA])
    check_value_check(value_format, ValueCheckLevel(values[VALUE_CHECK]))
    if values[LAKE_REQUIRED] and COMPACT in values["cleanup.policy"]:
        raise InvalidConfig(
            f"{LAKE_REQUIRED} must be false if cleanup.policy has compact, got true: compaction"
            " removes records before the lake has them"
        )
    _check_tier(values)


def _check_tier(values: Mapping[str, Any]) -> None:
    if not values[REMOTE_STORAGE_ENABLE]:
        return
    if COMPACT in values["cleanup.policy"]:
        raise InvalidConfig(
            f"{REMOTE_STORAGE_ENABLE} must be false if cleanup.policy has compact, got true:"
            " segments in a cold store are not rewritten"
        )
    if values[DURABILITY] == Durability.EPHEMERAL.value:
        raise InvalidConfig(
            f"{REMOTE_STORAGE_ENABLE} must be false if {DURABILITY} is ephemeral, got true"
        )


def _lake_positions(values: Mapping[str, Any]) -> Mapping[int, int]:
    pairs = (item.split(":") for item in values[LAKE_POSITIONS])
    return MappingProxyType({int(partition): int(offset) for partition, offset in pairs})


def _check_flush(values: Mapping[str, Any], overrides: Mapping[str, str | None]) -> None:
    """Refuse to flush a topic that has no file. Defaults of the node do not apply to it."""
    if values[DURABILITY] == Durability.EPHEMERAL.value:
        for name in (FLUSH_MESSAGES, FLUSH_MS):
            if name in overrides:
                raise InvalidConfig(
                    f"{name} must not be set if {DURABILITY} is ephemeral: records that are kept"
                    " in memory only cannot be flushed"
                )


def _limit(value: int) -> int | None:
    return None if value == NO_LIMIT else value


def _local_limit(values: Mapping[str, Any], name: str) -> int | None:
    """Return a limit of the local disk; None if the hot segments of the node are the only one.

    A topic that sets one of both limits has no limit of the other kind.
    """
    value: int = values[name]
    if value >= 0:
        return value
    is_default = values[LOCAL_RETENTION_MS] == values[LOCAL_RETENTION_BYTES] == LIKE_RETENTION
    return None if is_default or name == LOCAL_RETENTION_BYTES else LONG_MAX


def _local_time(limit_ms: int | None) -> int | None:
    """Return a time as logs accept it; one that is too long to matter stays a limit."""
    return None if limit_ms is None else min(limit_ms, TIME_MS_MAX)


def _time(limit_ms: int | None) -> int | None:
    """Return a duration as logs accept it: None if it is too long to matter."""
    return None if limit_ms is None or limit_ms >= TIME_MS_MAX else limit_ms


def _durability(values: Mapping[str, Any]) -> Durability:
    """Return the requested durability class, or `fsync` if every record is to be flushed."""
    durability = Durability(values[DURABILITY])
    is_flushed = values[FLUSH_MESSAGES] == 1 and durability is not Durability.EPHEMERAL
    return Durability.FSYNC if is_flushed else durability


def _apply(overrides: dict[str, str | None], change: ConfigChange) -> None:
    setting = setting_named(change.name)
    if change.operation is AlterConfigOperation.DELETE:
        overrides.pop(change.name, None)
        return
    if change.value is None:
        raise InvalidConfig(f"{change.name} has no value, it must be {setting.allowed}")
    if change.operation is AlterConfigOperation.SET:
        overrides[change.name] = change.value
        return
    if setting.kind is not SettingType.LIST:
        raise InvalidConfig(
            f"{change.name} is not a list: it can only be set, not appended to or subtracted from"
        )
    present = overrides.get(change.name)
    items = split_list(setting.default if present is None else present)
    changed = split_list(change.value)
    if change.operation is AlterConfigOperation.APPEND:
        items += tuple(item for item in changed if item not in items)
    else:
        items = tuple(item for item in items if item not in changed)
    overrides[change.name] = ",".join(items)

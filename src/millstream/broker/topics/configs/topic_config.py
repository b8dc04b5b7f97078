"""What one topic is set to, as a value that was checked once."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from millstream.broker.topics.configs.topic_setting import SettingType, TopicSetting, split_list
from millstream.broker.topics.configs.topic_settings import (
    DISCARD,
    DURABILITY,
    REMOVED_CONFIGS,
    RETENTION_MS,
    RETENTION_RECORDS,
    TOPIC_CONFIGS,
)
from millstream.broker.topics.configs.value_format import (
    VALUE_FORMAT,
    VALUE_SCHEMA,
    TopicValueFormat,
    check_value_schema,
)
from millstream.config.schema import Discard, Durability, LogConfig
from millstream.errors import InvalidConfig

LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
DELETE = "delete"

TIME_MS_MAX = 2**53
"""The most that a log takes. Kafka's limit, in effect the same, is three hundred million years."""

NO_LIMIT = -1
"""How a config says that there is no limit."""

BATCH_SIZE_MAX_LEAST = 1024
"""However small `max.message.bytes` is, the marker that ends a transaction fits."""


class AlterConfigOperation(enum.Enum):
    """What a change does to a config."""

    SET = "set"
    DELETE = "delete"
    """It has its default again."""
    APPEND = "append"
    """A list has these items too."""
    SUBTRACT = "subtract"
    """A list has these items no more."""


class ConfigChange(NamedTuple):
    """A change of one config."""

    name: str
    operation: AlterConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What one topic is set to. Make it by `parse`, which checks everything."""

    overrides: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the topic sets itself, as it was given; all else is the default."""

    node: LogConfig = field(default_factory=LogConfig)
    """What the node gives all its logs."""

    cleanup_policy: frozenset[str]
    message_bytes_max: int
    timestamp_type: str
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression_type: str
    durability: Durability
    """What holds, `flush.messages` considered."""
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    retention_ms: int | None
    """`None` for ever; that, the bytes and the records hold where `cleanup_policy` has `delete`."""
    retention_bytes: int | None
    retention_records: int | None
    discard: Discard
    delete_retention_ms: int
    compaction_lag_min_ms: int
    compaction_lag_max_ms: int
    cleanable_dirty_ratio_min: float
    value_format: TopicValueFormat
    value_schema: str
    """Empty where the values are raw."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str | None], node: LogConfig | None = None) -> Self:
        """Check what a topic sets, each by itself and together, and fill in the defaults.

        Raises `InvalidConfig` with the name, the value and what is allowed.
        """
        node = node or LogConfig()
        values = _defaults(node) | {name: _parse(name, text) for name, text in overrides.items()}
        _check_together(values)
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
            value_format=TopicValueFormat(values[VALUE_FORMAT]),
            value_schema=values[VALUE_SCHEMA],
        )

    @property
    def is_compacted(self) -> bool:
        """Whether records need keys."""
        return COMPACT in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        """Whether records are dated when they are appended."""
        return self.timestamp_type == LOG_APPEND_TIME

    def value(self, name: str) -> str:
        """Return the config as text: what the topic sets, or the default."""
        own = self.overrides.get(name)
        return setting_named(name).default_of(self.node) if own is None else own

    def log_config(self) -> LogConfig:
        """Return what the topic's logs are set to."""
        age = self.segment_ms
        if self.is_compacted:
            age = min(age, self.compaction_lag_max_ms)
        is_limited = DELETE in self.cleanup_policy
        return replace(
            self.node,
            durability=self.durability,
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
        )

    def changed(self, changes: Sequence[ConfigChange]) -> Self:
        """Return what this is after some changes, in their order."""
        overrides: dict[str, str | None] = dict(self.overrides)
        for change in changes:
            _apply(overrides, change)
        return type(self).parse(overrides, self.node)

    def check_successor(self, other: TopicConfig) -> None:
        """Raise `InvalidConfig` unless a topic that is set to this can be set to `other`."""
        if (Durability.EPHEMERAL in (self.durability, other.durability)) and (
            self.durability is not other.durability
        ):
            raise InvalidConfig(
                f"{DURABILITY} is {self.durability.value} and cannot become"
                f" {other.durability.value}: a topic is ephemeral for all its life or never"
            )


def setting_named(name: str) -> TopicSetting:
    """Return the declaration of a config; raises `InvalidConfig` where there is none."""
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
        raise InvalidConfig(f"{name} has no value, allowed is {setting.allowed}")
    return setting.parse(text)


def _check_together(values: Mapping[str, Any]) -> None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise InvalidConfig(
            f"min.compaction.lag.ms is {least}, allowed is at most max.compaction.lag.ms, {most}"
        )
    if values["flush.messages"] == 1 and values[DURABILITY] == Durability.EPHEMERAL.value:
        raise InvalidConfig(
            f"flush.messages is 1 and {DURABILITY} is ephemeral: what is kept in memory only"
            " cannot be flushed"
        )
    check_value_schema(TopicValueFormat(values[VALUE_FORMAT]), values[VALUE_SCHEMA])


def _limit(value: int) -> int | None:
    return None if value == NO_LIMIT else value


def _time(limit_ms: int | None) -> int | None:
    """Return a limit as logs take it: one so far away that it is none, as none."""
    return None if limit_ms is None or limit_ms >= TIME_MS_MAX else limit_ms


def _durability(values: Mapping[str, Any]) -> Durability:
    """What an acknowledgement promises: as asked, or more where every record is to be flushed."""
    return Durability.FSYNC if values["flush.messages"] == 1 else Durability(values[DURABILITY])


def _apply(overrides: dict[str, str | None], change: ConfigChange) -> None:
    setting = setting_named(change.name)
    if change.operation is AlterConfigOperation.DELETE:
        overrides.pop(change.name, None)
        return
    if change.value is None:
        raise InvalidConfig(f"{change.name} has no value, allowed is {setting.allowed}")
    if change.operation is AlterConfigOperation.SET:
        overrides[change.name] = change.value
        return
    if setting.kind is not SettingType.LIST:
        raise InvalidConfig(
            f"{change.name} is no list: it can be set, and not be appended to or subtracted from"
        )
    present = overrides.get(change.name)
    items = split_list(setting.default if present is None else present)
    named = split_list(change.value)
    if change.operation is AlterConfigOperation.APPEND:
        items += tuple(item for item in named if item not in items)
    else:
        items = tuple(item for item in items if item not in named)
    overrides[change.name] = ",".join(items)

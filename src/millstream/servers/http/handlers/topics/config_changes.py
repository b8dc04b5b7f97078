"""Changes of topic configs from a request body."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.broker.topics.configs.topic_settings import (
    DISCARD,
    DURABILITY,
    RETENTION_MS,
    RETENTION_RECORDS,
)
from millstream.broker.topics.configs.value_format import VALUE_FORMAT, VALUE_SCHEMA
from millstream.errors import InvalidRequest
from millstream.protocols.http.topics import ConfigValue, SchemaShape, TopicBody

_CONFIGS = {
    "durability": DURABILITY,
    "retention_ms": RETENTION_MS,
    "retention_bytes": "retention.bytes",
    "retention_records": RETENTION_RECORDS,
    "discard": DISCARD,
    "cleanup": "cleanup.policy",
}
"""The config of each field."""


def changes_of(body: TopicBody) -> list[ConfigChange]:
    """Return the changes in a body; raises if it sets a config twice."""
    wanted: dict[str, ConfigValue] = {}
    for field, name in _CONFIGS.items():
        value: ConfigValue | UnsetType = getattr(body, field)
        if not isinstance(value, UnsetType):
            wanted[name] = value
    wanted |= _schema_configs(body.schema)
    for name, value in () if isinstance(body.configs, UnsetType) else body.configs.items():
        if name in wanted:
            raise InvalidRequest(
                f"{name} is set both in configs and by a field of its own: use one of them"
            )
        wanted[name] = value
    return [_change(name, value) for name, value in wanted.items()]


def _schema_configs(schema: SchemaShape | UnsetType | None) -> dict[str, ConfigValue]:
    if schema is UNSET:
        return {}
    if not isinstance(schema, SchemaShape):
        return {VALUE_FORMAT: None, VALUE_SCHEMA: None}
    # One that is empty has not to be stored: it is the default.
    return {VALUE_FORMAT: schema.format, VALUE_SCHEMA: schema.schema or None}


def _change(name: str, value: ConfigValue) -> ConfigChange:
    if value is None:
        return ConfigChange(name, AlterConfigOperation.DELETE)
    if isinstance(value, bool):
        return ConfigChange(name, AlterConfigOperation.SET, "true" if value else "false")
    return ConfigChange(name, AlterConfigOperation.SET, str(value))

"""Format of the values of a query, from its options or from the topics' declarations.

Formats are imported only by processes that apply them, not by every process of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import InvalidConfig
from millstream.formats.names import VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG
from millstream.spark.options import ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.clients.partition import RecordSource
    from millstream.formats.value_format import SchemaLookup, ValueFormat
    from millstream.http1.registered_schema import SchemaRegistryConfig

RAW = "raw"

_registries: dict[SchemaRegistryConfig, SchemaLookup] = {}
"""A query has one registry, so this does not grow."""


@dataclass(frozen=True, slots=True)
class TopicValues:
    """Options and declarations of the values that are read or written."""

    options: ValueOptions
    declared: tuple[tuple[str, str], ...] = ()
    """Topic configs that declare the format and the schema."""

    @property
    def is_typed(self) -> bool:
        declared = dict(self.declared).get(VALUE_FORMAT_CONFIG, RAW)
        return (self.options.format or declared) != RAW

    def fields(self) -> list[pa.Field]:
        """Return the typed columns."""
        from millstream.formats.typed_batch import applied_fields  # noqa: PLC0415

        return applied_fields(self.format(), self.options.on_bad, prefix=self.options.prefix)

    def format(self) -> ValueFormat:
        """Return the format of the values; raises `InvalidConfig` for an invalid schema."""
        from millstream.formats.declaration import choose_format  # noqa: PLC0415

        return choose_format(
            self.options.format_options, dict(self.declared), registry=self._registry()
        )

    def _registry(self) -> SchemaLookup | None:
        """Return the schema registry, if the values have the ids of schemas."""
        declared = dict(self.declared).get(VALUE_FORMAT_CONFIG, RAW)
        if self.options.registry is None or (self.options.format or declared) != "avro":
            return None
        return open_registry(self.options.registry)


def open_registry(config: SchemaRegistryConfig) -> SchemaLookup:
    """Return a schema registry, whose answers this process remembers."""
    from millstream.http1.schema_registry import BlockingRegistry  # noqa: PLC0415

    if config not in _registries:
        _registries[config] = BlockingRegistry(config)
    return _registries[config]


def find_values(source: RecordSource, topics: Sequence[str], options: ValueOptions) -> TopicValues:
    """Return the options, with the declarations of the topics unless an option overrides them.

    A data directory does not have the declarations of its topics. Topics that are read together
    must declare the same, unless an option sets the format.
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415

    if options.format is not None or not isinstance(source, KafkaClient) or not topics:
        return TopicValues(options)
    declared: dict[tuple[tuple[str, str], ...], str] = {}
    for topic, configs in source.topic_configs(topics).items():
        names = (VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG)
        declared[tuple((name, configs[name]) for name in names if configs.get(name))] = topic
    if len(declared) > 1:
        raise InvalidConfig(
            f"topics {sorted(declared.values())} declare different formats or schemas: to read them"
            " together, set the option valueFormat, for instance to raw"
        )
    return TopicValues(options, next(iter(declared)))

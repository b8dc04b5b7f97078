"""How values are typed: as the options say, or as the topics declare.

What a format needs is loaded by whoever applies one, not by every process of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from millstream.errors import InvalidConfig
from millstream.formats.names import VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG
from millstream.spark.options import ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.clients.partition import RecordSource
    from millstream.formats.value_format import ValueFormat

RAW = "raw"

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicValues:
    """What is known of the values that are read or written."""

    options: ValueOptions
    declared: tuple[tuple[str, str], ...] = ()
    """The configs of the topics that say what values are."""

    @property
    def is_typed(self) -> bool:
        """Whether there are typed columns."""
        declared = dict(self.declared).get(VALUE_FORMAT_CONFIG, RAW)
        return (self.options.format or declared) != RAW

    def fields(self) -> list[pa.Field]:
        """Return the columns that typing adds."""
        from millstream.formats.typed_batch import applied_fields  # noqa: PLC0415

        return applied_fields(self.format(), self.options.on_bad, prefix=self.options.prefix)

    def format(self) -> ValueFormat:
        """Return what reads and writes values; raises `InvalidConfig` where a schema is wrong."""
        from millstream.formats.declaration import choose_format  # noqa: PLC0415

        return choose_format(self.options.given, dict(self.declared))


def find_values(place: RecordSource, topics: Sequence[str], options: ValueOptions) -> TopicValues:
    """Return what the options say, and what the topics declare where that matters.

    A data directory tells nothing of what its topics declare. Topics that are read together have
    to declare the same, unless an option says what they are.
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415

    if options.format is not None or not isinstance(place, KafkaClient) or not topics:
        return TopicValues(options)
    declared: dict[tuple[tuple[str, str], ...], str] = {}
    for topic, configs in place.topic_configs(topics).items():
        said = [
            (name, configs.get(name, "")) for name in (VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG)
        ]
        declared[tuple(one for one in said if one[1])] = topic
    if len(declared) > 1:
        raise InvalidConfig(
            f"topics {sorted(declared.values())} declare different values: they are read together"
            " with the option valueFormat, for one thing raw"
        )
    return TopicValues(options, next(iter(declared)))

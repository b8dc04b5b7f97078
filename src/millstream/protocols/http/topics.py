"""Topics over HTTP: what they are set to, and how far they reach."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.protocols.http.records import GapShape

TOPICS_MAX = 1_000
"""Topics in one answer."""

PARTITIONS_MAX = 100_000
"""As many as a node has room for where it is not set otherwise; it may allow fewer."""

CONFIGS_MAX = 100
"""Configs in one request: more than there are."""

_LONG_MAX = 2**63 - 1

Limit: TypeAlias = Annotated[int, Meta(ge=-1, le=_LONG_MAX)]
"""A retention; -1 says that there is none."""

ConfigValue: TypeAlias = (
    Annotated[str, Meta(max_length=64 * 1024)]
    | Annotated[int, Meta(ge=-(2**63), le=_LONG_MAX)]
    | float
    | bool
    | None
)
"""What a config is set to: a text, or what Kafka would write as one."""


class SchemaShape(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the values of a topic are."""

    format: Literal["raw", "json", "avro"]
    schema: Annotated[str, Meta(max_length=0x7FFF)] = ""
    """A Spark schema (JSON or DDL) for `json`, an Avro record for `avro`; none for `raw`."""


class TopicBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a topic is to be set to.

    What is left out stays as it is, or is the default of the node where the topic is new. Null
    has a field be the default again.
    """

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | UnsetType = UNSET
    """How many; a topic only grows."""
    durability: Literal["ephemeral", "memory", "disk", "fsync"] | UnsetType | None = UNSET
    """What an answer to an append promises: `millstream.durability`."""
    retention_ms: Limit | UnsetType | None = UNSET
    """How long records are kept at least, -1 is for ever: `retention.ms`."""
    retention_bytes: Limit | UnsetType | None = UNSET
    """How large a partition may grow, -1 is without limit: `retention.bytes`."""
    retention_records: Limit | UnsetType | None = UNSET
    """The same, counted in records: `millstream.retention.records`."""
    discard: Literal["old", "reject"] | UnsetType | None = UNSET
    """What a full partition does: `millstream.discard`."""
    cleanup: Literal["delete", "compact", "compact,delete", ""] | UnsetType | None = UNSET
    """How old records go, empty is not at all: `cleanup.policy`."""
    schema: SchemaShape | UnsetType | None = UNSET
    """What the values are: `millstream.value.format` and `millstream.value.schema`."""
    configs: Annotated[dict[str, ConfigValue], Meta(max_length=CONFIGS_MAX)] | UnsetType = UNSET
    """Any config of a topic, by the name that Kafka has for it; null for its default."""


class TopicsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which topics to list."""

    after: Annotated[
        str, Meta(max_length=249, description="Only topics whose name comes after this one.")
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=TOPICS_MAX, description="Topics in the answer, at the most.")
    ] = 100
    sizes: Annotated[bool, Meta(description="Whether to tell how much each topic holds.")] = False


class SizesShape(Struct, kw_only=True):
    """How much a topic holds, and how much it was given since the node opened its partitions."""

    records: int
    """Without those that were deleted by key."""
    bytes: int
    segments: int
    appended_records: int
    """Only grows while the node runs: two answers make a rate. So with `appended_bytes`."""
    appended_bytes: int


class TopicSummaryShape(Struct, kw_only=True):
    """A topic, and what it is set to."""

    name: str
    id: str
    """What tells it from every other topic there ever was."""
    partition_count: int
    durability: str
    """What an answer to an append promises."""
    configs: dict[str, str]
    """What the topic sets itself; all else is the default of the node."""


class ListedTopic(TopicSummaryShape, kw_only=True):
    """A topic among others."""

    sizes: SizesShape | UnsetType | None = UNSET
    """Where it was asked for; null where it cannot be told without opening a partition."""


class TopicsAnswer(Struct, kw_only=True):
    """Some topics, by rising name."""

    topics: list[ListedTopic]
    next: str | None
    """What to ask `after` for more; null where there is no more."""


class PartitionShape(Struct, kw_only=True):
    """How far a partition reaches, and what went or waits to go."""

    partition: int
    first_live_offset: int
    eviction_floor: int
    """Retention took everything before it."""
    head: int
    """The offset after the last record that can be read."""
    count: int
    bytes: int
    epoch: int
    segments: int
    deleted: int
    """Records that were deleted by key and are still in a file."""
    reclaimable_bytes: int
    gaps: list[GapShape]


class TopicAnswer(TopicSummaryShape, kw_only=True):
    """A topic with its partitions, and the sums over these."""

    partitions: list[PartitionShape]
    count: int
    bytes: int
    deleted: int
    reclaimable_bytes: int


class ProducerAnswer(Struct, kw_only=True):
    """Who may append in such a way that repeating a request does no harm."""

    id: int
    epoch: int

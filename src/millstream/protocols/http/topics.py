"""Messages about topics: settings, partitions and sizes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.protocols.http.records import GapShape

TOPICS_MAX = 1_000
"""Topics in one response."""

REPLICAS_MAX = 1_000
PARTITIONS_MAX = 100_000
"""The default limit of a node; a node may allow fewer."""

CONFIGS_MAX = 100
"""Configs in one request: more than there are."""

_LONG_MAX = 2**63 - 1

Limit: TypeAlias = Annotated[int, Meta(ge=-1, le=_LONG_MAX)]
"""A retention limit; -1 is unlimited."""

ConfigValue: TypeAlias = (
    Annotated[str, Meta(max_length=64 * 1024)]
    | Annotated[int, Meta(ge=-(2**63), le=_LONG_MAX)]
    | float
    | bool
    | None
)
"""The value of a config: a string, or a value that Kafka would write as one."""


class SchemaShape(Struct, kw_only=True, forbid_unknown_fields=True):
    """Format and schema of the values of a topic."""

    format: Literal["raw", "json", "avro", "msgpack"]
    schema: Annotated[str, Meta(max_length=0x7FFF)] = ""
    """A Spark schema (JSON or DDL) for `json`, an Avro record for `avro`; none for `raw` and
    `msgpack`."""


class TopicBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a topic.

    A field that is left out keeps its value, or gets the node's default if the topic is new. Null
    resets a field to the default.
    """

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | UnsetType = UNSET
    """Number of partitions; it can only grow."""
    replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | UnsetType = UNSET
    """Number of replicas of each partition of a new topic, at most one per node. An existing topic
    keeps its replicas: `POST /v1/cluster/reassign` changes them."""
    durability: Literal["ephemeral", "memory", "disk", "fsync"] | UnsetType | None = UNSET
    """When an append is acknowledged: `millstream.durability`."""
    retention_ms: Limit | UnsetType | None = UNSET
    """Minimum time that records are kept, -1 is forever: `retention.ms`."""
    retention_bytes: Limit | UnsetType | None = UNSET
    """Maximum size of a partition, -1 is unlimited: `retention.bytes`."""
    retention_records: Limit | UnsetType | None = UNSET
    """The same in records: `millstream.retention.records`."""
    discard: Literal["old", "reject"] | UnsetType | None = UNSET
    """Whether a full partition deletes old records or rejects new ones: `millstream.discard`."""
    cleanup: Literal["delete", "compact", "compact,delete", ""] | UnsetType | None = UNSET
    """How old records are deleted, empty for not at all: `cleanup.policy`."""
    schema: SchemaShape | UnsetType | None = UNSET
    """Format of the values: `millstream.value.format` and `millstream.value.schema`."""
    configs: Annotated[dict[str, ConfigValue], Meta(max_length=CONFIGS_MAX)] | UnsetType = UNSET
    """Any topic config by its Kafka name; null for its default."""


class TopicsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The topics to list."""

    after: Annotated[
        str, Meta(max_length=249, description="Only topics whose name sorts after this one.")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=TOPICS_MAX, description="Maximum number of topics.")] = 100
    sizes: Annotated[bool, Meta(description="Whether to include the size of each topic.")] = False


class PutTopicQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What may be done with a topic that exists."""

    create_only: Annotated[
        bool,
        Meta(description="Whether to refuse, with `topic_exists`, to change an existing topic."),
    ] = False


class SizesShape(Struct, kw_only=True):
    """Size of a topic, and what was appended since the node opened its partitions."""

    records: int
    """Without records deleted by key."""
    bytes: int
    segments: int
    appended_records: int
    """A counter while the node runs, as is `appended_bytes`: two responses give a rate."""
    appended_bytes: int


class TopicSummaryShape(Struct, kw_only=True):
    """A topic and its settings."""

    name: str
    id: str
    """Unique among all topics that ever existed."""
    partition_count: int
    durability: str
    """When an append is acknowledged."""
    configs: dict[str, str]
    """Configs that the topic sets; all others have the node's default."""


class ListedTopic(TopicSummaryShape, kw_only=True):
    """A topic in a list."""

    sizes: SizesShape | UnsetType | None = UNSET
    """If requested; null if a partition would have to be opened to know it."""


class TopicsAnswer(Struct, kw_only=True):
    """A page of topics, sorted by name."""

    topics: list[ListedTopic]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""


class PartitionShape(Struct, kw_only=True):
    """Offsets and sizes of a partition."""

    partition: int
    first_live_offset: int
    eviction_floor: int
    """Retention has deleted all records before it."""
    head: int
    """The offset after the last record that can be read."""
    count: int
    bytes: int
    epoch: int
    segments: int
    deleted: int
    """Records deleted by key that are still in a file."""
    reclaimable_bytes: int
    gaps: list[GapShape]
    leader: int | None = None
    """The node that takes appends; null if there is none now."""
    isr: list[int] = []
    """Nodes that have every committed record."""
    replicas: list[int] = []
    """All nodes that store the partition; the first is the preferred leader."""
    stale: bool = False
    """Whether the leader could not be asked: these are the numbers of a replica that may be behind.
    """


class TopicAnswer(TopicSummaryShape, kw_only=True):
    """A topic with its partitions and their totals."""

    partitions: list[PartitionShape]
    count: int
    bytes: int
    deleted: int
    reclaimable_bytes: int


class TopicConfigShape(Struct, kw_only=True):
    """One config of a topic."""

    name: str
    value: str
    """The effective value."""
    default: str
    """The value of a topic that does not set it, on this node."""
    is_set: bool
    """Whether the topic sets it."""
    effect: Literal["applied", "accepted", "fixed"]
    """Whether the node applies it, only stores it, or does not let it be changed."""
    allowed: str
    meaning: str


class TopicConfigsAnswer(Struct, kw_only=True):
    """All configs of a topic, sorted by name."""

    configs: list[TopicConfigShape]


class ProducerAnswer(Struct, kw_only=True):
    """A producer id for idempotent appends."""

    id: int
    epoch: int

"""Settings as frozen values, which are validated once, when they are made.

`LogConfig` holds what can be set for one topic, `StoreConfig` what can be set for one process. No
dictionary of options is passed further inward than here.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from millstream.config.cpus import CPUS_WORDS, are_cpus, format_cpus
from millstream.config.principal_rules import parse_principal_rules
from millstream.config.units import GIB as GIB  # noqa: PLC0414 - limits are stated with these.
from millstream.config.units import KIB as KIB  # noqa: PLC0414
from millstream.config.units import MIB as MIB  # noqa: PLC0414
from millstream.errors import InvalidConfig

DAY_MS = 24 * 60 * 60 * 1000
PORT_MAX = 65_535


class Durability(enum.Enum):
    """How safe a record is when its append is acknowledged."""

    EPHEMERAL = "ephemeral"
    """Kept in memory only; lost when the process ends."""

    MEMORY = "memory"
    """Acknowledged once it is in the process's memory, and written to its file soon after."""

    DISK = "disk"
    """Acknowledged once the kernel has it: survives a crash of the process, and a power cut after
    `flush_ms`.
    """

    FSYNC = "fsync"
    """Acknowledged once it is on the disk: survives a power cut at any moment."""


class Discard(enum.Enum):
    """What happens when a log has reached its limit of bytes or records."""

    OLD = "old"
    """The oldest segments are deleted."""

    REJECT = "reject"
    """Appends that do not fit are rejected; space is freed only by age and by deletion."""


class ReplayPriority(enum.Enum):
    """Disk priority of reads of old data that is not in memory."""

    IDLE = "idle"
    """Read only when nothing else uses the disk, if the kernel supports that."""

    NORMAL = "normal"
    """Read with the same priority as everything else."""


class EventLevel(enum.Enum):
    """Lowest level of the events that a node logs on standard error."""

    DEBUG = "debug"
    """Everything, to find a bug in Millstream."""

    INFO = "info"
    """What the node does, and why."""

    WARNING = "warning"
    """What may need attention."""

    ERROR = "error"
    """What needs attention."""


class EventFormat(enum.Enum):
    """Format of the events on standard error."""

    AUTO = "auto"
    """`pretty` if standard error is a terminal, otherwise `json`."""

    JSON = "json"
    """One JSON object per line, for programs."""

    PRETTY = "pretty"
    """One line with time, level and fields, for people."""


class ConsoleAccess(enum.Enum):
    """What people can do with the console."""

    OFF = "off"
    """Nothing: it is not served."""

    READ = "read"
    """Look at everything and change nothing."""

    WRITE = "write"
    """Also append records, change topics and quotas, reset groups, redrive and purge dead
    letters."""

    @classmethod
    def _missing_(cls, value: object) -> ConsoleAccess | None:
        """Accept the values of earlier releases, in which it could be switched on and off."""
        if value is True or value in ("true", "yes", "on", "1"):
            return cls.READ
        if value is False or value in ("false", "no", "0"):
            return cls.OFF
        return None


class ReadAccess(enum.Enum):
    """Who may read on a node with logins."""

    CLOSED = "closed"
    """Those to whom an ACL allows it."""

    OPEN = "open"
    """Everyone, without a login. Writes need a login and an ACL."""


class InvalidField(InvalidConfig):
    """A field of a config has a value that is not allowed.

    The message is made from a template whose positional places are names of fields, so that a
    caller who knows the fields by other names (keys of a file) can put these in.
    """

    def __init__(self, template: str, *fields: str, **values: Any) -> None:
        super().__init__(template.format(*fields, **values))
        self.fields = fields
        self._template = template
        self._values = values

    def with_names(self, names: Mapping[str, str]) -> str:
        """Return the message with the fields called by `names`."""
        fields = (names.get(field, field) for field in self.fields)
        return self._template.format(*fields, **self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidConfig, self.args


class _Limited:
    """Base of all configs: checks every whole number against its limits."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {}
    _optional: ClassVar[frozenset[str]] = frozenset()
    """Numbers that may be `None`, for no limit."""

    def __post_init__(self) -> None:
        for name, (least, most) in self._limits.items():
            value = getattr(self, name)
            if value is not None or name not in self._optional:
                _check_number(name, value, least, most)


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidField("{} must be a whole number, got {value!r}", name, value=value)
    if not least <= value <= most:
        words = "{} must be between {least} and {most}, got {value}"
        raise InvalidField(words, name, least=least, most=most, value=value)


def _check_member(name: str, value: Any, kind: type[enum.Enum]) -> None:
    if not isinstance(value, kind):
        raise InvalidField(
            "{} must be one of {allowed}, got {value!r}", name, allowed=_listed(kind), value=value
        )


def _check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidField("{} must be True or False, got {value!r}", name, value=value)


def _check_texts(name: str, value: Any, is_allowed: Callable[[Any], bool], words: str) -> None:
    if not isinstance(value, tuple) or not all(map(is_allowed, value)):
        raise InvalidField(f"{{}} must be {words}, got {{value!r}}", name, value=value)


def _check_cpus(name: str, value: Any) -> None:
    if not are_cpus(value):
        raise InvalidField(f"{{}} must be {CPUS_WORDS}, got {{value!r}}", name, value=value)


def _check_ratio(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidField("{} must be a number from 0 to 1, got {value!r}", name, value=value)


def _check_at_most(config: Any, name: str, limit_name: str) -> None:
    """Check one field against another, which may be `None`, for no limit."""
    value, limit = getattr(config, name), getattr(config, limit_name)
    if limit is not None and value > limit:
        words = "{} must be at most {}, which is {limit}, got {value}"
        raise InvalidField(words, name, limit_name, limit=limit, value=value)


def _check_together(config: Any, first: str, second: str) -> None:
    """Check that both fields are set, or neither."""
    if (getattr(config, first) is None) != (getattr(config, second) is None):
        is_first = getattr(config, second) is None
        given, missing = (first, second) if is_first else (second, first)
        raise InvalidField("{} must be set together with {}", missing, given)


def _listed(kind: type[enum.Enum]) -> str:
    return ", ".join(member.value for member in kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(_Limited):
    """Settings of the logs of one topic."""

    durability: Durability = Durability.FSYNC
    """When an append is acknowledged. The default is the class that never loses data."""

    segment_bytes_max: int = 256 * MIB
    """A segment is closed before it grows past this size."""

    segment_records_max: int = 2**31 - 1
    """A segment is closed before it holds more records than this."""

    segment_age_ms_max: int = 7 * DAY_MS
    """A segment is closed when its first batch is older than this."""

    index_interval_bytes: int = 4 * KIB
    """Bytes of log per index entry."""

    batch_size_max: int = 16 * MIB
    """Larger batches are rejected."""

    unflushed_bytes_max: int = 64 * MIB
    """Bytes of this log that may wait for the disk; beyond this, appends have to wait."""

    flush_ms: int = 200
    """Logs of the classes `disk` and `memory` are synced in the background this long after a write
    at the latest: a power cut costs no more than what was written within this time. `fsync` syncs
    before it acknowledges.
    """

    flush_records: int = 2**63 - 1
    """Such a log is also synced as soon as this many of its records are not synced."""

    retention_ms: int | None = None
    """A record is deleted when it was appended longer ago than this, at most a hundredth of this
    time and two intervals of maintenance later. Ages are measured by the retention clock, which
    setting the system time does not change.
    """

    retention_bytes: int | None = None
    """Readers see the newest batches with at most this many bytes, and always the last batch. Files
    are deleted later, by whole segments. A log that rejects never holds more.
    """

    retention_records: int | None = None
    """Readers see exactly the last so many records."""

    discard: Discard = Discard.OLD
    """What happens when the log exceeds `retention_bytes` or `retention_records`: the oldest
    segments are deleted, or appends are rejected.
    """

    is_compacted: bool = False
    """Whether cleaning keeps only the latest record of each key."""

    tombstone_ms: int = DAY_MS
    """How long a record without a value stays in a compacted log after all older records of its key
    were removed, so that readers see that the key was deleted.
    """

    dirty_ratio_min: float = 0.5
    """A compacted log is cleaned when this share of it was appended since the last cleaning."""

    compaction_lag_ms_min: int = 0
    """Compaction skips a segment until it was closed this long ago."""

    compaction_lag_ms_max: int | None = None
    """A compacted log is cleaned when a segment has waited this long, whatever `dirty_ratio_min`
    says.
    """

    is_tiered: bool = False
    """Whether old segments are moved to the cold store of the node."""

    local_retention_ms: int | None = None
    """A segment is moved to the cold store when it was closed longer ago than this."""

    local_retention_bytes: int | None = None
    """A segment is moved to the cold store when the local segments behind it have so many bytes."""

    _optional: ClassVar[frozenset[str]] = frozenset(
        {
            "retention_ms",
            "retention_bytes",
            "retention_records",
            "compaction_lag_ms_max",
            "local_retention_ms",
            "local_retention_bytes",
        }
    )

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        # A segment's positions fit 31 bits, as Kafka's tools expect of a `.log` file.
        "segment_bytes_max": (1 * KIB, 2 * GIB - 1),
        "segment_records_max": (1, 2**31 - 1),
        "segment_age_ms_max": (1, 2**53),
        "index_interval_bytes": (64, 16 * MIB),
        "batch_size_max": (61, 64 * MIB),
        "unflushed_bytes_max": (1, 16 * GIB),
        "flush_ms": (0, 2**53),
        "flush_records": (1, 2**63 - 1),
        "retention_ms": (0, 2**53),
        "retention_bytes": (0, 2**63 - 1),
        "retention_records": (0, 2**63 - 1),
        "tombstone_ms": (0, 2**53),
        "compaction_lag_ms_min": (0, 2**53),
        "compaction_lag_ms_max": (1, 2**53),
        "local_retention_ms": (0, 2**53),
        "local_retention_bytes": (0, 2**63 - 1),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_member("durability", self.durability, Durability)
        _check_member("discard", self.discard, Discard)
        _check_switch("is_compacted", self.is_compacted)
        _check_switch("is_tiered", self.is_tiered)
        _check_ratio("dirty_ratio_min", self.dirty_ratio_min)
        _check_at_most(self, "compaction_lag_ms_min", "compaction_lag_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Limited):
    """Settings of one process, shared by all its logs."""

    sync_threads: int = 4
    """Threads that wait for the disk. The kernel merges concurrent syncs, so a few are enough."""

    writers_open_max: int = 256
    """Logs whose two files stay open for writing; beyond this, those opened first are closed when
    idle. This takes twice as many descriptors, which is half of what a process may have by default.
    """

    maps_open_max: int = 1024
    """Sealed segments and indexes that stay mapped into memory."""

    unflushed_bytes_max: int = 512 * MIB
    """Bytes of all logs together that may wait for the disk; beyond this, appends have to wait."""

    ephemeral_bytes_max: int = 256 * MIB
    """Total size of all `ephemeral` logs."""

    upkeep_interval_ms: int = 30_000
    """Interval of log maintenance, which deletes what is too old or too much and cleans logs. 0
    turns it off.
    """

    cleaning_bytes_per_second_max: int = 64 * MIB
    """Rate at which cleaning reads and writes, so that it leaves disk bandwidth to clients. 0 is
    unlimited.
    """

    cleaning_memory_bytes_max: int = 256 * MIB
    """Memory in which compaction remembers keys; if more keys have to be remembered, it takes more
    passes.
    """

    scrub_interval_ms: int = 7 * DAY_MS
    """Time between the starts of two scrubs, which read all finished segments and check them, so
    that damage is found that no client reads. 0 turns them off.
    """

    scrub_bytes_per_second_max: int = 8 * MIB
    """Rate at which a scrub reads, so that it leaves disk bandwidth to clients. 0 is unlimited."""

    deletions_max: int = 10_000
    """Deletions by key that may wait in one log until their bytes are reclaimed; beyond this, more
    are rejected until some are.
    """

    maintenance_cpus: tuple[int, ...] = ()
    """Processors for the threads that clean logs, scrub segments and read old data, such as `7`. If
    it is empty, they run where the rest of the node does.
    """

    replay_priority: ReplayPriority = ReplayPriority.IDLE
    """Disk priority of reads of old data that is not in memory: with `idle` appends come first, and
    maintenance comes last.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "sync_threads": (1, 64),
        "writers_open_max": (1, 1_000_000),
        # Far below the kernel's default of 65,530 maps for one process.
        "maps_open_max": (1, 32_768),
        "unflushed_bytes_max": (1, 64 * GIB),
        "ephemeral_bytes_max": (1 * KIB, 1024 * GIB),
        "upkeep_interval_ms": (0, 2**31 - 1),
        "cleaning_bytes_per_second_max": (0, 64 * GIB),
        "cleaning_memory_bytes_max": (1 * MIB, 64 * GIB),
        "scrub_interval_ms": (0, 2**53),
        "scrub_bytes_per_second_max": (0, 64 * GIB),
        "deletions_max": (1, 1_000_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_member("replay_priority", self.replay_priority, ReplayPriority)
        _check_cpus("maintenance_cpus", self.maintenance_cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(_Limited):
    """Settings of the cold store, to which topics with `remote.storage.enable` move segments."""

    store: str | None = None
    """Where old segments are moved: a local directory, or a URI such as `s3://bucket/prefix`."""

    hot_segments: int = 2
    """The newest so many segments of each log always stay on the local disk."""

    cache_bytes_max: int = 128 * MIB
    """Memory for pieces of 4 MiB that were read from the cold store."""

    bytes_per_second_max: int = 64 * MIB
    """Rate at which segments are moved, counted each time they are read or written. 0 is
    unlimited.
    """

    read_wait_ms: int = 500
    """How long a read waits for the cold store before the client is told to try again. The store
    is read on meanwhile.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "hot_segments": (2, 1_000_000),
        # A batch of 64 MiB is in up to 17 pieces.
        "cache_bytes_max": (80 * MIB, 64 * GIB),
        "bytes_per_second_max": (0, 64 * GIB),
        "read_wait_ms": (1, 60_000),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(_Limited):
    """Settings of one node for topics, groups and transactions."""

    node_id: int = 1
    """The id by which clients know this node."""

    auto_create_topics: bool = True
    """Whether a topic that a client asks for is created if it does not exist."""

    adopt_topics: bool = False
    """Whether to start with metadata that is older than its last change, or lost, and to create
    topics for the logs that it does not have. For one start, if there is no newer `meta.db`.
    """

    num_partitions: int = 1
    """Partitions of a topic that is created without a number of partitions."""

    partitions_max: int = 100_000
    """Partitions of all topics together; beyond this, no more are created."""

    group_initial_rebalance_delay_ms: int = 100
    """How long an empty classic group waits for more members before its first rebalance."""

    group_session_timeout_ms_min: int = 6_000
    """The shortest session timeout that a member of a classic group may ask for."""

    group_session_timeout_ms_max: int = 1_800_000
    """The longest session timeout that a member of a classic group may ask for."""

    group_members_max: int = 10_000
    """Members that one group may have."""

    consumer_session_timeout_ms: int = 45_000
    """How long a member of a KIP-848 group may send no heartbeat before it is removed."""

    consumer_heartbeat_interval_ms: int = 5_000
    """How often a member of a KIP-848 group has to send a heartbeat."""

    offsets_retention_ms: int = 7 * DAY_MS
    """How long the offsets of a group without members are kept."""

    offset_metadata_bytes_max: int = 4096
    """Size of the metadata stored with a committed offset."""

    transaction_timeout_ms_max: int = 900_000
    """The longest time that a transaction may stay open."""

    transactional_id_expiration_ms: int = 7 * DAY_MS
    """How long an idle transactional id is remembered."""

    publication_expiration_ms: int = 90 * DAY_MS
    """How long the last publication of an idle publisher is remembered, counted while the machine
    runs. A Spark query that is restarted later than that may write its last batch twice.
    """

    producer_id_expiration_ms: int = 1 * DAY_MS
    """How long a partition remembers an idle producer."""

    decompression_bytes_max: int = 256 * MIB
    """Memory for batches that are decompressed at the same time, for all readers of single records
    together: HTTP and live clients, queues, streams, lookups by time, and checks of appended
    batches. A batch takes up to twice its decompressed size, which is at most 64 MiB; up to 1 MiB
    it is not counted. Beyond this, requests wait. Kafka consumers decompress for themselves.
    """

    decompression_wait_ms_max: int = 10_000
    """How long a request waits for memory to decompress a batch before it fails."""

    limit_producer_bytes_per_second: int | None = None
    """Bytes that a client may append per second, if no quota applies to it."""

    limit_consumer_bytes_per_second: int | None = None
    """Bytes that a client may read per second, if no quota applies to it."""

    limit_request_percent: int | None = None
    """Share of one processor core that the requests of a client may use, in percent, if no quota
    applies to it.
    """

    limit_mutations_per_second: int | None = None
    """Partitions that a client may create or delete per second, if no quota applies to it."""

    limit_topics: int = 0
    """Topics that there may be in the node or cluster before clients can create no more. 0 is no
    limit, here and in the following.
    """

    limit_partitions: int = 0
    """Partitions that all these topics may have together."""

    limit_topics_per_user: int = 0
    """Topics that one user may have created. It needs `access.enabled`, as the next one does."""

    limit_partitions_per_user: int = 0
    """Partitions that the topics of one user may have together."""

    limit_queues: int = 0
    """Queues that there may be in the node or cluster before clients can create no more."""

    limit_queues_per_user: int = 0
    """Queues that one user may have created. It needs `access.enabled`, as all that follow do."""

    limit_connections_per_user: int = 0
    """Connections to the Kafka server of a node that one user may have logged in on; a login beyond
    this is refused.
    """

    limit_live_connections_per_user: int = 0
    """WebSockets and event streams that one user may have open at a node, or one address of clients
    that have not logged in.
    """

    limit_requests_per_user: int = 0
    """Requests of one user that a node works on at once, long polls and event streams among them;
    over HTTP also those of one address of clients that have not logged in. Beyond this, a request
    is refused over HTTP, and over Kafka waits until another one is answered.
    """

    _optional: ClassVar[frozenset[str]] = frozenset(
        {
            "limit_producer_bytes_per_second",
            "limit_consumer_bytes_per_second",
            "limit_request_percent",
            "limit_mutations_per_second",
        }
    )

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "node_id": (0, 2**31 - 1),
        "num_partitions": (1, 100_000),
        "partitions_max": (1, 10_000_000),
        "group_initial_rebalance_delay_ms": (0, 600_000),
        "group_session_timeout_ms_min": (1, 2**31 - 1),
        "group_session_timeout_ms_max": (1, 2**31 - 1),
        "group_members_max": (1, 1_000_000),
        "consumer_session_timeout_ms": (1_000, 3_600_000),
        "consumer_heartbeat_interval_ms": (100, 600_000),
        "offsets_retention_ms": (1, 2**53),
        "offset_metadata_bytes_max": (0, 1 * MIB),
        "transaction_timeout_ms_max": (1_000, 2**31 - 1),
        "transactional_id_expiration_ms": (1, 2**53),
        "publication_expiration_ms": (1, 2**53),
        "producer_id_expiration_ms": (1, 2**53),
        "decompression_bytes_max": (128 * MIB, 1024 * GIB),
        "decompression_wait_ms_max": (1, 600_000),
        "limit_producer_bytes_per_second": (1, 2**53),
        "limit_consumer_bytes_per_second": (1, 2**53),
        "limit_request_percent": (1, 100_000),
        "limit_mutations_per_second": (1, 2**31 - 1),
        "limit_topics": (0, 10_000_000),
        "limit_partitions": (0, 10_000_000),
        "limit_topics_per_user": (0, 10_000_000),
        "limit_partitions_per_user": (0, 10_000_000),
        "limit_queues": (0, 10_000_000),
        "limit_queues_per_user": (0, 10_000_000),
        "limit_connections_per_user": (0, 10_000_000),
        "limit_live_connections_per_user": (0, 10_000_000),
        "limit_requests_per_user": (0, 10_000_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_switch("auto_create_topics", self.auto_create_topics)
        _check_switch("adopt_topics", self.adopt_topics)
        _check_at_most(self, "group_session_timeout_ms_min", "group_session_timeout_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig(_Limited):
    """Settings of the Kafka server of one node."""

    request_size_max: int = 100 * MIB
    """A larger request ends its connection. The default is Kafka's."""

    connections_max: int = 20_000
    """Concurrent connections; beyond this, new ones are closed."""

    connections_per_address_max: int = 20_000
    """Concurrent connections from one address."""

    idle_ms_max: int = 600_000
    """A connection without a request for this long is closed. The default is Kafka's."""

    handshake_ms_max: int = 10_000
    """Time from connecting until the first request is complete."""

    request_ms_max: int = 30_000
    """Time from the first byte of a request until it is complete."""

    requests_in_flight_max: int = 1_000
    """Requests of one connection that are processed at once; beyond this, no more are read."""

    output_bytes_max: int = 512 * KIB
    """Memory of the requests of one connection that are in flight, and of their responses; beyond
    this, no more of its requests are started. One response may exceed it.
    """

    responses_bytes_max: int = 256 * MIB
    """Memory of requests in flight, and of responses that wait to be read, over all connections. A
    fetch gets at most an eighth of what is left of it, or one batch. Beyond this, fetches that wait
    for new records are answered, and clients that do not read are disconnected.
    """

    output_ms_max: int = 60_000
    """A client that reads nothing for this long while responses wait is disconnected."""

    receive_bytes_max: int = 512 * MIB
    """Bytes of requests that all connections together may hold in memory; beyond this, no more are
    read.
    """

    fetch_bytes_max: int = 55 * MIB
    """Upper limit of the size of a fetch response, whatever the client asks for. The default is
    Kafka's.
    """

    fetch_sessions_max: int = 1_000
    """Fetch sessions that are remembered. The default is Kafka's."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "request_size_max": (1 * KIB, 1 * GIB),
        "connections_max": (1, 1_000_000),
        "connections_per_address_max": (1, 1_000_000),
        "idle_ms_max": (100, 2**31 - 1),
        "handshake_ms_max": (100, 2**31 - 1),
        "request_ms_max": (100, 2**31 - 1),
        "requests_in_flight_max": (1, 100_000),
        "output_bytes_max": (64 * KIB, 1 * GIB),
        "responses_bytes_max": (1 * MIB, 64 * GIB),
        "output_ms_max": (100, 2**31 - 1),
        "receive_bytes_max": (1 * MIB, 64 * GIB),
        "fetch_bytes_max": (1 * KIB, 1 * GIB),
        "fetch_sessions_max": (0, 1_000_000),
    }


_DEFAULT_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Names of topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig(_Limited):
    """Settings of the native server of one node."""

    default_topic: str = "default"
    """Name of the topic that clients mean by the topic id 0."""

    frame_size_max: int = 16 * MIB
    """A larger frame ends its connection, and no larger one is sent. The default is the limit of
    the protocol.
    """

    login_frame_size_max: int = 64 * KIB
    """The same before a login, on a node with logins, if it is lower."""

    frame_records_max: int = 100_000
    """Records of one frame; a frame with more is refused."""

    connections_max: int = 20_000
    """Concurrent connections; beyond this, new ones are closed."""

    connections_per_address_max: int = 20_000
    """Concurrent connections from one address."""

    idle_ms_max: int = 30_000
    """A connection without a frame for this long is closed; clients send a keepalive every 10
    seconds.
    """

    handshake_ms_max: int = 30_000
    """Time from connecting until the first frame is complete."""

    request_ms_max: int = 30_000
    """Time from the first byte of a frame until it is complete."""

    append_ms_max: int = 10_000
    """How long records wait if too many bytes wait for the disk; then the client is sent a
    Backpressure frame. Clients give up after 30 seconds.
    """

    requests_in_flight_max: int = 1_000
    """Frames of one connection that are processed at once; beyond this, no more are read."""

    output_bytes_max: int = 512 * KIB
    """Memory of the frames of one connection that are in flight, and of their answers; beyond this,
    no more of its frames are processed. One answer may exceed it.
    """

    responses_bytes_max: int = 256 * MIB
    """Memory of frames in flight, and of answers that wait to be read, over all connections. A
    fetch gets at most an eighth of what is left of it, or one record. Beyond this, clients that do
    not read are disconnected.
    """

    output_ms_max: int = 60_000
    """A client that reads nothing for this long while answers wait is disconnected."""

    receive_bytes_max: int = 512 * MIB
    """Bytes of frames that all connections together may hold in memory; beyond this, no more are
    read.
    """

    fetch_bytes_max: int = 4 * MIB
    """Upper limit of the records in the answer to a fetch, whatever the client asks for. One record
    may exceed it.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "frame_size_max": (1 * KIB, 16 * MIB),
        "login_frame_size_max": (1 * KIB, 16 * MIB),
        "frame_records_max": (1, 1_000_000),
        "connections_max": (1, 1_000_000),
        "connections_per_address_max": (1, 1_000_000),
        "idle_ms_max": (100, 2**31 - 1),
        "handshake_ms_max": (100, 2**31 - 1),
        "request_ms_max": (100, 2**31 - 1),
        "append_ms_max": (1, 2**31 - 1),
        "requests_in_flight_max": (1, 100_000),
        "output_bytes_max": (64 * KIB, 1 * GIB),
        "responses_bytes_max": (1 * MIB, 64 * GIB),
        "output_ms_max": (100, 2**31 - 1),
        "receive_bytes_max": (1 * MIB, 64 * GIB),
        "fetch_bytes_max": (1 * KIB, 16 * MIB),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        if not _DEFAULT_TOPIC.fullmatch(str(self.default_topic)):
            words = "{} must be the name of a topic, got {value!r}"
            raise InvalidField(words, "default_topic", value=self.default_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig(_Limited):
    """Settings of the connections between the nodes of a cluster, in both directions."""

    request_size_max: int = 100 * MIB
    """A larger request of a peer ends its connection."""

    response_size_max: int = 128 * MIB
    """A larger response of a peer ends its connection. A fetch returns at least one batch, however
    large that is.
    """

    connections_max: int = 512
    """Concurrent connections of peers; beyond this, new ones are closed."""

    connections_per_address_max: int = 512
    """Concurrent connections of peers from one address."""

    handshake_ms_max: int = 5_000
    """Time from connecting until the handshake is complete."""

    request_ms_max: int = 30_000
    """Time from the first byte of a request until it is complete."""

    idle_ms_max: int = 600_000
    """A connection without a request for this long is closed."""

    output_ms_max: int = 30_000
    """A peer that reads nothing for this long while responses wait is disconnected."""

    requests_in_flight_max: int = 1_000
    """Requests of one connection that are processed at once; beyond this, they are refused."""

    receive_bytes_max: int = 512 * MIB
    """Bytes of requests that all connections together may hold in memory; beyond this, no more are
    read.
    """

    output_bytes_max: int = 512 * MIB
    """Bytes of responses that may wait to be read by peers; beyond this, requests are refused."""

    replication_connections_max: int = 1
    """Connections to each peer for replication."""

    forwarding_connections_max: int = 4
    """Connections to each peer for requests of clients that are forwarded."""

    admin_connections_max: int = 1
    """Connections to each peer for everything else."""

    calls_in_flight_max: int = 256
    """Requests to a peer on one connection; beyond this, and if no more connections are allowed,
    they fail at once.
    """

    silence_ms_max: int = 2_000
    """A connection on which nothing arrives for this long after a request was given up is closed:
    the peer, or the way to it, may be gone.
    """

    backoff_ms_min: int = 50
    """Time before the second attempt to connect; it doubles with each further attempt."""

    backoff_ms_max: int = 2_000
    """Longest time between attempts to connect."""

    breaker_failures_max: int = 5
    """Failed requests to a peer in a row after which no more are sent for `breaker_open_ms`."""

    breaker_successes_min: int = 3
    """Requests that must succeed, one after another, before requests are sent without limit."""

    breaker_open_ms: int = 30_000
    """How long no request is sent to a peer that failed."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "request_size_max": (1 * KIB, 1 * GIB),
        "response_size_max": (64 * KIB, 1 * GIB),
        "connections_max": (1, 1_000_000),
        "connections_per_address_max": (1, 1_000_000),
        "handshake_ms_max": (100, 2**31 - 1),
        "request_ms_max": (100, 2**31 - 1),
        "idle_ms_max": (100, 2**31 - 1),
        "output_ms_max": (100, 2**31 - 1),
        "requests_in_flight_max": (1, 100_000),
        "receive_bytes_max": (1 * MIB, 64 * GIB),
        "output_bytes_max": (1 * MIB, 64 * GIB),
        "replication_connections_max": (1, 64),
        "forwarding_connections_max": (1, 64),
        "admin_connections_max": (1, 64),
        "calls_in_flight_max": (1, 100_000),
        "silence_ms_max": (10, 600_000),
        "backoff_ms_min": (0, 60_000),
        "backoff_ms_max": (0, 600_000),
        "breaker_failures_max": (1, 1_000),
        "breaker_successes_min": (1, 1_000),
        "breaker_open_ms": (1, 3_600_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_at_most(self, "backoff_ms_min", "backoff_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(_Limited):
    """Settings of the HTTP server of one node."""

    connections_max: int = 10_000
    """Concurrent connections, live ones included; beyond this, new ones are closed."""

    connections_per_address_max: int = 10_000
    """Concurrent connections from one address."""

    head_size_max: int = 64 * KIB
    """Size of a request line with its headers; a larger one is rejected."""

    head_ms_max: int = 10_000
    """Time for a request line with its headers to arrive, from its first byte; for the first
    request of a connection, from connecting.
    """

    body_ms_max: int = 30_000
    """Time for a body to arrive, from the end of its headers, at whatever pace its bytes come. It
    implies a lowest rate for large bodies: 16 MiB in 30 s, by default.
    """

    idle_ms_max: int = 600_000
    """A connection without a request for this long is closed."""

    output_ms_max: int = 60_000
    """A client that reads less than 64 KiB in this time, while more waits for it, is
    disconnected.
    """

    receive_bytes_max: int = 512 * MIB
    """Bytes of requests that all connections together may hold in memory; beyond this, a request is
    answered with status 503.
    """

    output_bytes_max: int = 512 * MIB
    """Bytes of responses that may wait for all clients together; beyond this, clients that do not
    read are disconnected.
    """

    append_size_max: int = 16 * MIB
    """Size of a request body with records."""

    live_bytes_max: int = 1 * MIB
    """Bytes that may wait for one live connection before it is told that it lags, and catches
    up.
    """

    heartbeat_ms: int = 15_000
    """Interval of heartbeats on a live connection that has nothing to send."""

    stream_wait_ms: int = 3_000
    """How long a long poll of a stream waits for new data. Clients ask again at once, and an idle
    one costs next to nothing; the public conformance suite gives a poll five seconds.
    """

    allowed_hosts: tuple[str, ...] = ()
    """Names in `Host` that the server answers to, besides names of this machine: those that clients
    of a reverse proxy use. `*` allows any name. If it is empty, a server on a loopback address
    answers to names of this machine only, and any other server to all names.
    """

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server from a browser (CORS), such as
    `https://app.example`. `*` allows every page of every site.
    """

    access_log: bool = False
    """Whether each request is logged when its response begins, as an event at level info."""

    console: ConsoleAccess = ConsoleAccess.READ
    """Whether the console is served at `/`, and whether it can change something. It shows what
    every client may read, and with `write` does what every client may do.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "connections_max": (1, 1_000_000),
        "connections_per_address_max": (1, 1_000_000),
        "head_size_max": (1 * KIB, 1 * MIB),
        "head_ms_max": (100, 2**31 - 1),
        "body_ms_max": (100, 2**31 - 1),
        "idle_ms_max": (100, 2**31 - 1),
        "output_ms_max": (100, 2**31 - 1),
        "receive_bytes_max": (64 * KIB, 64 * GIB),
        "output_bytes_max": (64 * KIB, 64 * GIB),
        "append_size_max": (1 * KIB, 256 * MIB),
        "live_bytes_max": (1 * KIB, 1 * GIB),
        "heartbeat_ms": (10, 3_600_000),
        "stream_wait_ms": (0, 600_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_switch("access_log", self.access_log)
        _check_texts("allowed_hosts", self.allowed_hosts, is_host_pattern, HOSTS_WORDS)
        _check_texts("allowed_origins", self.allowed_origins, is_origin_pattern, ORIGINS_WORDS)
        if isinstance(self.console, bool):
            object.__setattr__(self, "console", ConsoleAccess(self.console))
        _check_member("console", self.console, ConsoleAccess)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig(_Limited):
    """Settings of the log of one node, which goes to standard error."""

    level: EventLevel = EventLevel.INFO
    """Lowest level that is logged."""

    format: EventFormat = EventFormat.AUTO
    """Format of the log."""

    def __post_init__(self) -> None:
        _check_member("level", self.level, EventLevel)
        _check_member("format", self.format, EventFormat)


class TelemetryProtocol(enum.Enum):
    """Protocol in which telemetry is sent to a collector."""

    HTTP = "http"
    """OTLP over HTTP, with Protocol Buffers."""

    GRPC = "grpc"
    """OTLP over gRPC. Needs the extra `otel-grpc`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig(_Limited):
    """Settings of one node for OpenTelemetry. By default nothing is sent."""

    traces: bool = False
    """Whether requests are traced, and spans are sent to a collector."""

    traces_ratio: float = 0.01
    """Share of the requests to trace whose client did not decide it: 1 is all of them. A request
    that its client traces, by `traceparent`, is traced too.
    """

    traces_waiting_max: int = 2_048
    """Spans that may wait for the collector; beyond this, more are dropped and counted."""

    metrics: bool = False
    """Whether metrics are sent to a collector, in addition to those at `/metrics`."""

    metrics_interval_ms: int = 60_000
    """Interval at which metrics are sent."""

    protocol: TelemetryProtocol = TelemetryProtocol.HTTP
    """How the collector is spoken to: `http`, or `grpc`, which needs the extra `otel-grpc`."""

    endpoint: str | None = None
    """URL of the collector, such as `http://127.0.0.1:4318`; `/v1/traces` and `/v1/metrics` are
    appended to it. With `grpc` it has no path, as `http://127.0.0.1:4317`, and `https` means TLS.
    If it is not set, `OTEL_EXPORTER_OTLP_ENDPOINT` applies, or else this machine.
    """

    service_name: str | None = None
    """Name of the node in the telemetry. If it is not set, `OTEL_SERVICE_NAME` applies, or else
    `millstream`.
    """

    flush_ms_max: int = 3_000
    """How long stopping waits for the collector to accept the remaining telemetry."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "traces_waiting_max": (1, 1_000_000),
        "metrics_interval_ms": (100, 3_600_000),
        "flush_ms_max": (0, 60_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_switch("traces", self.traces)
        _check_switch("metrics", self.metrics)
        _check_ratio("traces_ratio", self.traces_ratio)
        _check_member("protocol", self.protocol, TelemetryProtocol)
        if self.endpoint is not None and not is_url(self.endpoint):
            words = f"{{}} must be {URL_WORDS}, got {{value!r}}"
            raise InvalidField(words, "endpoint", value=self.endpoint)
        if self.protocol is TelemetryProtocol.GRPC and self.endpoint is not None:
            url = urlsplit(self.endpoint)
            if url.path not in ("", "/") or url.query or url.fragment:
                words = "{} must be a URL without a path for grpc, got {value!r}"
                raise InvalidField(words, "endpoint", value=self.endpoint)
        if self.service_name is not None and not is_label(self.service_name):
            words = f"{{}} must be {LABEL_WORDS}, got {{value!r}}"
            raise InvalidField(words, "service_name", value=self.service_name)

    @property
    def is_on(self) -> bool:
        return self.traces or self.metrics


URL_WORDS = "http://HOST or https://HOST, optionally with a port and a path"
ENDPOINT_WORDS = f"HOST:PORT with a port from 0 to {PORT_MAX}"
URL_LENGTH_MAX = 2_000
LABEL_LENGTH_MAX = 200
LABEL_WORDS = f"1 to {LABEL_LENGTH_MAX} printable characters"


def is_url(text: Any) -> bool:
    """Return whether `text` is a URL that a request can be sent to.

    Credentials are not allowed in it: they are sent as a header.
    """
    if not isinstance(text, str) or len(text) > URL_LENGTH_MAX or not text.isascii():
        return False
    try:
        url = urlsplit(text)
        return (
            url.scheme in ("http", "https")
            and bool(url.hostname)
            and url.port != 0
            and not (url.username or url.password or url.query or url.fragment)
            and text.isprintable()
            and " " not in text
        )
    except ValueError:
        return False


def is_label(text: Any) -> bool:
    """Return whether `text` is a short printable string."""
    return isinstance(text, str) and 1 <= len(text) <= LABEL_LENGTH_MAX and text.isprintable()


SERVER_URLS_WORDS = "URLs http://HOST:PORT or https://HOST:PORT without a path"
CLUSTER_NAME_WORDS = "1 to 100 letters, digits, dots, hyphens and underscores"

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def is_server_url(text: Any) -> bool:
    """Return whether `text` is a URL of a server: scheme, host and port."""
    return is_url(text) and urlsplit(text).port is not None and urlsplit(text).path in ("", "/")


def is_cluster_name(text: Any) -> bool:
    """Return whether `text` can be the name of a cluster."""
    return isinstance(text, str) and _CLUSTER_NAME.fullmatch(text) is not None


HOSTS_WORDS = "host names without a port, or *"
ORIGINS_WORDS = "origins such as https://app.example, or *"

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
)


def is_host_pattern(text: Any) -> bool:
    """Return whether `text` is a host name or address in lower case, or `*` for all."""
    if not isinstance(text, str):
        return False
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text)) == text
        except ValueError:
            return False
    return text == "*" or _HOST_NAME.fullmatch(text) is not None


def is_origin_pattern(text: Any) -> bool:
    """Return whether `text` is an origin in lower case, or `*` for all.

    An origin is scheme, host and a port that is not the scheme's default, as browsers send it.
    """
    if text == "*":
        return True
    if not isinstance(text, str) or not is_url(text):
        return False
    url = urlsplit(text)
    default_port = {"http": 80, "https": 443}[url.scheme]
    return text == f"{url.scheme}://{url.netloc}" == text.lower() and url.port != default_port


class Endpoint(NamedTuple):
    """A host and a port. With port 0 the system picks one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_KAFKA = Endpoint("127.0.0.1", 9092)
_HTTP = Endpoint("127.0.0.1", 8080)
_PEER = Endpoint("127.0.0.1", 9093)

PROCESSES_MAX = 64
"""Node processes of one machine: more than the processors of most."""


class ReplicaSelector(enum.Enum):
    """Which replica Kafka consumers read from."""

    LEADER = "leader"
    """The leader, always."""

    RACK = "rack"
    """A replica that is in sync and in the rack of the consumer (`client.rack`), if there is one;
    otherwise the leader.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(_Limited):
    """Settings of one node for its cluster. A node without etcd is alone."""

    etcd: tuple[str, ...] = ()
    """URLs of the members of etcd in which the cluster keeps its metadata, such as
    `http://10.0.0.1:2379`. All nodes of a cluster have the same ones. If it is empty, the node is
    alone and keeps its metadata in its data directory.
    """

    name: str = "millstream"
    """The id of the cluster: its keys in etcd are below `/millstream/<name>/`."""

    etcd_user: str | None = None
    """User of etcd, if authentication is enabled there."""

    etcd_password_file: str | None = None
    """File with the password of that user, in its first line."""

    etcd_ca_file: str | None = None
    """Certificates (PEM) of the authorities that etcd's certificate must be signed by. If it is
    not set, those of the system apply.
    """

    etcd_cert_file: str | None = None
    """Certificate (PEM) by which the node authenticates to etcd."""

    etcd_key_file: str | None = None
    """Private key (PEM) of that certificate."""

    etcd_timeout_ms: int = 2_000
    """Deadline of a call to etcd, over all of its members. A change that has no response by then
    may or may not have been made.
    """

    lease_ttl_ms: int = 4_000
    """How long a node may not renew its lease before the cluster takes it for dead, rounded up to
    whole seconds. etcd may extend it to 1.5 times its election timeout.
    """

    replica_lag_ms_max: int = 500
    """How long a replica may be behind its leader before it leaves the in-sync replicas, unless the
    others are slow too: then 8 times their median.
    """

    isr_change_interval_ms: int = 5_000
    """Shortest time between two changes of the in-sync replicas of a partition by its leader. A
    replica that caught up after it left waits for it.
    """

    resync_bytes_min: int = 16 * 1024 * 1024
    """A replica that lacks finished segments of at least this size together copies them as files;
    below that it fetches their records.
    """

    resync_bytes_per_second_max: int = 0
    """How many bytes per second a node copies from others at most, over all partitions that it
    copies or repairs as files. 0 is no limit.
    """

    rack: str | None = None
    """Rack, zone or site of the node: replicas are spread over them."""

    replicas: int = 3
    """Replicas of a topic that is created without a number, and of internal topics; fewer if there
    are fewer nodes. All nodes of a cluster should have the same. With `node.processes` and without
    `cluster.etcd` the default is 1.
    """

    replica_selector: ReplicaSelector = ReplicaSelector.LEADER
    """Which replica Kafka consumers read from: always the leader, or one in the rack that a
    consumer names in `client.rack` (KIP-392). All nodes of a cluster should have the same.
    """

    peer: Endpoint = _PEER
    """Address on which the node listens for other nodes of its cluster."""

    peer_advertised: Endpoint | None = None
    """Address that other nodes are told to connect to, if it differs from the one that the node
    listens on.
    """

    peer_ca_file: str | None = None
    """Certificates (PEM) of the authority that the certificates of all nodes must be signed by.
    With it, nodes speak TLS with each other, and both sides show a certificate.
    """

    peer_cert_file: str | None = None
    """Certificate (PEM) of this node, for servers and clients. It must name the host of the address
    that other nodes connect to. It is read again when it has changed.
    """

    peer_key_file: str | None = None
    """Private key (PEM) of that certificate. Only the user of the node may be able to read it."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "etcd_timeout_ms": (100, 60_000),
        "lease_ttl_ms": (1_000, 600_000),
        "replica_lag_ms_max": (50, 3_600_000),
        "isr_change_interval_ms": (100, 3_600_000),
        "resync_bytes_min": (1, 2**40),
        "resync_bytes_per_second_max": (0, 2**40),
        "replicas": (1, 100),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_texts("etcd", self.etcd, is_server_url, SERVER_URLS_WORDS)
        if not is_cluster_name(self.name):
            words = f"{{}} must be {CLUSTER_NAME_WORDS}, got {{value!r}}"
            raise InvalidField(words, "name", value=self.name)
        for name in ("etcd_user", "rack"):
            value = getattr(self, name)
            if value is not None and not is_label(value):
                raise InvalidField(
                    f"{{}} must be {LABEL_WORDS}, got {{value!r}}", name, value=value
                )
        _check_member("replica_selector", self.replica_selector, ReplicaSelector)
        _check_together(self, "etcd_user", "etcd_password_file")
        _check_together(self, "etcd_cert_file", "etcd_key_file")
        _check_together(self, "peer_cert_file", "peer_key_file")
        _check_together(self, "peer_ca_file", "peer_cert_file")

    @property
    def is_lone(self) -> bool:
        """Whether the node is alone."""
        return not self.etcd


class ClientAuth(enum.Enum):
    """Whether clients show a certificate when they connect by TLS."""

    NONE = "none"
    """They are not asked for one."""

    REQUEST = "request"
    """They are asked for one and may connect without. One that they show must be valid."""

    REQUIRE = "require"
    """They cannot connect without a valid one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(_Limited):
    """Settings of TLS for clients of one node: of its Kafka server and of its HTTP server."""

    cert_file: str | None = None
    """Certificate (PEM) of the node, followed by those of intermediate authorities. It must name
    the hosts that clients connect to. With it, the Kafka server and the HTTP server speak TLS only.
    It is read again when it has changed, and on SIGHUP.
    """

    key_file: str | None = None
    """Private key (PEM) of that certificate. Only the user of the node may be able to read it."""

    ca_file: str | None = None
    """Certificates (PEM) of the authorities that certificates of clients must be signed by."""

    client_auth: ClientAuth = ClientAuth.NONE
    """Whether clients have to show a certificate when they connect."""

    principal_rules: str = "DEFAULT"
    """How the name in the certificate of a client becomes the name of a user: rules as in Kafka's
    `ssl.principal.mapping.rules`, separated by commas, of which the first that matches applies.
    `DEFAULT` takes the whole distinguished name. A client whose name matches no rule is refused.
    """

    def __post_init__(self) -> None:
        _check_together(self, "cert_file", "key_file")
        _check_member("client_auth", self.client_auth, ClientAuth)
        if self.client_auth is not ClientAuth.NONE:
            for name in ("ca_file", "cert_file"):
                if getattr(self, name) is None:
                    raise InvalidField(
                        "{} must be set if {} is {value}",
                        name,
                        "client_auth",
                        value=self.client_auth.value,
                    )
        try:
            parse_principal_rules(self.principal_rules)
        except InvalidConfig as error:
            raise InvalidField("{}: {error}", "principal_rules", error=error) from None

    @property
    def is_on(self) -> bool:
        """Whether clients connect by TLS."""
        return self.cert_file is not None


class SaslMechanism(enum.Enum):
    """Mechanisms by which Kafka clients log in."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    """The client proves that it knows the password, without sending it."""

    SCRAM_SHA_512 = "SCRAM-SHA-512"
    """The same with a longer hash."""

    PLAIN = "PLAIN"
    """The client sends the password: for connections by TLS."""

    OAUTHBEARER = "OAUTHBEARER"
    """The client sends a JWT of the issuer in `oauth`: for connections by TLS."""


USERS_WORDS = f"names of users, of 1 to {LABEL_LENGTH_MAX} printable characters without commas"


MECHANISMS_WORDS = "names of mechanisms: " + ", ".join(item.value for item in SaslMechanism)


def is_mechanism(value: Any) -> bool:
    """Return whether a value is a mechanism."""
    return isinstance(value, SaslMechanism)


def is_user_name(text: Any) -> bool:
    """Return whether `text` can be the name of a user in a list of them."""
    return is_label(text) and "," not in text and text == text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(_Limited):
    """Logins, and what callers may do. The same on all nodes of a cluster."""

    enabled: bool = False
    """Whether callers need rights: what no ACL allows is refused. Without it everyone who can
    connect may do everything.
    """

    super_users: tuple[str, ...] = ()
    """Users who may do everything, whatever the ACLs say."""

    reads: ReadAccess = ReadAccess.CLOSED
    """Whether topics can be read without a login: `closed`, or `open`."""

    sasl_mechanisms: tuple[SaslMechanism, ...] = tuple(SaslMechanism)
    """Mechanisms by which Kafka clients may log in."""

    plain_without_tls: bool = False
    """Whether PLAIN and OAUTHBEARER are offered on connections that are not encrypted: everyone on
    the way can read the passwords and JWTs.
    """

    scram_iterations: int = 15_000
    """Rounds of hashing that new passwords get from `millstream access`, and that users who do not
    exist seem to have.
    """

    session_ms_max: int = 0
    """How long a Kafka client is logged in; it is disconnected unless it logs in again before, as
    Kafka's clients do by themselves (KIP-368). 0 is no limit.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "scram_iterations": (4_096, 1_000_000),
        "session_ms_max": (0, 2**31 - 1),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_switch("plain_without_tls", self.plain_without_tls)
        _check_texts("sasl_mechanisms", self.sasl_mechanisms, is_mechanism, MECHANISMS_WORDS)
        _check_switch("enabled", self.enabled)
        _check_texts("super_users", self.super_users, is_user_name, USERS_WORDS)
        _check_member("reads", self.reads, ReadAccess)


class JwtAlgorithm(enum.Enum):
    """Algorithms of signatures. Those with a shared secret are not among them, nor is none."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"


ALGORITHMS_WORDS = "algorithms: " + ", ".join(item.value for item in JwtAlgorithm)


def is_algorithm(value: Any) -> bool:
    """Return whether a value is an algorithm of signatures."""
    return isinstance(value, JwtAlgorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig(_Limited):
    """Logins by JWTs that another server issues. The same on all nodes of a cluster."""

    issuer: str | None = None
    """The claim `iss` that JWTs must have. With it, clients can log in by JWTs."""

    audience: str | None = None
    """The claim `aud` that JWTs must have, or contain: the name of this cluster at the issuer."""

    jwks_file: str | None = None
    """File with the public keys of the issuer (JWKS). It is read again when it has changed."""

    jwks_url: str | None = None
    """Address (https) of the public keys of the issuer (JWKS). Its host must be one of
    `outbound.allowed_hosts`.
    """

    principal_claim: str = "sub"
    """The claim that has the name of the user."""

    algorithms: tuple[JwtAlgorithm, ...] = tuple(JwtAlgorithm)
    """Algorithms by which JWTs may be signed."""

    leeway_ms: int = 10_000
    """How far the clocks of the issuer and of this node may differ."""

    refresh_ms: int = 3_600_000
    """How often the keys are read again. A JWT with an unknown key lets them be read at once, but
    not more often than every ten seconds.
    """

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "leeway_ms": (0, 300_000),
        "refresh_ms": (10_000, 86_400_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_texts("algorithms", self.algorithms, is_algorithm, ALGORITHMS_WORDS)
        if not self.algorithms:
            raise InvalidField("{} must name an algorithm", "algorithms")
        for name in ("issuer", "audience", "principal_claim"):
            value = getattr(self, name)
            if not (value is None and name != "principal_claim") and not is_label(value):
                words = f"{{}} must be {LABEL_WORDS}, got {{value!r}}"
                raise InvalidField(words, name, value=value)
        if self.jwks_url is not None and not (
            is_url(self.jwks_url) and self.jwks_url.startswith("https://")
        ):
            words = f"{{}} must be {URL_WORDS}, and of https, got {{value!r}}"
            raise InvalidField(words, "jwks_url", value=self.jwks_url)
        if self.jwks_file is not None and self.jwks_url is not None:
            raise InvalidField("{} and {} cannot be combined", "jwks_file", "jwks_url")
        has_keys = self.jwks_file is not None or self.jwks_url is not None
        if self.issuer is None:
            if has_keys or self.audience is not None:
                raise InvalidField("{} must be set", "issuer")
            return
        if self.audience is None:
            # Without it, a JWT that the issuer gave to any other service would be accepted.
            raise InvalidField("{} must be set if {} is", "audience", "issuer")
        if not has_keys:
            raise InvalidField("{} or {} must be set", "jwks_file", "jwks_url")

    @property
    def is_on(self) -> bool:
        """Whether clients can log in by JWTs."""
        return self.issuer is not None


SERVERS_WORDS = "hosts with or without a port, such as login.example or login.example:8443"
NETWORKS_WORDS = "networks such as 10.1.0.0/16"


def is_server_name(text: Any) -> bool:
    """Return whether `text` is a host name in lower case, with or without a port."""
    if not isinstance(text, str):
        return False
    host, colon, port = text.partition(":")
    is_port = port.isdecimal() and 0 < int(port) <= PORT_MAX if colon else True
    return is_port and host != "*" and _HOST_NAME.fullmatch(host) is not None


def is_network(text: Any) -> bool:
    """Return whether `text` is a network."""
    try:
        return isinstance(text, str) and bool(ipaddress.ip_network(text))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundConfig(_Limited):
    """Requests that a node sends to other servers: which ones it may send them to."""

    allowed_hosts: tuple[str, ...] = ()
    """Hosts that requests may be sent to, at port 443 or at the one that is given."""

    allowed_networks: tuple[str, ...] = ()
    """Networks whose addresses these hosts may have although they are not public: without it,
    loopback, private and link-local addresses are refused.
    """

    ca_file: str | None = None
    """Certificates (PEM) of the authorities that certificates of these hosts must be signed by; if
    it is not set, those of the system.
    """

    def __post_init__(self) -> None:
        _check_texts("allowed_hosts", self.allowed_hosts, is_server_name, SERVERS_WORDS)
        _check_texts("allowed_networks", self.allowed_networks, is_network, NETWORKS_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(_Limited):
    """Settings of one node: its data directory, its addresses, and the configs of its parts."""

    data: str = "./millstream-data"
    """The data directory."""

    kafka: Endpoint = _KAFKA
    """Address of the Kafka server."""

    http: Endpoint = _HTTP
    """Address of the HTTP server."""

    native: Endpoint | None = None
    """Address of the native server, such as `127.0.0.1:1992`. If it is not set, there is none."""

    advertised: Endpoint | None = None
    """Address that Kafka clients are told to connect to, if it differs from the one that the node
    listens on.
    """

    is_insecure: bool = False
    """Whether other machines may connect, without authentication."""

    drain_ms_max: int = 25_000
    """How long stopping may take; after that the process exits, and checks its logs at the next
    start.
    """

    drain_notice_ms: int = 0
    """How long a node that is told to stop reports so at `/health/ready` and continues to serve,
    before it closes its listeners: as long as a load balancer needs to stop sending clients. It
    counts toward the time that stopping may take.
    """

    processes: int | None = None
    """Number of node processes on this machine that form a local cluster: more processors are used
    by more processes. If it is not set, one node runs in this process, without a cluster.
    """

    cpus: tuple[int, ...] = ()
    """Processors that the node may run on, such as `0-3,6`; with `processes`, each process gets its
    part of them. If it is empty, all that the system allows.
    """

    loop_lag_ms_max: int = 500
    """How late the event loop may be, repeatedly, before the node reports that it is not ready."""

    broker: BrokerConfig = BrokerConfig()
    kafka_server: KafkaConfig = KafkaConfig()
    http_server: HttpConfig = HttpConfig()
    native_server: NativeConfig = NativeConfig()
    log: LogConfig = LogConfig()
    store: StoreConfig = StoreConfig()
    tier: TierConfig = TierConfig()
    logging: LoggingConfig = LoggingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    cluster: ClusterConfig = ClusterConfig()
    tls: TlsConfig = TlsConfig()
    access: AccessConfig = AccessConfig()
    oauth: OAuthConfig = OAuthConfig()
    outbound: OutboundConfig = OutboundConfig()

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "drain_ms_max": (0, 3_600_000),
        "drain_notice_ms": (0, 3_600_000),
        "loop_lag_ms_max": (10, 3_600_000),
        "processes": (1, PROCESSES_MAX),
    }
    _optional: ClassVar[frozenset[str]] = frozenset({"processes"})

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_at_most(self, "drain_notice_ms", "drain_ms_max")
        _check_cpus("cpus", self.cpus)
        tls = self.tls
        has_logins = tls.client_auth is ClientAuth.REQUIRE or self.access.enabled
        is_open = self.is_insecure or (tls.is_on and has_logins)
        listeners = (("kafka", self.kafka), ("http", self.http), ("native", self.native))
        for name, endpoint in listeners:
            if endpoint is not None and not is_open and not is_loopback(endpoint.host):
                raise InvalidField(
                    "{} is {endpoint}, which other machines can reach: that needs TLS"
                    " (tls.cert_file, tls.key_file) and logins (access.enabled, or"
                    " tls.client_auth = require), or has to be allowed with --insecure",
                    name,
                    endpoint=endpoint,
                )


def is_unspecified(host: str) -> bool:
    """Return whether `host` stands for all addresses of a machine, such as 0.0.0.0."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_endpoint(text: str, *, name: str) -> Endpoint:
    """Parse HOST:PORT, with brackets around an IPv6 host. `name` is what an error calls it."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_host = bool(host) and not set(host) & set("/@ ")
    if not colon or not is_host or not port.isdecimal() or int(port) > PORT_MAX:
        raise InvalidConfig(f"{name} must be {ENDPOINT_WORDS}, got {text!r}")
    return Endpoint(host, int(port))


def parse_durability(name: str) -> Durability:
    try:
        return Durability(name)
    except ValueError:
        raise InvalidConfig(
            f"durability must be one of {_listed(Durability)}, got {name!r}"
        ) from None


def settings_of(config: LogConfig | StoreConfig) -> dict[str, Any]:
    """Return the settings of `config` by name, as plain values; `None` is no limit."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return format_cpus(value)
    return value.value if isinstance(value, enum.Enum) else value

"""What can be set, as frozen values that were checked once.

`LogConfig` is what one topic may set, `StoreConfig` what one process may set. No dictionary of
options travels further inward than here.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from millstream.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_MS = 24 * 60 * 60 * 1000
PORT_MAX = 65_535


class Durability(enum.Enum):
    """What an acknowledgement promises."""

    EPHEMERAL = "ephemeral"
    """Kept in memory only; gone when the process ends."""

    MEMORY = "memory"
    """Acknowledged once it is in the process's memory, written to its file soon after."""

    DISK = "disk"
    """Acknowledged once the kernel has it: survives the death of the process, not of the power."""

    FSYNC = "fsync"
    """Acknowledged once the disk has it: survives a power cut at any instant."""


class Discard(enum.Enum):
    """What happens when a log holds as many bytes or records as it may."""

    OLD = "old"
    """The oldest segments go."""

    REJECT = "reject"
    """What does not fit is refused; only age and deletion make room."""


class ReplayPriority(enum.Enum):
    """How urgent it is to read what is old and not in memory."""

    IDLE = "idle"
    """It is read when nobody else wants the disk, where the kernel allows that."""

    NORMAL = "normal"
    """It is read as all else is."""


class EventLevel(enum.Enum):
    """How much a node says on standard error."""

    DEBUG = "debug"
    """All there is to say, for those who look for an error of ours."""

    INFO = "info"
    """What happens, and why."""

    WARNING = "warning"
    """What may need a look."""

    ERROR = "error"
    """What needs one."""


class EventFormat(enum.Enum):
    """How a node says it."""

    AUTO = "auto"
    """`pretty` where standard error is a terminal, else `json`."""

    JSON = "json"
    """One JSON object on each line, for programs."""

    PRETTY = "pretty"
    """One line with time, level and fields, for people."""


class _Limited:
    """Checks every whole number of a config against its limits, and names what is allowed."""

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
        raise InvalidConfig(f"{name} is {value!r}, a whole number is needed")
    if not least <= value <= most:
        raise InvalidConfig(f"{name} is {value}, allowed is {least} to {most}")


def _check_member(name: str, value: Any, kind: type[enum.Enum]) -> None:
    if not isinstance(value, kind):
        allowed = ", ".join(one.value for one in kind)
        raise InvalidConfig(f"{name} is {value!r}, allowed is {allowed}")


def _check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name} is {value!r}, allowed is True or False")


def _check_ratio(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidConfig(f"{name} is {value!r}, allowed is a number from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(_Limited):
    """What one topic may set for its logs."""

    durability: Durability = Durability.FSYNC
    """What an acknowledgement promises. We do not ship a default that loses data."""

    segment_bytes_max: int = 256 * MIB
    """A segment is closed before it would grow past this."""

    segment_records_max: int = 2**31 - 1
    """A segment is closed before it would hold more records than this."""

    segment_age_ms_max: int = 7 * DAY_MS
    """A segment is closed when its first batch is older than this."""

    index_interval_bytes: int = 4 * KIB
    """One index entry for every so many bytes of log."""

    batch_size_max: int = 16 * MIB
    """Larger batches are refused."""

    unflushed_bytes_max: int = 64 * MIB
    """How much may wait for the disk before appenders have to wait too."""

    retention_ms: int | None = None
    """A segment goes when it was closed longer ago than this, by a clock that nobody can set."""

    retention_bytes: int | None = None
    """The oldest segments go while the rest still holds so many bytes: never less is kept, and up
    to a segment more. A log that rejects never holds more."""

    retention_records: int | None = None
    """The same, counted in records."""

    discard: Discard = Discard.OLD
    """What happens when there is more than `retention_bytes` or `retention_records` allow: the
    oldest segments go, or appends are refused."""

    is_compacted: bool = False
    """Whether only the latest record of each key is kept, once the log was cleaned."""

    tombstone_ms: int = DAY_MS
    """How long a record without a value stays in a compacted log once all older ones of its key
    are gone, for readers to see that the key was deleted."""

    dirty_ratio_min: float = 0.5
    """A compacted log is cleaned when so much of it was appended since it was cleaned last."""

    compaction_lag_ms_min: int = 0
    """Compaction leaves a segment alone until it was closed so long ago."""

    compaction_lag_ms_max: int | None = None
    """A compacted log is cleaned when a segment waits for so long, whatever `dirty_ratio_min`."""

    _optional: ClassVar[frozenset[str]] = frozenset(
        {"retention_ms", "retention_bytes", "retention_records", "compaction_lag_ms_max"}
    )

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        # A segment's positions fit 31 bits, as Kafka's tools expect of a `.log` file.
        "segment_bytes_max": (1 * KIB, 2 * GIB - 1),
        "segment_records_max": (1, 2**31 - 1),
        "segment_age_ms_max": (1, 2**53),
        "index_interval_bytes": (64, 16 * MIB),
        "batch_size_max": (61, 64 * MIB),
        "unflushed_bytes_max": (1, 16 * GIB),
        "retention_ms": (0, 2**53),
        "retention_bytes": (0, 2**63 - 1),
        "retention_records": (0, 2**63 - 1),
        "tombstone_ms": (0, 2**53),
        "compaction_lag_ms_min": (0, 2**53),
        "compaction_lag_ms_max": (1, 2**53),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_member("durability", self.durability, Durability)
        _check_member("discard", self.discard, Discard)
        _check_switch("is_compacted", self.is_compacted)
        _check_ratio("dirty_ratio_min", self.dirty_ratio_min)
        least, most = self.compaction_lag_ms_min, self.compaction_lag_ms_max
        if most is not None and least > most:
            raise InvalidConfig(
                f"compaction_lag_ms_min is {least}, allowed is up to compaction_lag_ms_max,"
                f" which is {most}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Limited):
    """What one process may set for all its logs."""

    sync_threads: int = 4
    """Threads that wait for the disk. The kernel joins concurrent syncs, so a few suffice."""

    writers_open_max: int = 256
    """Logs whose two files stay open for writing; beyond, those opened first are closed when idle.
    Twice as many descriptors, then: half of what a process may have by default."""

    maps_open_max: int = 1024
    """Sealed segments and indexes that stay mapped."""

    unflushed_bytes_max: int = 512 * MIB
    """How much of all logs together may wait for the disk before appenders have to wait."""

    ephemeral_bytes_max: int = 256 * MIB
    """What all `ephemeral` logs together may hold."""

    upkeep_interval_ms: int = 30_000
    """How often all logs are looked after: what has to go by age or size goes, and logs are
    cleaned. 0 is never."""

    cleaning_bytes_per_second_max: int = 64 * MIB
    """How fast cleaning reads and writes, so that it leaves the disk to others. 0 is as fast as it
    can."""

    cleaning_memory_bytes_max: int = 256 * MIB
    """What compaction may use to remember keys; with more keys than fit, it takes more turns."""

    deletions_max: int = 10_000
    """How many deletions by key may wait in one log for their bytes to be reclaimed; beyond, more
    are refused until some are."""

    replay_priority: ReplayPriority = ReplayPriority.IDLE
    """How urgent it is to read what is old and not in memory: `idle` leaves the disk to whoever
    appends, and upkeep is then last in line."""

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
        "deletions_max": (1, 1_000_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_member("replay_priority", self.replay_priority, ReplayPriority)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(_Limited):
    """What one node may set for topics, groups and transactions."""

    node_id: int = 1
    """The number by which clients know this node."""

    auto_create_topics: bool = True
    """Whether a topic that a client asks for is made when there is none."""

    num_partitions: int = 1
    """Partitions of a topic that is created without saying how many."""

    partitions_max: int = 100_000
    """Partitions of all topics together; beyond, no more are created."""

    group_initial_rebalance_delay_ms: int = 100
    """How long an empty classic group waits for more members before it is divided first."""

    group_session_timeout_ms_min: int = 6_000
    """The shortest session that a member of a classic group may ask for."""

    group_session_timeout_ms_max: int = 1_800_000
    """The longest session that a member of a classic group may ask for."""

    group_members_max: int = 10_000
    """Members that one group may have."""

    consumer_session_timeout_ms: int = 45_000
    """How long a member of a KIP-848 group may be silent before it is taken for gone."""

    consumer_heartbeat_interval_ms: int = 5_000
    """How often a member of a KIP-848 group has to be heard."""

    offsets_retention_ms: int = 7 * DAY_MS
    """How long the offsets of a group without members are kept."""

    offset_metadata_bytes_max: int = 4096
    """How much may be remembered beside an offset."""

    transaction_timeout_ms_max: int = 900_000
    """The longest that a transaction may be open."""

    transactional_id_expiration_ms: int = 7 * DAY_MS
    """How long an idle transactional id is remembered."""

    publication_expiration_ms: int = 90 * DAY_MS
    """How long the last publication of an idle publisher is remembered, in time that the machine
    runs. A Spark query that is started again later than that may write its last batch twice."""

    producer_id_expiration_ms: int = 1 * DAY_MS
    """How long a partition remembers an idle producer."""

    limit_producer_bytes_per_second: int | None = None
    """What a client may send a second to be kept, where no quota is set that fits it."""

    limit_consumer_bytes_per_second: int | None = None
    """What a client may read a second, where no quota is set that fits it."""

    limit_request_percent: int | None = None
    """How much of a core the requests of a client may take, where no quota is set that fits it."""

    limit_mutations_per_second: int | None = None
    """Partitions that a client may create or delete a second, where no quota is set that fits
    it."""

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
        "limit_producer_bytes_per_second": (1, 2**53),
        "limit_consumer_bytes_per_second": (1, 2**53),
        "limit_request_percent": (1, 100_000),
        "limit_mutations_per_second": (1, 2**31 - 1),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_switch("auto_create_topics", self.auto_create_topics)
        least, most = self.group_session_timeout_ms_min, self.group_session_timeout_ms_max
        if least > most:
            raise InvalidConfig(
                f"group_session_timeout_ms_min is {least}, allowed is up to"
                f" group_session_timeout_ms_max, which is {most}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig(_Limited):
    """What one node may set for its Kafka door."""

    request_size_max: int = 100 * MIB
    """Larger requests end the connection. Kafka's own limit."""

    connections_max: int = 20_000
    """Connections at once; beyond, new ones are closed."""

    connections_per_address_max: int = 20_000
    """Connections at once from one address."""

    idle_ms_max: int = 600_000
    """A connection without a request for so long is closed. Kafka's own limit."""

    handshake_ms_max: int = 10_000
    """How long a client may take from connecting to its first whole request."""

    request_ms_max: int = 30_000
    """How long a request may take to arrive whole, once its first byte came."""

    requests_in_flight_max: int = 1_000
    """Requests of one connection that are worked on at once; beyond, no more are read."""

    output_bytes_max: int = 512 * KIB
    """Answers of one connection that may wait to be read before no more requests are begun. One
    answer may exceed it: records are sent from where they lie."""

    output_ms_max: int = 60_000
    """A client that reads nothing for so long while answers wait is dropped."""

    receive_bytes_max: int = 512 * MIB
    """What all connections together may hold of requests; beyond, no more are read."""

    fetch_bytes_max: int = 55 * MIB
    """The most that one fetch returns, whatever the client asks for. Kafka's own limit."""

    fetch_sessions_max: int = 1_000
    """Fetch sessions that are remembered. Kafka's own limit."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "request_size_max": (1 * KIB, 1 * GIB),
        "connections_max": (1, 1_000_000),
        "connections_per_address_max": (1, 1_000_000),
        "idle_ms_max": (100, 2**31 - 1),
        "handshake_ms_max": (100, 2**31 - 1),
        "request_ms_max": (100, 2**31 - 1),
        "requests_in_flight_max": (1, 100_000),
        "output_bytes_max": (64 * KIB, 1 * GIB),
        "output_ms_max": (100, 2**31 - 1),
        "receive_bytes_max": (1 * MIB, 64 * GIB),
        "fetch_bytes_max": (1 * KIB, 1 * GIB),
        "fetch_sessions_max": (0, 1_000_000),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(_Limited):
    """What one node may set for its HTTP door."""

    connections_max: int = 10_000
    """Connections at once, live ones among them; beyond, new ones are closed."""

    connections_per_address_max: int = 10_000
    """Connections at once from one address."""

    head_size_max: int = 64 * KIB
    """Bytes of a request's first line and headers; with more, it is refused."""

    head_ms_max: int = 10_000
    """How long a request's first line and headers may take to arrive, from its first byte on; for
    the first request of a connection, from connecting on."""

    body_ms_max: int = 30_000
    """How long a body may take to arrive, from the end of its head on, however its bytes trickle
    in. This is also how fast a large one has to come: 16 MiB in 30 s, by default."""

    idle_ms_max: int = 600_000
    """A connection that asks for nothing for so long is closed."""

    output_ms_max: int = 60_000
    """A client that reads less than 64 KiB in so long, while more waits for it, is dropped."""

    receive_bytes_max: int = 512 * MIB
    """What all connections together may hold of requests; beyond, who sends is told 503."""

    output_bytes_max: int = 512 * MIB
    """What may wait for all clients together to be read; beyond, who does not read is dropped."""

    append_size_max: int = 16 * MIB
    """Bytes of a body that brings records."""

    live_bytes_max: int = 1 * MIB
    """What may wait for one live connection before it is told that it lags, and catches up."""

    heartbeat_ms: int = 15_000
    """How often a live connection hears something, though nothing happens."""

    stream_wait_ms: int = 3_000
    """How long a long poll of a stream waits for something new. Clients ask again at once, and an
    idle one costs next to nothing; the public conformance suite gives a poll five seconds."""

    console: bool = True
    """Whether the console is at `/`. It changes nothing, and shows what every client may read."""

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
        _check_switch("console", self.console)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig(_Limited):
    """What one node may set for what it says on standard error."""

    level: EventLevel = EventLevel.INFO
    """How much is said."""

    format: EventFormat = EventFormat.AUTO
    """How it is said."""

    def __post_init__(self) -> None:
        _check_member("level", self.level, EventLevel)
        _check_member("format", self.format, EventFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig(_Limited):
    """What one node may set for OpenTelemetry. Nothing is sent unless it is asked for."""

    traces: bool = False
    """Whether requests are followed, and what is found is sent to a collector."""

    traces_ratio: float = 0.01
    """How many of the requests are followed whose client does not say: 1 is all of them. What a
    client follows itself, by `traceparent`, is followed too."""

    traces_waiting_max: int = 2_048
    """Spans that may wait for the collector; beyond, more are dropped, and counted."""

    metrics: bool = False
    """Whether metrics are sent to a collector, beside those at `/metrics`."""

    metrics_interval_ms: int = 60_000
    """How often metrics are sent."""

    endpoint: str | None = None
    """Where the collector is, as `http://127.0.0.1:4318`; `/v1/traces` and `/v1/metrics` are added
    to it. Where it is not set, `OTEL_EXPORTER_OTLP_ENDPOINT` says it, or it is this machine."""

    service_name: str | None = None
    """What the node is called there; where it is not set, what `OTEL_SERVICE_NAME` says, or else
    `millstream`."""

    flush_ms_max: int = 3_000
    """How long stopping waits for the collector to take what is left."""

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
        if self.endpoint is not None and not is_url(self.endpoint):
            raise InvalidConfig(f"endpoint is {self.endpoint!r}, needed is {URL_WORDS}")
        if self.service_name is not None and not is_label(self.service_name):
            raise InvalidConfig(f"service_name is {self.service_name!r}, needed is {LABEL_WORDS}")

    @property
    def is_on(self) -> bool:
        """Whether anything is sent."""
        return self.traces or self.metrics


URL_WORDS = "http://HOST or https://HOST, with a port and a path where there are any"
URL_LENGTH_MAX = 2_000
LABEL_LENGTH_MAX = 200
LABEL_WORDS = f"text of 1 to {LABEL_LENGTH_MAX} characters that can be seen"


def is_url(text: Any) -> bool:
    """Whether something can be asked for there. Who asks is told by a header, not by the URL."""
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
    """Whether something can be called so."""
    return isinstance(text, str) and 1 <= len(text) <= LABEL_LENGTH_MAX and text.isprintable()


class Endpoint(NamedTuple):
    """A host and a port; port 0 lets the system pick one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_KAFKA = Endpoint("127.0.0.1", 9092)
_HTTP = Endpoint("127.0.0.1", 8080)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(_Limited):
    """What one node may set: where its data lies and where it is reached."""

    data: str = "./millstream-data"
    """The data directory."""

    kafka: Endpoint = _KAFKA
    """Where Kafka clients connect."""

    http: Endpoint = _HTTP
    """Where HTTP clients connect."""

    advertised: Endpoint | None = None
    """What Kafka clients are told to connect to, where that is not what the node listens on."""

    is_insecure: bool = False
    """Whether others than this machine may connect without saying who they are."""

    drain_ms_max: int = 25_000
    """How long stopping may take; then the node ends, and checks its logs at the next start."""

    drain_notice_ms: int = 0
    """How long a node that was told to stop says so at `/health/ready` and goes on serving, before
    it closes its doors: as long as a load balancer needs to send no more clients. It is part of
    the time that stopping may take."""

    loop_lag_ms_max: int = 500
    """How late the event loop may be, time after time, before the node is not ready."""

    broker: BrokerConfig = BrokerConfig()
    kafka_server: KafkaConfig = KafkaConfig()
    http_server: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    store: StoreConfig = StoreConfig()
    logging: LoggingConfig = LoggingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "drain_ms_max": (0, 3_600_000),
        "drain_notice_ms": (0, 3_600_000),
        "loop_lag_ms_max": (10, 3_600_000),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        if self.drain_notice_ms > self.drain_ms_max:
            raise InvalidConfig(
                f"drain_notice_ms is {self.drain_notice_ms}, allowed is up to drain_ms_max,"
                f" which is {self.drain_ms_max}"
            )
        for name, endpoint in (("kafka", self.kafka), ("http", self.http)):
            if not self.is_insecure and not is_loopback(endpoint.host):
                raise InvalidConfig(
                    f"{name} is {endpoint}, which others than this machine can reach: nobody has to"
                    " log in yet, so that has to be allowed with --insecure"
                )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def endpoint_named(text: str, *, name: str) -> Endpoint:
    """Return the endpoint that `text` describes: HOST:PORT, with brackets around an IPv6 host."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_host = bool(host) and not set(host) & set("/@ ")
    if not colon or not is_host or not port.isdecimal() or int(port) > PORT_MAX:
        raise InvalidConfig(f"{name} is {text!r}, needed is HOST:PORT with a port of 0-{PORT_MAX}")
    return Endpoint(host, int(port))


def durability_named(name: str) -> Durability:
    """Return the durability class that is called `name`."""
    try:
        return Durability(name)
    except ValueError:
        allowed = ", ".join(kind.value for kind in Durability)
        raise InvalidConfig(f"durability is {name!r}, allowed is {allowed}") from None


def settings_of(config: LogConfig | StoreConfig) -> dict[str, Any]:
    """Return the settings of `config` by name, as plain values; `None` is no limit."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {k: v.value if isinstance(v, enum.Enum) else v for k, v in values.items()}

"""Messages about a node: what it is, what it runs on, and its last minutes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

ServerName: TypeAlias = Literal["kafka", "http", "websocket"]
Counts: TypeAlias = list[int | None]
Measures: TypeAlias = list[float | None]


class MachineShape(Struct, kw_only=True):
    """The machine of the node. A number that the system does not report is null."""

    python: str
    kernel: str
    cpus: int
    cpu_list: str
    """Numbers of the processors that the node may run on, such as `0-3,6`."""
    cpu_quota: float | None
    """Number of processors that it may use, if a cgroup limits that."""
    checksums: str
    """How checksums are computed: `hardware` or `software`."""
    file_system: str
    free_bytes: int | None
    """Current free space of the file system with the data."""
    descriptors_max: int
    memory_bytes: int | None
    """Memory of the machine, or the limit of the cgroup."""
    page_bytes: int
    maps_max: int | None
    """Files that the process may map into memory at the same time."""
    clock_source: str
    """What the kernel reads the time from."""
    warnings: list[str]
    """What is unsuitable for a node, a sentence each."""


class OpenedShape(Struct, kw_only=True):
    """Result of opening the data when the node started."""

    logs: int
    scanned_bytes: int
    """Bytes that had to be scanned; 0 after a clean stop."""
    damaged_logs: int
    """Logs in which damage was found, then or by a reader since."""


class NodeAnswer(Struct, kw_only=True):
    """A node: its addresses, its machine, and the size of its data."""

    version: str
    node_id: int
    started_at: int
    uptime_ms: int
    status: str
    """`ready` or `not ready`, as in `GET /health/ready`."""
    problems: list[str]
    kafka: str
    """Address of the Kafka server."""
    http: str
    """URL of the HTTP server."""
    advertised: str
    """Address that Kafka clients are told to connect to."""
    data: str
    """The data directory, on the machine of the node."""
    commits: str
    """What waits for the disk: `kernel` or `threads`."""
    durability: str
    """Default durability class of topics."""
    event_loop: str
    machine: MachineShape
    opened: OpenedShape
    topics: int
    partitions: int
    groups: int
    queues: int
    kafka_connections: int
    http_connections: int
    """Includes those of watchers."""
    watchers: int
    """Connections with live delivery."""
    console: Literal["off", "read", "write"]
    """What the console can do: `http.console`."""


class ConnectionGroupShape(Struct, kw_only=True):
    """The open connections of one client from one address."""

    server: ServerName
    address: str
    client_id: str | None
    """The client id of the last request; null for HTTP, where every request has its own."""
    connections: int
    requests: int
    """Requests in flight, including fetches that wait for records."""
    idle_ms: int | None
    """Time since the last request of any of them; null for HTTP."""


class ConnectionsAnswer(Struct, kw_only=True):
    """The open connections of a node, by client."""

    kafka: int
    """Number of connections to the Kafka server."""
    kafka_max: int
    """The limit, `kafka.connections_max`."""
    http: int
    http_max: int
    clients: list[ConnectionGroupShape]
    """The clients with the most connections first; the first 1,000."""


class SeriesShape(Struct, kw_only=True):
    """One list for each metric, oldest sample first, all of the same length.

    A missing sample is null. Counters are given as their increase within that second.
    """

    appended_records: Counts
    appended_bytes: Counts
    read_bytes: Counts
    """Bytes sent to clients by both servers."""
    kafka_requests: Counts
    http_requests: Counts
    commit_p50_ms: Measures
    commit_p99_ms: Measures
    """Time until records were durable; 99 of 100 commits took no longer."""
    kafka_p99_ms: Measures
    """Response time, without requests that wait on purpose, such as fetches."""
    http_p99_ms: Measures
    connections: Counts
    """Of both servers."""
    cpu_percent: Measures
    """Of one processor: a node with busy threads can use more than 100."""
    memory_bytes: Counts


class HistoryAnswer(Struct, kw_only=True):
    """The last minutes of a node, with one sample per second."""

    interval_ms: int
    until: int
    """Time of the newest sample."""
    series: SeriesShape

"""A node over HTTP: what it is, what it runs on, and what it did in the last minutes."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

Counts: TypeAlias = list[int | None]
Measures: TypeAlias = list[float | None]


class MachineShape(Struct, kw_only=True):
    """What the node found on its machine. A number that the system does not tell is null."""

    python: str
    kernel: str
    cpus: int
    cpu_quota: float | None
    """How many processors it may use up, where a cgroup limits that."""
    checksums: str
    """Who sums batches: `hardware` or `software`."""
    file_system: str
    free_bytes: int | None
    """Room that is left on the disk with the data, now."""
    descriptors_max: int
    memory_bytes: int | None
    """What the machine has, or the cgroup allows."""


class OpenedShape(Struct, kw_only=True):
    """What opening the data found when the node started."""

    logs: int
    scanned_bytes: int
    """What had to be read through; 0 after a clean stop."""
    damaged_logs: int


class NodeAnswer(Struct, kw_only=True):
    """A node: where it is, what it runs on, and how much it holds."""

    version: str
    node_id: int
    started_at: int
    uptime_ms: int
    status: str
    """`ready` or `not ready`, as `GET /health/ready` says."""
    problems: list[str]
    kafka: str
    """Where the Kafka door listens."""
    http: str
    """Where the HTTP door listens, as a URL."""
    advertised: str
    """Where Kafka clients are told to connect."""
    data: str
    """The data directory, on the machine of the node."""
    commits: str
    """Who waits for the disk: `kernel` or `threads`."""
    event_loop: str
    machine: MachineShape
    opened: OpenedShape
    topics: int
    partitions: int
    groups: int
    queues: int
    kafka_connections: int
    http_connections: int
    """Those of watchers among them."""
    watchers: int
    """Connections that records are pushed to."""


class SeriesShape(Struct, kw_only=True):
    """One list for each thing that is watched, oldest first, all equally long.

    Null where there is nothing to tell. What is counted is told as what happened in that second.
    """

    appended_records: Counts
    appended_bytes: Counts
    read_bytes: Counts
    """Bytes that both doors sent to clients."""
    kafka_requests: Counts
    http_requests: Counts
    commit_p50_ms: Measures
    commit_p99_ms: Measures
    """How long the disk took to make records safe; 99 of 100 commits took no longer."""
    kafka_p99_ms: Measures
    """How long answers took; without requests that wait on purpose, such as fetches."""
    http_p99_ms: Measures
    connections: Counts
    """Of both doors."""
    cpu_percent: Measures
    """Of one processor: a node with busy threads can have more than 100."""
    memory_bytes: Counts


class HistoryAnswer(Struct, kw_only=True):
    """The last minutes of a node, one sample a second."""

    interval_ms: int
    until: int
    """When the newest sample was taken."""
    series: SeriesShape

"""What the Kafka door counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.histogram import LATENCY_BUCKETS
from millstream.observe.metrics.metric import (
    LabelledSources,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    bucket_counter,
    counter,
    gauge,
)
from millstream.servers.kafka.counters import RequestCounter
from millstream.servers.kafka.listener import KafkaListener

KAFKA_SERVER_METRICS: Sequence[MetricDeclaration[KafkaListener]] = (
    gauge(
        "millstream_kafka_connections",
        "Connections of Kafka clients.",
        lambda door: door.connection_count,
    ),
    MetricDeclaration(
        name="millstream_kafka_accepted_connections_total",
        kind=MetricKind.COUNTER,
        help="Connections that came, and whether they were taken: there is a limit for all"
        " together and one for each address.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("taken",), read=lambda door: door.counters.accepted),
            MetricSample(labels=("refused",), read=lambda door: door.counters.refused),
        ),
    ),
    counter(
        "millstream_kafka_closed_connections_total",
        "Connections that the node ended: malformed, too slow, idle, or an error of ours.",
        lambda door: door.counters.closed_by_us,
    ),
    counter(
        "millstream_kafka_received_bytes_total",
        "Bytes that clients sent.",
        lambda door: door.counters.received_bytes,
    ),
    counter(
        "millstream_kafka_sent_bytes_total",
        "Bytes of the answers that were handed to the sockets.",
        lambda door: door.counters.sent_bytes,
    ),
    counter(
        "millstream_kafka_throttled_requests_total",
        "Requests whose client has to wait before its next one, because of a quota.",
        lambda door: door.counters.throttled,
    ),
    counter(
        "millstream_kafka_throttle_seconds_total",
        "For how long those clients have to wait, all together.",
        lambda door: door.counters.throttle_seconds,
    ),
    gauge(
        "millstream_kafka_request_memory_bytes",
        "Memory that requests on their way in, or under way, take up.",
        lambda door: door.blocks.used_bytes,
    ),
    gauge(
        "millstream_kafka_fetch_sessions",
        "Fetch sessions that are remembered.",
        lambda door: len(door.fetch_sessions),
    ),
    gauge(
        "millstream_kafka_fetch_session_partitions",
        "Partitions that all fetch sessions together remember.",
        lambda door: door.fetch_sessions.partition_count,
    ),
    counter(
        "millstream_kafka_fetch_session_evictions_total",
        "Fetch sessions that were given up for new ones.",
        lambda door: door.fetch_sessions.evictions,
    ),
    gauge(
        "millstream_kafka_waiting_fetches",
        "Fetches that wait for records.",
        lambda door: len(door.fetch_sessions.waiting),
    ),
)

REQUEST_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    counter(
        "millstream_kafka_requests_total",
        "Requests that were answered, or had their effect where no answer is wanted.",
        lambda requests: requests.count,
    ),
    counter(
        "millstream_kafka_failed_requests_total",
        "Requests that failed by an error of ours, which ended their connection.",
        lambda requests: requests.errors,
    ),
    counter(
        "millstream_kafka_request_seconds_total",
        "Time from a request's beginning to its answer, all together; a fetch may wait on purpose.",
        lambda requests: requests.seconds,
    ),
    counter(
        "millstream_kafka_request_loop_seconds_total",
        "Of this, time for which the event loop did nothing else, as far as it is measured.",
        lambda requests: requests.loop_seconds,
    ),
)

DURATION_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    bucket_counter(
        "millstream_kafka_requests_within_total",
        "Requests that were answered within so many seconds (le), of those whose time matters most;"
        " a fetch may wait on purpose.",
        LATENCY_BUCKETS,
        lambda requests: requests.durations,
    ),
)

TIMED = ("Produce", "Fetch")
"""Requests whose times are told one by one: the others take no time, or wait for people."""

KAFKA_SERVER = MetricSection(metrics=KAFKA_SERVER_METRICS)
DURATIONS = MetricSection(metrics=DURATION_METRICS, labels=("api",))
REQUESTS = MetricSection(metrics=REQUEST_METRICS, labels=("api",))


def listed_durations(door: KafkaListener) -> LabelledSources[RequestCounter]:
    """Return what is counted of the requests whose times are told."""
    return [((name,), door.counters.requests[name]) for name in TIMED]


def listed_requests(door: KafkaListener) -> LabelledSources[RequestCounter]:
    """Return what is counted of each API: a number of them that clients cannot change."""
    return [((name,), found) for name, found in door.counters.requests.items()]

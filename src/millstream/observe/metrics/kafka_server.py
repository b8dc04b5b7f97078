"""Metrics of the Kafka server."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.histogram import LATENCY_BUCKETS
from millstream.observe.metrics.metric import (
    LabelledSources,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
    histogram,
)
from millstream.servers.kafka.listener import KafkaListener
from millstream.servers.request_counters import RequestCounter

KAFKA_SERVER_METRICS: Sequence[MetricDeclaration[KafkaListener]] = (
    gauge(
        "millstream_kafka_connections",
        "Open connections of Kafka clients.",
        lambda server: server.connection_count,
    ),
    MetricDeclaration(
        name="millstream_kafka_accepted_connections_total",
        kind=MetricKind.COUNTER,
        help="Connections, by whether they were accepted: there is a limit for all together and one"
        " for each address.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("taken",), read=lambda server: server.counters.accepted),
            MetricSample(labels=("refused",), read=lambda server: server.counters.refused.total()),
        ),
    ),
    counter(
        "millstream_kafka_closed_connections_total",
        "Connections closed by the node: malformed, too slow, idle, or an internal error.",
        lambda server: server.counters.closed_by_us,
    ),
    counter(
        "millstream_kafka_received_bytes_total",
        "Bytes received from clients.",
        lambda server: server.counters.received_bytes,
    ),
    counter(
        "millstream_kafka_sent_bytes_total",
        "Bytes of responses handed to sockets.",
        lambda server: server.counters.sent_bytes,
    ),
    counter(
        "millstream_kafka_throttled_requests_total",
        "Requests whose client was throttled by a quota.",
        lambda server: server.counters.throttled,
    ),
    counter(
        "millstream_kafka_throttle_seconds_total",
        "Total time for which clients were throttled.",
        lambda server: server.counters.throttle_seconds,
    ),
    gauge(
        "millstream_kafka_request_memory_bytes",
        "Memory used by requests that are arriving or in flight.",
        lambda server: server.blocks.used_bytes,
    ),
    gauge(
        "millstream_kafka_response_memory_bytes",
        "Memory of requests in flight, and of responses that wait to be read.",
        lambda server: server.response_memory.used_bytes,
    ),
    gauge(
        "millstream_kafka_fetch_sessions",
        "Fetch sessions.",
        lambda server: len(server.fetch_sessions),
    ),
    gauge(
        "millstream_kafka_fetch_session_partitions",
        "Partitions of all fetch sessions together.",
        lambda server: server.fetch_sessions.partition_count,
    ),
    counter(
        "millstream_kafka_fetch_session_evictions_total",
        "Fetch sessions evicted to make room for new ones.",
        lambda server: server.fetch_sessions.evictions,
    ),
    gauge(
        "millstream_kafka_waiting_fetches",
        "Fetches that wait for records.",
        lambda server: len(server.fetch_sessions.waiting),
    ),
)

REQUEST_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    counter(
        "millstream_kafka_requests_total",
        "Requests processed, including those that want no response.",
        lambda requests: requests.count,
    ),
    counter(
        "millstream_kafka_failed_requests_total",
        "Requests that failed with an internal error, which closed their connection.",
        lambda requests: requests.errors,
    ),
    counter(
        "millstream_kafka_request_seconds_total",
        "Total time from a request to its response; a fetch may wait on purpose.",
        lambda requests: requests.seconds,
    ),
    counter(
        "millstream_kafka_request_loop_seconds_total",
        "Part of this time that the event loop was occupied, as far as it is measured.",
        lambda requests: requests.loop_seconds,
    ),
)

DURATION_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    histogram(
        "millstream_kafka_request_duration_seconds",
        "Time until a produce or fetch request was answered; a fetch may wait on purpose.",
        LATENCY_BUCKETS,
        lambda requests: requests.durations,
    ),
)

TIMED = ("Produce", "Fetch")
"""APIs with a histogram of durations: the others take no time, or wait for people."""

KAFKA_SERVER = MetricSection(metrics=KAFKA_SERVER_METRICS)
DURATIONS = MetricSection(metrics=DURATION_METRICS, labels=("api",))
REQUESTS = MetricSection(metrics=REQUEST_METRICS, labels=("api",))


def listed_durations(server: KafkaListener) -> LabelledSources[RequestCounter]:
    """Return the counters of the APIs with a histogram."""
    return [((name,), server.counters.requests[name]) for name in TIMED]


def listed_requests(server: KafkaListener) -> LabelledSources[RequestCounter]:
    """Return the counters of each API: a fixed number, which clients cannot increase."""
    return [((name,), requests) for name, requests in server.counters.requests.items()]

"""Metrics of the native server, of a node that has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from millstream.servers.request_counters import RequestCounter

if TYPE_CHECKING:
    from millstream.servers.native.listener import NativeListener

NATIVE_SERVER_METRICS: Sequence[MetricDeclaration[NativeListener]] = (
    gauge(
        "millstream_native_connections",
        "Open connections of native clients.",
        lambda server: server.connection_count,
    ),
    MetricDeclaration(
        name="millstream_native_accepted_connections_total",
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
        "millstream_native_closed_connections_total",
        "Connections closed by the node: no frame, too slow, idle, or an internal error.",
        lambda server: server.counters.closed_by_us,
    ),
    counter(
        "millstream_native_received_bytes_total",
        "Bytes received from native clients.",
        lambda server: server.counters.received_bytes,
    ),
    counter(
        "millstream_native_sent_bytes_total",
        "Bytes of answers handed to sockets.",
        lambda server: server.counters.sent_bytes,
    ),
    counter(
        "millstream_native_ingested_records_total",
        "Records appended by native clients; a payload that is no sequence of records counts one.",
        lambda server: server.counters.ingested_records,
    ),
    counter(
        "millstream_native_fetched_records_total",
        "Records sent to native clients.",
        lambda server: server.counters.fetched_records,
    ),
    counter(
        "millstream_native_refused_frames_total",
        "Frames answered with an error.",
        lambda server: server.counters.refused_requests,
    ),
    counter(
        "millstream_native_backpressure_total",
        "Frames with records that were answered with Backpressure, and not appended.",
        lambda server: server.counters.backpressure,
    ),
    counter(
        "millstream_native_catching_up_total",
        "Fetches past the end of the topic, which were answered with the newest offset.",
        lambda server: server.counters.catching_up,
    ),
    counter(
        "millstream_native_throttled_requests_total",
        "Frames whose client was throttled by a quota.",
        lambda server: server.counters.throttled,
    ),
    counter(
        "millstream_native_throttle_seconds_total",
        "Total time for which native clients were throttled.",
        lambda server: server.counters.throttle_seconds,
    ),
    gauge(
        "millstream_native_subscriptions",
        "Subscriptions of native consumers.",
        lambda server: len(server.subscriptions),
    ),
    gauge(
        "millstream_native_request_memory_bytes",
        "Memory used by frames that are arriving or in flight.",
        lambda server: server.blocks.used_bytes,
    ),
    gauge(
        "millstream_native_response_memory_bytes",
        "Memory of frames in flight, and of answers that wait to be read.",
        lambda server: server.response_memory.used_bytes,
    ),
)

NATIVE_REQUEST_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    counter(
        "millstream_native_requests_total",
        "Frames processed, by operation.",
        lambda requests: requests.count,
    ),
    counter(
        "millstream_native_failed_requests_total",
        "Frames that failed with an internal error, which closed their connection.",
        lambda requests: requests.errors,
    ),
    counter(
        "millstream_native_request_seconds_total",
        "Total time from a frame to its answer.",
        lambda requests: requests.seconds,
    ),
)

NATIVE_DURATION_METRICS: Sequence[MetricDeclaration[RequestCounter]] = (
    histogram(
        "millstream_native_request_duration_seconds",
        "Time until records were acknowledged, or fetched.",
        LATENCY_BUCKETS,
        lambda requests: requests.durations,
    ),
)

TIMED = ("Ingest", "Fetch")
"""Operations with a histogram of durations."""

NATIVE_SERVER = MetricSection(metrics=NATIVE_SERVER_METRICS)
NATIVE_REQUESTS = MetricSection(metrics=NATIVE_REQUEST_METRICS, labels=("operation",))
NATIVE_DURATIONS = MetricSection(metrics=NATIVE_DURATION_METRICS, labels=("operation",))


def listed_native_requests(server: NativeListener) -> LabelledSources[RequestCounter]:
    """Return the counters of each operation: a fixed number, which clients cannot increase."""
    return [((name,), requests) for name, requests in server.counters.requests.items()]


def listed_native_durations(server: NativeListener) -> LabelledSources[RequestCounter]:
    """Return the counters of the operations with a histogram."""
    return [((name,), server.counters.requests[name]) for name in TIMED]

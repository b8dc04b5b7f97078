"""What the HTTP door counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.quotas import QuotaKind
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
from millstream.servers.http.counters import CLOSE_REASONS, REFUSALS, SECONDS, RouteCounter
from millstream.servers.http.server.server_state import HttpServerState


def _refused(reason: str) -> MetricSample[HttpServerState]:
    return MetricSample(labels=(reason,), read=lambda door: door.counters.refused[reason])


def _ended(reason: str) -> MetricSample[HttpServerState]:
    return MetricSample(labels=(reason,), read=lambda door: door.counters.ended[reason])


def _throttled(quota: str) -> MetricSample[HttpServerState]:
    return MetricSample(labels=(quota,), read=lambda door: door.counters.throttled[quota])


def _held(quota: str) -> MetricSample[HttpServerState]:
    return MetricSample(labels=(quota,), read=lambda door: door.counters.held_deliveries[quota])


def _throttle_seconds(quota: str) -> MetricSample[HttpServerState]:
    return MetricSample(labels=(quota,), read=lambda door: door.counters.throttle_seconds[quota])


def _answered(digit: int) -> MetricSample[RouteCounter]:
    return MetricSample(labels=(f"{digit}xx",), read=lambda route: route.by_class[digit])


HTTP_SERVER_METRICS: Sequence[MetricDeclaration[HttpServerState]] = (
    gauge(
        "millstream_http_connections",
        "Connections of HTTP clients, live ones among them.",
        lambda door: len(door.connections),
    ),
    counter(
        "millstream_http_accepted_connections_total",
        "Connections that came and were taken.",
        lambda door: door.counters.accepted,
    ),
    MetricDeclaration(
        name="millstream_http_refused_connections_total",
        kind=MetricKind.COUNTER,
        help="Connections that came and were not taken: too many in all, from one address, or for"
        " the descriptors that the process may have.",
        labels=("reason",),
        samples=tuple(_refused(reason) for reason in REFUSALS),
    ),
    MetricDeclaration(
        name="millstream_http_closed_connections_total",
        kind=MetricKind.COUNTER,
        help="Connections that the node ended: what came was malformed; its head, its body, or"
        " anything at all came too late; what waited was not read (output); no memory.",
        labels=("reason",),
        samples=tuple(_ended(reason) for reason in CLOSE_REASONS),
    ),
    counter(
        "millstream_http_received_bytes_total",
        "Bytes that clients sent, those of WebSockets not among them.",
        lambda door: door.counters.received_bytes,
    ),
    counter(
        "millstream_http_sent_bytes_total",
        "Bytes of the answers that were handed to the sockets, those of WebSockets not among them.",
        lambda door: door.counters.sent_bytes,
    ),
    gauge(
        "millstream_http_request_memory_bytes",
        "Bytes of requests that are arriving, under way, or wait behind one that is.",
        lambda door: door.counters.held_bytes,
    ),
    gauge(
        "millstream_http_unread_bytes",
        "Bytes of answers that hold up something because their clients do not read them.",
        lambda door: door.counters.unread_bytes,
    ),
    MetricDeclaration(
        name="millstream_http_throttled_requests_total",
        kind=MetricKind.COUNTER,
        help="Requests that were refused with 429, because their client owed what this quota does"
        " not allow it.",
        labels=("quota",),
        samples=tuple(_throttled(kind.value) for kind in QuotaKind),
    ),
    MetricDeclaration(
        name="millstream_http_held_deliveries_total",
        kind=MetricKind.COUNTER,
        help="How often live delivery, or the push of jobs, waited because its client owed.",
        labels=("quota",),
        samples=tuple(_held(kind.value) for kind in QuotaKind),
    ),
    MetricDeclaration(
        name="millstream_http_throttle_seconds_total",
        kind=MetricKind.COUNTER,
        help="For how long those clients were told to wait, or had to, all together.",
        labels=("quota",),
        samples=tuple(_throttle_seconds(kind.value) for kind in QuotaKind),
    ),
    bucket_counter(
        "millstream_http_requests_within_total",
        "Requests whose answer began within so many seconds (le), the faster ones among them;"
        " a long poll may wait on purpose.",
        SECONDS,
        lambda door: door.counters.durations,
    ),
)

ROUTE_METRICS: Sequence[MetricDeclaration[RouteCounter]] = (
    MetricDeclaration(
        name="millstream_http_requests_total",
        kind=MetricKind.COUNTER,
        help="Requests that were answered, by operation and kind of status. What matched no"
        " operation is `other`.",
        labels=("status",),
        samples=tuple(_answered(digit) for digit in (2, 3, 4, 5)),
    ),
    counter(
        "millstream_http_request_seconds_total",
        "Time from a request to the beginning of its answer, all together.",
        lambda route: route.seconds,
    ),
)

HTTP_SERVER = MetricSection(metrics=HTTP_SERVER_METRICS)
ROUTES = MetricSection(metrics=ROUTE_METRICS, labels=("method", "route"))


def listed_routes(door: HttpServerState) -> LabelledSources[RouteCounter]:
    """Return what is counted of each operation: a number of them that clients cannot change."""
    return list(door.counters.routes.items())

"""Metrics of the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.quotas import QuotaKind
from millstream.observe.metrics.metric import (
    LabelledSources,
    MetricDeclaration,
    MetricSection,
    counter,
    counter_by,
    gauge,
    histogram,
)
from millstream.servers.http.counters import CLOSE_REASONS, REFUSALS, SECONDS, RouteCounter
from millstream.servers.http.server.server_state import HttpServerState

QUOTAS = [kind.value for kind in QuotaKind]

HTTP_SERVER_METRICS: Sequence[MetricDeclaration[HttpServerState]] = (
    gauge(
        "millstream_http_connections",
        "Open connections of HTTP clients, live ones included.",
        lambda server: len(server.connections),
    ),
    counter(
        "millstream_http_accepted_connections_total",
        "Connections accepted.",
        lambda server: server.counters.accepted,
    ),
    counter_by(
        "reason",
        REFUSALS,
        "millstream_http_refused_connections_total",
        "Connections refused: too many in total, from one address, or for the descriptor limit"
        " of the process; or no TLS connection came about (tls).",
        lambda server, reason: server.counters.refused[reason],
    ),
    counter_by(
        "reason",
        CLOSE_REASONS,
        "millstream_http_closed_connections_total",
        "Connections closed by the node: a malformed request; a head, a body or any request"
        " that came too late; a response that was not read (output); no memory;"
        " a certificate that names no user (tls).",
        lambda server, reason: server.counters.ended[reason],
    ),
    counter(
        "millstream_http_received_bytes_total",
        "Bytes received from clients, without WebSockets.",
        lambda server: server.counters.received_bytes,
    ),
    counter(
        "millstream_http_sent_bytes_total",
        "Bytes of responses handed to sockets, without WebSockets.",
        lambda server: server.counters.sent_bytes,
    ),
    gauge(
        "millstream_http_request_memory_bytes",
        "Bytes of requests that are arriving, in flight, or queued behind one in flight.",
        lambda server: server.counters.held_bytes,
    ),
    gauge(
        "millstream_http_unread_bytes",
        "Bytes of responses that wait for their clients to read.",
        lambda server: server.counters.unread_bytes,
    ),
    counter_by(
        "quota",
        QUOTAS,
        "millstream_http_throttled_requests_total",
        "Requests rejected with status 429, because their client exceeded this quota.",
        lambda server, quota: server.counters.throttled[quota],
    ),
    counter_by(
        "quota",
        QUOTAS,
        "millstream_http_held_deliveries_total",
        "Pauses of live delivery, or of the push of jobs, because the client exceeded a quota.",
        lambda server, quota: server.counters.held_deliveries[quota],
    ),
    counter_by(
        "quota",
        QUOTAS,
        "millstream_http_throttle_seconds_total",
        "Total time that clients were told to wait, or were paused, by a quota.",
        lambda server, quota: server.counters.throttle_seconds[quota],
    ),
    histogram(
        "millstream_http_request_duration_seconds",
        "Time until the response to a request began; a long poll may wait on purpose.",
        SECONDS,
        lambda server: server.counters.durations,
    ),
)

ROUTE_METRICS: Sequence[MetricDeclaration[RouteCounter]] = (
    counter_by(
        "status",
        ("2xx", "3xx", "4xx", "5xx"),
        "millstream_http_requests_total",
        "Requests answered, by operation and class of status. Requests that match no operation"
        " count as `other`.",
        lambda route, status: route.by_class[int(status[0])],
    ),
    counter(
        "millstream_http_request_seconds_total",
        "Total time from the request to the beginning of its response.",
        lambda route: route.seconds,
    ),
)

HTTP_SERVER = MetricSection(metrics=HTTP_SERVER_METRICS)
ROUTES = MetricSection(metrics=ROUTE_METRICS, labels=("method", "route"))


def listed_routes(server: HttpServerState) -> LabelledSources[RouteCounter]:
    """Return the counters of each operation: a fixed number, which clients cannot increase."""
    return list(server.counters.routes.items())

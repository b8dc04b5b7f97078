"""What the HTTP door counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.quotas import QuotaKind
from millstream.http.counters import ENDINGS, REFUSALS, SECONDS, RouteCounter
from millstream.http.doorway import Doorway
from millstream.observe.metrics import (
    Declared,
    Kind,
    Listed,
    Sample,
    Section,
    counter,
    gauge,
    within,
)


def _refused(reason: str) -> Sample[Doorway]:
    return Sample(labels=(reason,), read=lambda door: door.counters.refused[reason])


def _ended(reason: str) -> Sample[Doorway]:
    return Sample(labels=(reason,), read=lambda door: door.counters.ended[reason])


def _throttled(quota: str) -> Sample[Doorway]:
    return Sample(labels=(quota,), read=lambda door: door.counters.throttled[quota])


def _held(quota: str) -> Sample[Doorway]:
    return Sample(labels=(quota,), read=lambda door: door.counters.held_deliveries[quota])


def _throttle_seconds(quota: str) -> Sample[Doorway]:
    return Sample(labels=(quota,), read=lambda door: door.counters.throttle_seconds[quota])


def _answered(digit: int) -> Sample[RouteCounter]:
    return Sample(labels=(f"{digit}xx",), read=lambda route: route.by_class[digit])


HTTP_DOOR_METRICS: Sequence[Declared[Doorway]] = (
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
    Declared(
        name="millstream_http_refused_connections_total",
        kind=Kind.COUNTER,
        help="Connections that came and were not taken: too many in all, from one address, or for"
        " the descriptors that the process may have.",
        labels=("reason",),
        samples=tuple(_refused(reason) for reason in REFUSALS),
    ),
    Declared(
        name="millstream_http_closed_connections_total",
        kind=Kind.COUNTER,
        help="Connections that the node ended: what came was malformed; its head, its body, or"
        " anything at all came too late; what waited was not read (output); no memory.",
        labels=("reason",),
        samples=tuple(_ended(reason) for reason in ENDINGS),
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
    Declared(
        name="millstream_http_throttled_requests_total",
        kind=Kind.COUNTER,
        help="Requests that were refused with 429, because their client owed what this quota does"
        " not allow it.",
        labels=("quota",),
        samples=tuple(_throttled(kind.value) for kind in QuotaKind),
    ),
    Declared(
        name="millstream_http_held_deliveries_total",
        kind=Kind.COUNTER,
        help="How often live delivery, or the push of jobs, waited because its client owed.",
        labels=("quota",),
        samples=tuple(_held(kind.value) for kind in QuotaKind),
    ),
    Declared(
        name="millstream_http_throttle_seconds_total",
        kind=Kind.COUNTER,
        help="For how long those clients were told to wait, or had to, all together.",
        labels=("quota",),
        samples=tuple(_throttle_seconds(kind.value) for kind in QuotaKind),
    ),
    within(
        "millstream_http_requests_within_total",
        "Requests whose answer began within so many seconds (le), the faster ones among them;"
        " a long poll may wait on purpose.",
        SECONDS,
        lambda door: door.counters.durations,
    ),
)

ROUTE_METRICS: Sequence[Declared[RouteCounter]] = (
    Declared(
        name="millstream_http_requests_total",
        kind=Kind.COUNTER,
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

HTTP_DOOR = Section(metrics=HTTP_DOOR_METRICS)
ROUTES = Section(metrics=ROUTE_METRICS, labels=("method", "route"))


def listed_routes(door: Doorway) -> Listed[RouteCounter]:
    """Return what is counted of each operation: a number of them that clients cannot change."""
    return list(door.counters.routes.items())

"""Metrics of live delivery."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
)
from millstream.servers.http.live.counters import LiveCounters

LIVE_METRICS: Sequence[MetricDeclaration[LiveCounters]] = (
    MetricDeclaration(
        name="millstream_http_live_connections",
        kind=MetricKind.GAUGE,
        help="Live connections, which can watch topics.",
        labels=("by",),
        samples=(
            MetricSample(labels=("sse",), read=lambda live: live.event_streams),
            MetricSample(labels=("websocket",), read=lambda live: live.sockets),
        ),
    ),
    gauge(
        "millstream_http_live_feeds",
        "Partitions with at least one watcher.",
        lambda live: live.feeds,
    ),
    counter(
        "millstream_http_live_encodings_total",
        "Batches of records encoded, each once for all watchers.",
        lambda live: live.encodings,
    ),
    counter(
        "millstream_http_live_catch_ups_total",
        "Reads from a log for one watcher that was behind.",
        lambda live: live.catch_ups,
    ),
    counter(
        "millstream_http_live_lags_total",
        "Times that a watcher was too slow and fell behind.",
        lambda live: live.lags,
    ),
    counter(
        "millstream_http_live_gaps_total",
        "Gaps reported to watchers: records deleted by retention before they were sent.",
        lambda live: live.gaps,
    ),
    counter(
        "millstream_http_live_events_total",
        "Events and responses sent to watchers.",
        lambda live: live.events,
    ),
    counter(
        "millstream_http_live_sent_bytes_total",
        "Bytes of these events and responses.",
        lambda live: live.sent_bytes,
    ),
)

LIVE = MetricSection(metrics=LIVE_METRICS)

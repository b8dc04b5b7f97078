"""What live delivery counts, as Prometheus reads it."""

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
        help="Connections that watch topics, or may.",
        labels=("by",),
        samples=(
            MetricSample(labels=("sse",), read=lambda live: live.event_streams),
            MetricSample(labels=("websocket",), read=lambda live: live.sockets),
        ),
    ),
    gauge(
        "millstream_http_live_feeds",
        "Partitions that somebody watches.",
        lambda live: live.feeds,
    ),
    counter(
        "millstream_http_live_encodings_total",
        "Bursts of records that were encoded, each once for all who watch.",
        lambda live: live.encodings,
    ),
    counter(
        "millstream_http_live_catch_ups_total",
        "Pieces that were read from a log for one watcher, because it was behind.",
        lambda live: live.catch_ups,
    ),
    counter(
        "millstream_http_live_lags_total",
        "How often a watcher was too slow for what came, and fell behind.",
        lambda live: live.lags,
    ),
    counter(
        "millstream_http_live_gaps_total",
        "How often a watcher was told that retention took records that it had not seen.",
        lambda live: live.gaps,
    ),
    counter(
        "millstream_http_live_events_total",
        "Events and answers that were sent to watchers.",
        lambda live: live.events,
    ),
    counter(
        "millstream_http_live_sent_bytes_total",
        "Bytes of these.",
        lambda live: live.sent_bytes,
    ),
)

LIVE = MetricSection(metrics=LIVE_METRICS)

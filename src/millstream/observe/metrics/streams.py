"""Metrics of Durable Streams, all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.streams.counters import READS
from millstream.broker.streams.stream_coordinators import StreamCoordinators
from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    counter_by,
    gauge,
)

STREAM_METRICS: Sequence[MetricDeclaration[StreamCoordinators]] = (
    gauge("millstream_broker_streams", "Streams.", lambda streams: streams.count),
    counter(
        "millstream_stream_creations_total",
        "Streams created, forks included.",
        lambda streams: streams.counters.created,
    ),
    counter(
        "millstream_stream_deletions_total",
        "Streams deleted, over any protocol or because they expired.",
        lambda streams: streams.counters.deleted,
    ),
    counter(
        "millstream_stream_expirations_total",
        "Streams deleted because they expired.",
        lambda streams: streams.counters.expired,
    ),
    MetricDeclaration(
        name="millstream_stream_appends_total",
        kind=MetricKind.COUNTER,
        help="Appends to streams: stored ones, and duplicates, which were not stored again.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("stored",), read=lambda streams: streams.counters.appends),
            MetricSample(labels=("duplicate",), read=lambda streams: streams.counters.duplicates),
        ),
    ),
    counter(
        "millstream_stream_records_total",
        "Records in the appends that were stored.",
        lambda streams: streams.counters.records,
    ),
    counter(
        "millstream_stream_appended_bytes_total",
        "Bytes of the bodies of these appends.",
        lambda streams: streams.counters.bytes,
    ),
    counter(
        "millstream_stream_closes_total",
        "Requests that closed a stream without appending.",
        lambda streams: streams.counters.closes,
    ),
    counter_by(
        "by",
        READS,
        "millstream_stream_reads_total",
        "Requests that read a stream: stored data, or live by long poll or server-sent events.",
        lambda streams, how: streams.counters.reads[how],
    ),
    gauge(
        "millstream_stream_waiting_requests",
        "Requests that wait for new data in a stream.",
        lambda streams: streams.waiting_count,
    ),
)

STREAMS = MetricSection(metrics=STREAM_METRICS)

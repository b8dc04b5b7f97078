"""Metrics of the metadata store: SQLite of a single node, or etcd of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.histogram import LATENCY_BUCKETS, Histogram
from millstream.metadata.interface import Metadata
from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricSection,
    counter,
    gauge,
    histogram,
)

METADATA_METRICS: Sequence[MetricDeclaration[Metadata]] = (
    gauge(
        "millstream_metadata_revision",
        "The highest revision of the metadata that the node has seen.",
        lambda metadata: metadata.revision,
    ),
    counter(
        "millstream_metadata_reconnects_total",
        "Calls to etcd that went on to another endpoint after one had failed.",
        lambda metadata: metadata.counters.reconnects,
    ),
    counter(
        "millstream_metadata_watch_restarts_total",
        "How often the stream of changes from etcd ended and was opened again.",
        lambda metadata: metadata.counters.watch_restarts,
    ),
    counter(
        "millstream_metadata_relists_total",
        "How often all keys were listed because etcd had compacted changes before they were seen.",
        lambda metadata: metadata.counters.relists,
    ),
    counter(
        "millstream_metadata_failed_renewals_total",
        "Renewals of leases in etcd that failed.",
        lambda metadata: metadata.counters.failed_renewals,
    ),
    gauge(
        "millstream_metadata_watch_lag_seconds",
        "How long a change that is known to exist has not arrived from etcd; 0 if there is none.",
        lambda metadata: metadata.counters.watch_lag_seconds(),
    ),
)

METADATA = MetricSection(metrics=METADATA_METRICS)

METADATA_DURATIONS: MetricSection[Histogram] = MetricSection(
    metrics=(
        histogram(
            "millstream_metadata_call_duration_seconds",
            "Duration of calls to the metadata store, by call and outcome: `done`; `refused`, an"
            " error of the caller; `unavailable`, nothing was changed; `unknown`, a change may have"
            " been made; `failed`.",
            LATENCY_BUCKETS,
            lambda duration: duration,
        ),
    ),
    labels=("call", "outcome"),
)


def listed_metadata_durations(metadata: Metadata) -> Iterator[tuple[tuple[str, str], Histogram]]:
    """Yield the durations of the calls that were made."""
    yield from list(metadata.counters.seconds.items())

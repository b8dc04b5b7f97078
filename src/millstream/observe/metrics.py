"""What the logs of a store count, as Prometheus reads it.

    REGISTRY.register(StoreCollector(store))

Nothing here runs while records pass by: the logs keep plain numbers, and a scrape reads them. A
log counts from when it was opened, so a log that is opened again starts at zero, which Prometheus
takes for a restart. A scrape may come from any thread; what it reads may be a few appends apart.

`LOG_METRICS` and `STORE_METRICS` are the only places where a metric is declared; the manual is
generated from them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millstream.storage.log import Log
from millstream.storage.store import Store

S = TypeVar("S")

LOG_LABELS = ("topic", "partition")


class Kind(enum.Enum):
    """How a number moves."""

    COUNTER = "counter"
    """Only up, until the log is opened again. The name ends in `_total`."""

    GAUGE = "gauge"
    """Up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Generic[S]):
    """One number of a metric, and the labels that tell it from the others of the same metric."""

    read: Callable[[S], float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(Generic[S]):
    """One metric: its name, which ends in its unit, what it means, and where the number is."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample[S], ...]
    labels: tuple[str, ...] = ()
    """Labels beside those that say which log."""


def _counter(name: str, text: str, read: Callable[[Log], float]) -> Declared[Log]:
    return Declared(name=name, kind=Kind.COUNTER, help=text, samples=(Sample(read=read),))


def _gauge(name: str, text: str, read: Callable[[S], float]) -> Declared[S]:
    return Declared(name=name, kind=Kind.GAUGE, help=text, samples=(Sample(read=read),))


LOG_METRICS: Sequence[Declared[Log]] = (
    _counter(
        "millstream_log_appends_total",
        "Batches that were written.",
        lambda log: log.counters.appends,
    ),
    _counter(
        "millstream_log_records_total",
        "Records in the batches that were written.",
        lambda log: log.counters.records,
    ),
    _counter(
        "millstream_log_appended_bytes_total",
        "Bytes of the batches that were written, headers included.",
        lambda log: log.counters.bytes,
    ),
    _counter(
        "millstream_log_writes_total",
        "Writes to the log file; one takes all batches that arrived in one turn of the loop.",
        lambda log: log.counters.writes,
    ),
    _counter(
        "millstream_log_syncs_total",
        "Syncs of the log file; one serves all batches that were written before it began.",
        lambda log: log.counters.syncs,
    ),
    _counter(
        "millstream_log_sync_seconds_total",
        "Time that commits spent waiting for the disk.",
        lambda log: log.counters.sync_seconds,
    ),
    _counter(
        "millstream_log_rolls_total",
        "Segments that were begun.",
        lambda log: log.counters.rolls,
    ),
    _counter(
        "millstream_log_seals_total",
        "Segments that were sealed.",
        lambda log: log.counters.seals,
    ),
    Declared(
        name="millstream_log_refused_appends_total",
        kind=Kind.COUNTER,
        help="Batches that were not taken: the disk was full, or too much waited for it already.",
        labels=("reason",),
        samples=(
            Sample(labels=("full",), read=lambda log: log.counters.refusals_full),
            Sample(labels=("busy",), read=lambda log: log.counters.refusals_busy),
        ),
    ),
    _gauge(
        "millstream_log_unflushed_bytes",
        "Bytes that were admitted and wait for the disk.",
        lambda log: log.unflushed_bytes,
    ),
    _gauge(
        "millstream_log_start_offset",
        "The first offset that can be read.",
        lambda log: log.start_offset,
    ),
    _gauge(
        "millstream_log_end_offset",
        "The offset after the last committed record.",
        lambda log: log.end_offset,
    ),
    _gauge(
        "millstream_log_segments",
        "Segments that the log consists of.",
        lambda log: len(log.segments),
    ),
    _gauge(
        "millstream_log_offline_flag",
        "1 while the log takes no appends until it is opened again, else 0.",
        lambda log: log.offline is not None,
    ),
    _gauge(
        "millstream_log_recovered_bytes",
        "Bytes that had to be scanned when the log was opened; 0 after a clean shutdown.",
        lambda log: log.counters.recovered_bytes,
    ),
)

STORE_METRICS: Sequence[Declared[Store]] = (
    _gauge(
        "millstream_store_open_logs",
        "Logs that are open.",
        lambda store: len(store.open_logs),
    ),
    Declared(
        name="millstream_store_sync_backend_info",
        kind=Kind.GAUGE,
        help="1 for whoever waits for the disk when a log is committed: the kernel, or threads.",
        labels=("backend",),
        samples=(
            Sample(labels=("kernel",), read=lambda store: store.sync_backend == "kernel"),
            Sample(labels=("threads",), read=lambda store: store.sync_backend == "threads"),
        ),
    ),
    _gauge(
        "millstream_store_open_maps",
        "Sealed segments that are mapped for reading.",
        lambda store: store.maps_open,
    ),
)


class StoreCollector(Collector):
    """Reads the counters of a store and of all its open logs whenever Prometheus asks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        """Name all metrics without reading any."""
        for of_log in LOG_METRICS:
            yield _family(of_log, LOG_LABELS)
        for of_store in STORE_METRICS:
            yield _family(of_store, ())

    def collect(self) -> Iterable[Metric]:
        """Read every number once."""
        logs = [(_labels_of(log), log) for log in self._store.open_logs]
        for of_log in LOG_METRICS:
            yield _collected(of_log, LOG_LABELS, logs)
        for of_store in STORE_METRICS:
            yield _collected(of_store, (), [((), self._store)])


def _collected(
    declared: Declared[S],
    label_names: tuple[str, ...],
    sources: Iterable[tuple[tuple[str, ...], S]],
) -> Metric:
    family = _family(declared, label_names)
    for labels, source in sources:
        for sample in declared.samples:
            family.add_metric([*labels, *sample.labels], float(sample.read(source)))
    return family


def _family(
    declared: Declared[S], label_names: tuple[str, ...]
) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if declared.kind is Kind.COUNTER else GaugeMetricFamily
    return family(declared.name, declared.help, labels=[*label_names, *declared.labels])


def _labels_of(log: Log) -> tuple[str, str]:
    topic, _, partition = log.name.rpartition("/")
    return topic, partition

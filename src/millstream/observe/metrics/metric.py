"""Declarations of metrics, and how they are written.

    counters, lengths, states ──► MetricSection.text      ──► GET /metrics of a node
                              ├─► MetricSection.families  ──► a registry of prometheus_client
                              └─► MetricSection.readings  ──► OpenTelemetry, if it is turned on

Nothing here runs on the path of records: counters are plain numbers, and a scrape reads them. A
node writes the text itself, one metric at a time, so that its event loop can do other work in
between: prometheus_client takes ten times as long per line, and writes all lines at once.

`LISTED_MAX` bounds the cost of a scrape, whatever clients create: beyond that many partitions,
those opened first have metrics of their own, the others count in totals only, and their number is a
metric too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from millstream.histogram import Histogram

S = TypeVar("S")
V = TypeVar("V", bound=str)
"""A value of a label."""

LISTED_MAX = 1_000
"""Things of each kind that have metrics of their own. Measured with this many of every kind: a
scrape is 3 megabytes and takes 100 ms of the loop, in pieces of at most 10 ms.
"""

LabelledSources: TypeAlias = Iterable[tuple[tuple[str, ...], S]]
"""Things of one kind, each with the label values that identify it."""


class MetricKind(enum.Enum):
    """Type of a metric, as Prometheus defines it."""

    COUNTER = "counter"
    """Only increases, until its source is opened again. The name ends in `_total`."""

    GAUGE = "gauge"
    """Can increase and decrease."""

    HISTOGRAM = "histogram"
    """Counts of values up to each of some bounds, with their sum. The name ends in the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample(Generic[S]):
    """One number of a metric, with the label values that identify it within the metric."""

    read: Callable[[S], float]
    labels: tuple[str, ...] = ()
    suffix: str = ""
    """What the number is called after the metric's name: a part of a histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeclaration(Generic[S]):
    """One metric: its name, which ends in its unit, its help text, and how its numbers are read."""

    name: str
    kind: MetricKind
    help: str
    samples: tuple[MetricSample[S], ...]
    labels: tuple[str, ...] = ()
    """Labels in addition to those of the section. Of a histogram, only buckets have one: `le`."""

    def labels_of(self, sample: MetricSample[S]) -> tuple[str, ...]:
        """Return the labels of one number."""
        return self.labels[: len(sample.labels)]

    def parts(self) -> Iterator[tuple[str, MetricKind, tuple[MetricSample[S], ...]]]:
        """Yield name, type and samples of each series: a histogram is three counters."""
        if self.kind is not MetricKind.HISTOGRAM:
            yield self.name, self.kind, self.samples
            return
        for suffix, samples in groupby(self.samples, key=lambda sample: sample.suffix):
            yield self.name + suffix, MetricKind.COUNTER, tuple(samples)


class MetricReading(NamedTuple):
    """Values of a metric at one moment. It is immutable, so any thread may use it."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]
    """Pairs of label values and number."""


def counter(name: str, text: str, read: Callable[[S], float]) -> MetricDeclaration[S]:
    """Declare a counter without labels of its own."""
    return MetricDeclaration(
        name=name, kind=MetricKind.COUNTER, help=text, samples=(MetricSample(read=read),)
    )


def gauge(name: str, text: str, read: Callable[[S], float]) -> MetricDeclaration[S]:
    """Declare a gauge without labels of its own."""
    return MetricDeclaration(
        name=name, kind=MetricKind.GAUGE, help=text, samples=(MetricSample(read=read),)
    )


def counter_by(
    label: str, values: Iterable[V], name: str, text: str, read: Callable[[S, V], float]
) -> MetricDeclaration[S]:
    """Declare a counter with one number for each of the values of a label."""
    return MetricDeclaration(
        name=name,
        kind=MetricKind.COUNTER,
        help=text,
        labels=(label,),
        samples=tuple(_sample_of(value, read) for value in values),
    )


def gauge_by(
    label: str, values: Iterable[V], name: str, text: str, read: Callable[[S, V], float]
) -> MetricDeclaration[S]:
    """Declare a gauge with one number for each of the values of a label."""
    return replace(counter_by(label, values, name, text, read), kind=MetricKind.GAUGE)


def _sample_of(value: V, read: Callable[[S, V], float]) -> MetricSample[S]:
    return MetricSample(labels=(value,), read=lambda thing: read(thing, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection(Generic[S]):
    """The metrics of things of one kind."""

    metrics: Sequence[MetricDeclaration[S]]
    labels: tuple[str, ...] = ()
    """Labels that identify a thing; empty if there is only one."""

    def text(self, listed: LabelledSources[S]) -> Iterator[str]:
        """Yield the metrics in Prometheus's text format, one at a time."""
        things = [(_label_pairs(self.labels, values), thing) for values, thing in listed]
        for metric in self.metrics:
            yield _metric_text(metric, things)

    def readings(self, listed: LabelledSources[S]) -> Iterator[MetricReading]:
        """Yield the metrics as plain values, one at a time, for other formats."""
        things = list(listed)
        for metric in self.metrics:
            for name, kind, samples in metric.parts():
                yield MetricReading(
                    name,
                    kind,
                    metric.help,
                    (*self.labels, *metric.labels_of(samples[0])),
                    [
                        ((*values, *sample.labels), float(sample.read(thing)))
                        for sample in samples
                        for values, thing in things
                    ],
                )

    def families(self, listed: LabelledSources[S]) -> Iterator[Metric]:
        """Yield the metrics as families of prometheus_client."""
        things = list(listed)
        for metric in self.metrics:
            family = _family(metric, self.labels)
            for values, thing in things:
                for sample in metric.samples:
                    names = (*self.labels, *metric.labels_of(sample))
                    labels = dict(zip(names, (*values, *sample.labels), strict=True))
                    number = float(sample.read(thing))
                    family.add_sample(metric.name + sample.suffix, labels, number)
            yield family

    def empty_families(self) -> Iterator[Metric]:
        """Yield the families without numbers, and without reading any."""
        return self.families(())


def histogram(
    name: str, text: str, bounds: Sequence[float], read: Callable[[S], Histogram]
) -> MetricDeclaration[S]:
    """Declare a histogram: the buckets up to each of some bounds (label `le`), sum and count."""

    def bucket_sample(bucket: int) -> MetricSample[S]:
        bound = str(bounds[bucket]) if bucket < len(bounds) else "+Inf"
        return MetricSample(
            labels=(bound,), suffix="_bucket", read=lambda thing: read(thing).count_within(bucket)
        )

    return MetricDeclaration(
        name=name,
        kind=MetricKind.HISTOGRAM,
        help=text,
        labels=("le",),
        samples=(
            *map(bucket_sample, range(len(bounds) + 1)),
            MetricSample(suffix="_sum", read=lambda thing: read(thing).sum),
            MetricSample(suffix="_count", read=lambda thing: read(thing).count_within(len(bounds))),
        ),
    )


def _metric_text(metric: MetricDeclaration[S], things: Sequence[tuple[tuple[str, ...], S]]) -> str:
    lines = [f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind.value}\n"]
    series = [
        (metric.name + sample.suffix, _label_pairs(metric.labels_of(sample), sample.labels), sample)
        for sample in metric.samples
    ]
    # The numbers of one thing stay together, as OpenMetrics demands for histograms.
    for pairs, thing in things:
        for name, own, sample in series:
            labels = f"{{{','.join(pairs + own)}}}" if pairs or own else ""
            lines.append(f"{name}{labels} {float(sample.read(thing))!r}\n")
    return "".join(lines)


def _label_pairs(names: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    """Escape a label value, which a client may have chosen, so that it stays within its quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(declared: MetricDeclaration[S], label_names: tuple[str, ...]) -> Metric:
    """Return a family without samples; one of a counter is named without `_total`."""
    if declared.kind is MetricKind.HISTOGRAM:
        return HistogramMetricFamily(declared.name, declared.help, labels=label_names)
    family = CounterMetricFamily if declared.kind is MetricKind.COUNTER else GaugeMetricFamily
    return family(declared.name, declared.help, labels=[*label_names, *declared.labels])

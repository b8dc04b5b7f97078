"""What a metric is: its name, what it means, where its numbers are, and how they are written.

    counters, lengths, states ──► Section.text      ──► GET /metrics of a node
                              ├─► Section.families  ──► a registry of prometheus_client
                              └─► Section.readings  ──► OpenTelemetry, where a node is told to

Nothing here runs while records pass by: what is counted is kept in plain numbers, and a scrape
reads them. A node writes the text itself, one metric at a time, so that its event loop is free in
between: prometheus_client takes ten times as long for each line, and all of them at once.

`LISTED_MAX` bounds what a scrape costs, whatever clients create: beyond so many partitions, those
opened first have metrics of their own, the others count in totals only, and how many that are is
a metric too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from millstream.histogram import Histogram

S = TypeVar("S")

LISTED_MAX = 1_000
"""Things that have metrics of their own, of each kind. Measured with so many of all kinds: a scrape
is 3 megabytes and takes 100 ms of the loop, in pieces of 10 ms at the most."""

LabelledSources: TypeAlias = Iterable[tuple[tuple[str, ...], S]]
"""Things of one kind, each after the values of the labels that tell it from the others."""


class MetricKind(enum.Enum):
    """How a number moves."""

    COUNTER = "counter"
    """Only up, until what counts is opened anew. The name ends in `_total`."""

    GAUGE = "gauge"
    """Up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample(Generic[S]):
    """One number of a metric, and the labels that tell it from the others of the same metric."""

    read: Callable[[S], float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeclaration(Generic[S]):
    """One metric: its name, which ends in its unit, what it means, and where the number is."""

    name: str
    kind: MetricKind
    help: str
    samples: tuple[MetricSample[S], ...]
    labels: tuple[str, ...] = ()
    """Labels beside those of the section."""


class MetricReading(NamedTuple):
    """What a metric was at one moment: values that belong to nobody, so any thread may have it."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]
    """The values of the labels, and the number."""


def counter(name: str, text: str, read: Callable[[S], float]) -> MetricDeclaration[S]:
    """Declare a counter of one number."""
    return MetricDeclaration(
        name=name, kind=MetricKind.COUNTER, help=text, samples=(MetricSample(read=read),)
    )


def gauge(name: str, text: str, read: Callable[[S], float]) -> MetricDeclaration[S]:
    """Declare a gauge of one number."""
    return MetricDeclaration(
        name=name, kind=MetricKind.GAUGE, help=text, samples=(MetricSample(read=read),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection(Generic[S]):
    """The metrics of things of one kind."""

    metrics: Sequence[MetricDeclaration[S]]
    labels: tuple[str, ...] = ()
    """What tells the things from each other; nothing where there is one."""

    def text(self, listed: LabelledSources[S]) -> Iterator[str]:
        """Yield metric after metric as Prometheus reads them. Numbers are read on the way."""
        things = [(_label_pairs(self.labels, values), thing) for values, thing in listed]
        for metric in self.metrics:
            yield _metric_text(metric, things)

    def readings(self, listed: LabelledSources[S]) -> Iterator[MetricReading]:
        """Yield metric after metric as plain values, for whoever writes them otherwise."""
        things = list(listed)
        for metric in self.metrics:
            yield MetricReading(
                metric.name,
                metric.kind,
                metric.help,
                (*self.labels, *metric.labels),
                [
                    ((*values, *sample.labels), float(sample.read(thing)))
                    for sample in metric.samples
                    for values, thing in things
                ],
            )

    def families(self, listed: LabelledSources[S]) -> Iterator[Metric]:
        """Yield metric after metric as prometheus_client wants them."""
        things = list(listed)
        for metric in self.metrics:
            family = _family(metric, self.labels)
            for values, thing in things:
                for sample in metric.samples:
                    family.add_metric([*values, *sample.labels], float(sample.read(thing)))
            yield family

    def empty_families(self) -> Iterator[Metric]:
        """Yield the same without numbers, and without reading any."""
        return self.families(())


def bucket_counter(
    name: str, text: str, bounds: Sequence[float], read: Callable[[S], Histogram]
) -> MetricDeclaration[S]:
    """Declare how many values were within each of some bounds (`le`), the smaller ones too."""

    def sample(bucket: int) -> MetricSample[S]:
        bound = str(bounds[bucket]) if bucket < len(bounds) else "+Inf"
        return MetricSample(labels=(bound,), read=lambda thing: read(thing).count_within(bucket))

    return MetricDeclaration(
        name=name,
        kind=MetricKind.COUNTER,
        help=text,
        labels=("le",),
        samples=tuple(map(sample, range(len(bounds) + 1))),
    )


def _metric_text(metric: MetricDeclaration[S], things: Sequence[tuple[tuple[str, ...], S]]) -> str:
    lines = [f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind.value}\n"]
    for sample in metric.samples:
        own = _label_pairs(metric.labels, sample.labels)
        read = sample.read
        for pairs, thing in things:
            labels = f"{{{','.join(pairs + own)}}}" if pairs or own else ""
            lines.append(f"{metric.name}{labels} {float(read(thing))!r}\n")
    return "".join(lines)


def _label_pairs(names: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    """Write a label's value, which clients may have chosen, so that it stays within its quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(
    declared: MetricDeclaration[S], label_names: tuple[str, ...]
) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if declared.kind is MetricKind.COUNTER else GaugeMetricFamily
    return family(declared.name, declared.help, labels=[*label_names, *declared.labels])

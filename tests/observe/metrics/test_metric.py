"""Metrics are written in the Prometheus format, under names that state the unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
)
from millstream.observe.metrics.node_metrics import SECTIONS

DECLARED = [metric for section in SECTIONS for metric in section.metrics]
UNITS = (
    "bytes", "connections", "evictions", "feeds", "fetches", "flag", "groups", "ids", "info",
    "jobs", "logs", "maps", "members", "offset", "offsets", "partitions", "problems", "producers",
    "publishers", "quotas", "records", "replicas", "requests", "revision", "seconds",
    "segments", "sessions", "spans", "streams", "subscriptions", "topics",
)  # fmt: skip
"""Units of gauges."""


@dataclass
class Mill:
    """A sample object with values to count."""

    grains: int = 0
    stones: int = 2


GRAINS = counter("mill_grains_total", "Grains that were ground.", lambda mill: mill.grains)
STONES = gauge("mill_stones", "Stones that turn.", lambda mill: mill.stones)
BOTH = MetricDeclaration(
    name="mill_things",
    kind=MetricKind.GAUGE,
    help="What there is.",
    labels=("what",),
    samples=(
        MetricSample(labels=("grains",), read=lambda mill: mill.grains),
        MetricSample(labels=("stones",), read=lambda mill: mill.stones),
    ),
)
MILL = MetricSection(metrics=(GRAINS, STONES, BOTH))
MILLS = MetricSection(metrics=(GRAINS, STONES, BOTH), labels=("river", "mile"))


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Parse a text as Prometheus does; return samples by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# Declarations.


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_a_metric_is_named_after_its_layer_and_ends_in_its_unit(metric):
    assert re.fullmatch(
        r"millstream_(node|cluster|kafka|http|native|peer|replica|broker|group|queue|stream|store|log|metadata|access|telemetry)"
        r"(_[a-z]+)+",
        metric.name,
    )
    if metric.kind is MetricKind.COUNTER:
        assert metric.name.endswith("_total")
    else:
        assert metric.name.rpartition("_")[2] in UNITS


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_a_metric_says_what_it_means_in_sentences_on_one_line(metric):
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert "\\" not in metric.help


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_every_sample_has_a_value_for_every_label_and_labels_of_its_own(metric):
    assert metric.samples
    for name, _, samples in metric.parts():
        assert name.startswith(metric.name)
        has_bound = metric.kind is not MetricKind.HISTOGRAM or name.endswith("_bucket")
        assert {len(sample.labels) for sample in samples} == {
            len(metric.labels) if has_bound else 0
        }
        assert len({sample.labels for sample in samples}) == len(samples)


def test_no_name_is_declared_twice():
    names = [metric.name for metric in DECLARED]
    assert len(names) == len(set(names))


# Output.


def test_a_metric_is_written_with_help_type_and_number():
    (first, second, _) = MILL.text([((), Mill(grains=7))])
    assert first == (
        "# HELP mill_grains_total Grains that were ground.\n"
        "# TYPE mill_grains_total counter\n"
        "mill_grains_total 7.0\n"
    )
    assert second.endswith("# TYPE mill_stones gauge\nmill_stones 2.0\n")


def test_labels_of_the_thing_come_before_those_of_the_sample():
    mills = [(("lune", "3"), Mill(grains=1)), (("wyre", "5"), Mill(grains=2))]
    text = "".join(MILLS.text(mills))
    assert 'mill_grains_total{river="wyre",mile="5"} 2.0\n' in text
    assert 'mill_things{river="lune",mile="3",what="stones"} 2.0\n' in text


def test_what_a_client_named_stays_within_its_quotes():
    name = 'a"} 1\nmill_stones 99\n\\'
    text = "".join(MILLS.text([((name, "é"), Mill(grains=1))]))
    assert parsed(text)["mill_grains_total", name, "é"] == 1
    assert ("mill_stones",) not in parsed(text)


def test_the_text_is_what_prometheus_client_would_say():
    class Mills(Collector):
        def collect(self):
            return MILLS.families(mills)

    mills = [(("lune", str(mile)), Mill(grains=10**mile)) for mile in range(20)]
    registry = CollectorRegistry()
    registry.register(Mills())
    theirs = parsed(generate_latest(registry).decode())
    assert {tuple(sorted(key)) for key in parsed("".join(MILLS.text(mills)))} == {
        tuple(sorted(key)) for key in theirs
    }
    assert sorted(parsed("".join(MILLS.text(mills))).values()) == sorted(theirs.values())


def test_a_section_without_things_says_what_there_could_be():
    assert parsed("".join(MILLS.text([]))) == {}
    assert "# TYPE mill_stones gauge" in "".join(MILLS.text([]))


def test_each_metric_is_read_when_its_turn_comes():
    mill = Mill()
    pieces = MILL.text([((), mill)])
    next(pieces)
    mill.stones = 5
    assert "mill_stones 5.0" in next(pieces)


def test_families_can_be_named_without_a_thing():
    assert [family.name for family in MILLS.empty_families()] == [
        "mill_grains",
        "mill_stones",
        "mill_things",
    ]

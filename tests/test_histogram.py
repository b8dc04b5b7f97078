"""A histogram counts each value once, and returns how many are within a bound."""

from __future__ import annotations

from millstream.histogram import LATENCY_BUCKETS, Histogram


def test_a_value_on_a_bound_is_within_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert [histogram.count_within(bucket) for bucket in range(3)] == [2, 4, 5]


def test_latency_bounds_ascend():
    assert list(LATENCY_BUCKETS) == sorted(set(LATENCY_BUCKETS))

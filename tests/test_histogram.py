"""A distribution counts each value once, and tells how many were within a bound."""

from __future__ import annotations

from millstream.histogram import LATENCY_BUCKETS, Histogram


def test_a_value_on_a_bound_is_within_it():
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        found.note(value)
    assert [found.within(bucket) for bucket in range(3)] == [2, 4, 5]


def test_bounds_of_times_rise():
    assert list(LATENCY_BUCKETS) == sorted(set(LATENCY_BUCKETS))

"""The recent history of a node: a ring of samples, one per second, with a manual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.observe.history import NAMES, SAMPLES_MAX, History, HistoryBuckets, HistorySample
from millstream.observe.quantiles import quantile
from millstream.testing import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers

BOUNDS = HistoryBuckets(
    commits=(0.001, 0.01), kafka_answers=(0.001, 0.01), http_answers=(0.001, 0.01)
)
NOTHING = HistorySample(
    appended_records=0,
    appended_bytes=0,
    read_bytes=0,
    kafka_requests=0,
    http_requests=0,
    commits=(0, 0, 0),
    kafka_answers=(0, 0, 0),
    http_answers=(0, 0, 0),
    connections=0,
    cpu_seconds=0.0,
    memory_bytes=None,
)


class Node:
    """Counters that tests set, and their history."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.reading = NOTHING
        self.history = History(lambda: self.reading, BOUNDS, clock=self.clock, timers=self.timers)
        self.history.start()

    def count(self, **numbers: object) -> None:
        self.reading = replace(self.reading, **numbers)  # type: ignore[arg-type]

    def series(self, name: str) -> list[float | None]:
        found: list[float | None] = getattr(self.history.answer().series, name)
        return found


def test_before_the_first_second_all_series_are_empty() -> None:
    node = Node()
    answer = node.history.answer()
    assert [len(getattr(answer.series, name)) for name in NAMES] == [0] * len(NAMES)
    assert (answer.interval_ms, answer.until) == (1000, node.clock.wall_ms())


def test_a_counter_is_told_as_what_happened_in_each_second() -> None:
    node = Node()
    for total in (40, 40, 100):
        node.count(appended_records=total)
        node.timers.advance(1)
    assert node.series("appended_records") == [40, 0, 60]
    assert node.history.answer().until == node.clock.wall_ms()


def test_what_was_counted_before_the_start_is_not_told() -> None:
    node = Node()
    node.history.stop()
    node.count(kafka_requests=1_000)
    node.history.start()
    node.count(kafka_requests=1_001)
    node.timers.advance(1)
    assert node.series("kafka_requests") == [1]


def test_how_long_commits_took_comes_from_those_of_that_second_alone() -> None:
    node = Node()
    node.count(commits=(100, 0, 0))
    node.timers.advance(1)
    node.timers.advance(1)
    node.count(commits=(100, 10, 0))
    node.timers.advance(1)
    assert node.series("commit_p50_ms") == [0.5, None, 5.5]
    assert node.series("commit_p99_ms") == [0.99, None, 9.91]


def test_processor_time_is_told_as_a_share_of_one_processor() -> None:
    node = Node()
    node.count(cpu_seconds=0.25, memory_bytes=4096, connections=3)
    node.timers.advance(1)
    assert node.series("cpu_percent") == [25.0]
    assert node.series("memory_bytes") == [4096]
    assert node.series("connections") == [3]


def test_five_minutes_are_kept_and_the_oldest_sample_goes_first() -> None:
    node = Node()
    for number in range(1, SAMPLES_MAX + 8):
        node.count(connections=number)
        node.timers.advance(1)
    found = node.series("connections")
    assert found == list(range(8, SAMPLES_MAX + 8))
    answer = node.history.answer()
    assert {len(getattr(answer.series, name)) for name in NAMES} == {SAMPLES_MAX}


def test_seconds_in_which_the_loop_stood_still_are_null_and_the_next_tells_the_rate() -> None:
    node = Node()
    node.timers.advance(1)
    node.count(appended_records=40)
    node.clock.advance(4)  # No timer runs during this time.
    node.timers.advance(0)
    assert node.series("appended_records") == [0, None, None, None, 10]
    node.count(appended_records=47)
    node.timers.advance(1)
    assert node.series("appended_records")[-1] == 7


def test_a_machine_that_slept_for_a_day_costs_no_more_than_the_ring() -> None:
    node = Node()
    node.clock.advance(86_400)
    node.timers.advance(0)
    assert node.series("connections") == [None] * (SAMPLES_MAX - 1) + [0]


def test_a_history_that_was_stopped_takes_no_more_samples() -> None:
    node = Node()
    node.timers.advance(1)
    node.history.stop()
    node.timers.advance(10)
    assert len(node.series("connections")) == 1
    assert node.timers.pending == 0


def test_one_timer_waits_at_a_time() -> None:
    node = Node()
    node.timers.advance(20)
    assert node.timers.pending == 1


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((0, 0, 0), 0.5, None),
        ((4, 0, 0), 0.5, 0.5),
        ((4, 0, 0), 1.0, 1.0),
        ((0, 4, 0), 0.5, 2.0),
        ((1, 0, 1), 0.5, 1.0),
        ((1, 0, 1), 0.99, 3.0),
        ((0, 0, 7), 0.5, 3.0),
        ((99, 1, 0), 0.99, 1.0),
    ],
)
def test_a_quantile_lies_in_the_bucket_of_its_rank(
    counts: tuple[int, ...], share: float, expected: float | None
) -> None:
    assert quantile((1.0, 3.0), counts, share) == expected

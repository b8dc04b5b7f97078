"""The event loop is reported as late after several late ticks in a row, not after one."""

from __future__ import annotations

import pytest

from millstream.observe.loop_watch import INTERVAL_SECONDS, LATE_TICKS_MIN, LoopWatch
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers


class Loop:
    """An event loop with a delay that a test sets."""

    def __init__(self, lag_ms_max: int = 500) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.watch = LoopWatch(self.clock, self.timers, lag_ms_max=lag_ms_max)
        self.watch.start()

    def tick(self, late: float = 0.0) -> None:
        """Advance to the next tick plus `late` seconds, then run the timers."""
        self.clock.advance(INTERVAL_SECONDS + late)
        self.timers.advance(0)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_loop_that_turns_in_time_is_not_late(loop: Loop):
    for _ in range(10):
        loop.tick(0.1)
    assert not loop.watch.is_late
    assert loop.watch.late_ticks == 0
    assert loop.watch.lag_seconds == pytest.approx(0.1)


def test_one_slow_turn_is_no_alarm_however_long_it_was(loop: Loop):
    loop.tick(3_600)
    assert not loop.watch.is_late
    loop.tick()
    assert loop.watch.late_ticks == 1
    assert loop.watch.lag_seconds == 0


def test_slow_turns_in_a_row_are(loop: Loop):
    for _ in range(LATE_TICKS_MIN - 1):
        loop.tick(0.6)
        assert not loop.watch.is_late
    loop.tick(0.6)
    assert loop.watch.is_late


def test_slow_turns_with_one_in_time_between_them_are_not(loop: Loop):
    for _ in range(LATE_TICKS_MIN):
        loop.tick(5)
        loop.tick()
    assert not loop.watch.is_late


def test_the_first_turn_in_time_ends_it(loop: Loop):
    for _ in range(2 * LATE_TICKS_MIN):
        loop.tick(1)
    assert loop.watch.is_late
    loop.tick(0.4)
    assert not loop.watch.is_late


def test_how_late_it_may_be_is_a_setting():
    loop = Loop(lag_ms_max=2_000)
    for _ in range(LATE_TICKS_MIN):
        loop.tick(1.9)
    assert not loop.watch.is_late
    for _ in range(LATE_TICKS_MIN):
        loop.tick(2.1)
    assert loop.watch.is_late


def test_after_it_was_stopped_nothing_is_left_to_happen(loop: Loop):
    loop.watch.stop()
    assert loop.timers.pending == 0

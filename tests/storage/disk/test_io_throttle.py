"""The throttle pauses work as long as the limit requires, and stops it at once."""

from __future__ import annotations

import threading

import pytest

from millstream.errors import Stopping
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.testing import ManualClock


class Sleeper:
    """A clock, and a sleep that takes exactly as long as requested."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slept: list[float] = []

    def throttle(self, bytes_per_second_max: int) -> IoThrottle:
        return IoThrottle(bytes_per_second_max, monotonic=self.clock.monotonic, wait=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)


def test_without_a_limit_nothing_is_held_up():
    sleeper = Sleeper()
    throttle = sleeper.throttle(0)
    for _ in range(100):
        throttle.pause(10**9)
    assert sleeper.slept == []


def test_work_that_takes_no_time_is_held_up_for_as_long_as_it_may_take():
    sleeper = Sleeper()
    throttle = sleeper.throttle(1000)
    for _ in range(10):
        throttle.pause(500)
    assert sleeper.clock.monotonic() == pytest.approx(5.0)


def test_the_time_that_work_took_counts():
    sleeper = Sleeper()
    throttle = sleeper.throttle(1000)
    throttle.pause(500)
    sleeper.clock.advance(0.3)
    throttle.pause(500)
    assert sleeper.slept == pytest.approx([0.5, 0.5])
    throttle.pause(0)
    assert len(sleeper.slept) == 2


def test_time_that_nobody_used_is_not_saved_up():
    sleeper = Sleeper()
    throttle = sleeper.throttle(1000)
    sleeper.clock.advance(3600)
    throttle.pause(500)
    assert sleeper.slept == pytest.approx([0.5])


def test_pauses_too_short_to_make_are_added_up():
    sleeper = Sleeper()
    throttle = sleeper.throttle(1_000_000)
    for _ in range(10):
        throttle.pause(100)
    assert sleeper.slept == pytest.approx([0.001])


def test_a_clock_that_stands_still_does_not_make_pauses_longer_and_longer():
    slept: list[float] = []
    throttle = IoThrottle(1000, monotonic=lambda: 7.0, wait=slept.append)
    for _ in range(5):
        throttle.pause(100)
    assert slept == pytest.approx([0.1] * 5)


def test_a_stopped_throttle_lets_nothing_pass():
    throttle = IoThrottle()
    throttle.pause(1)
    throttle.stop()
    assert throttle.is_stopped
    for _ in range(2):
        with pytest.raises(Stopping):
            throttle.pause(1)


def test_stopping_ends_a_long_pause_at_once():
    throttle = IoThrottle(1)
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(Stopping):
            throttle.pause(3600)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    throttle.stop()
    assert ended.wait(10)
    thread.join()


def test_work_that_is_no_longer_wanted_stops_and_other_work_may_go_on():
    throttle = IoThrottle(1_000_000)
    is_unwanted = threading.Event()
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(Stopping):
            throttle.pause(3_600_000_000, unless=is_unwanted.is_set)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    is_unwanted.set()
    throttle.wake()
    assert ended.wait(10)
    thread.join()
    throttle.pause(1)
    assert not throttle.is_stopped

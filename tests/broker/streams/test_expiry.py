"""Expiry of streams: by which clock, and over a restart."""

from __future__ import annotations

import uuid

import pytest

from millstream.broker.streams.expiry import StreamDeadlines, StreamLifetime
from millstream.broker.streams.row import StreamRow
from millstream.testing import ManualClock, ManualTimers


class Steady:
    def __init__(self, clock: ManualClock, start_ms: int = 0) -> None:
        self._clock, self._start_ms = clock, start_ms

    def now_ms(self) -> int:
        return self._start_ms + round(self._clock.monotonic() * 1000)


def row(ttl: int | None = None, expires_ms: int | None = None, touched_ms: int = 0) -> StreamRow:
    return StreamRow(
        topic="t",
        topic_id=uuid.UUID(int=7),
        content_type="text/plain",
        created_ms=0,
        ttl_seconds=ttl,
        expires_ms=expires_ms,
        touched_ms=touched_ms,
    )


def test_a_use_begins_the_time_to_live_anew() -> None:
    clock = ManualClock()
    life = StreamLifetime(row(ttl=10), clock, Steady(clock))
    clock.advance(9)
    life.touch()
    clock.advance(9)
    assert not life.is_expired
    clock.advance(1)
    assert life.is_expired


def test_setting_the_wall_clock_does_not_touch_a_time_to_live() -> None:
    clock = ManualClock()
    life = StreamLifetime(row(ttl=10), clock, Steady(clock))
    clock.jump_wall(1_000_000_000)
    assert not life.is_expired


def test_a_date_is_one_of_the_wall_clock() -> None:
    clock = ManualClock(wall_ms=1_000)
    life = StreamLifetime(row(expires_ms=5_000), clock, Steady(clock))
    life.touch()
    assert not life.is_expired
    clock.jump_wall(4_000)
    assert life.is_expired


def test_a_stream_that_is_read_live_is_in_use() -> None:
    clock = ManualClock()
    life = StreamLifetime(row(ttl=10), clock, Steady(clock))
    life.readers += 1
    clock.advance(100)
    assert not life.is_expired


@pytest.mark.parametrize("ttl", [1, 10, 1000])
def test_uses_are_written_down_now_and_then_and_a_restart_takes_none_away(ttl: int) -> None:
    clock = ManualClock()
    life = StreamLifetime(row(ttl=ttl), clock, Steady(clock))
    noted = 0
    for _ in range(200):
        clock.advance(ttl / 20)
        if (touched_ms := life.touch()) is not None:
            noted, last_ms = noted + 1, touched_ms
    assert 0 < noted <= 10 * 10 + 1
    left_before = life.remaining()
    again = StreamLifetime(row(ttl=ttl, touched_ms=last_ms), clock, Steady(clock))
    left = again.remaining()
    assert left is not None
    assert left_before is not None
    assert left >= left_before - 1e-6
    assert left <= ttl


def test_time_that_passed_while_the_node_was_down_counts() -> None:
    clock = ManualClock()
    life = StreamLifetime(row(ttl=100, touched_ms=5_000), clock, Steady(clock, start_ms=200_000))
    assert life.is_expired


def test_deadlines_come_in_order_and_early_where_they_are_far() -> None:
    clock = ManualClock()
    timers, due = ManualTimers(clock), []
    deadlines = StreamDeadlines(clock, timers, due.append)
    deadlines.set("late", 30)
    deadlines.set("soon", 1)
    deadlines.set("far", 1_000_000)
    timers.advance(2)
    assert due == ["soon"]
    timers.advance(60)
    assert due == ["soon", "late", "far"]
    deadlines.set("never", 1)
    deadlines.stop()
    timers.advance(10)
    assert due == ["soon", "late", "far"]

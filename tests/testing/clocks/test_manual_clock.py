"""A clock that moves only on command."""

from __future__ import annotations

import pytest

from millstream.testing import ManualClock


def test_time_stands_still_until_it_is_advanced():
    clock = ManualClock(wall_ms=5_000)
    assert (clock.wall_ms(), clock.monotonic()) == (5_000, 0.0)
    clock.advance(1.5)
    assert (clock.wall_ms(), clock.monotonic()) == (6_500, 1.5)


def test_many_small_steps_are_one_large_step():
    clock = ManualClock(wall_ms=0)
    for _ in range(10):
        clock.advance(0.1)
    assert (clock.wall_ms(), clock.monotonic()) == (1_000, 1.0)


@pytest.mark.parametrize("ms", [-3_600_000, 3_600_000])
def test_the_wall_clock_jumps_alone(ms):
    clock = ManualClock(wall_ms=5_000_000)
    clock.advance(2)
    clock.jump_wall(ms)
    assert (clock.wall_ms(), clock.monotonic()) == (5_002_000 + ms, 2.0)


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="jump_wall"):
        ManualClock().advance(-1)

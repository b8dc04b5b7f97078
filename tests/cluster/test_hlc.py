"""The hybrid logical clock: later than everything seen, close to wall time."""

from __future__ import annotations

import random

import pytest

from millstream.cluster.hlc import DriftHealth, HybridClock, drift_health

WALL = 1_700_000_000_000


def at(wall_ms, counter=0):
    return wall_ms << 20 | counter


def test_a_timestamp_is_the_wall_time_and_a_counter():
    clock = HybridClock()
    assert clock.now(WALL) == at(WALL)
    assert clock.now(WALL) == at(WALL, 1)
    assert clock.now(WALL + 1) == at(WALL + 1)


def test_a_wall_clock_that_is_set_back_does_not_move_it_back():
    clock = HybridClock()
    clock.now(WALL)
    assert clock.now(WALL - 5000) == at(WALL, 1)


def test_a_counter_that_overflows_goes_on_in_the_next_millisecond():
    clock = HybridClock()
    clock.last = at(WALL, 2**20 - 1)
    assert clock.now(WALL) == at(WALL + 1)


def test_a_timestamp_of_a_peer_is_adopted():
    clock = HybridClock()
    assert clock.observe(at(WALL + 300, 7), WALL) == 300
    assert clock.now(WALL) == at(WALL + 300, 8)


def test_a_timestamp_in_the_past_changes_nothing():
    clock = HybridClock()
    clock.now(WALL)
    assert clock.observe(at(WALL - 2000), WALL) == -2000
    assert clock.now(WALL) == at(WALL, 1)


@pytest.mark.parametrize(("ahead_ms", "is_adopted"), [(500, True), (501, False), (2**40, False)])
def test_a_timestamp_too_far_ahead_is_not_adopted(ahead_ms, is_adopted):
    clock = HybridClock()
    assert clock.observe(at(WALL + ahead_ms), WALL) == ahead_ms
    assert (clock.now(WALL) > at(WALL + ahead_ms)) == is_adopted
    assert clock.refused == (not is_adopted)


@pytest.mark.parametrize(
    ("drift_ms", "health"),
    [
        (0, DriftHealth.GOOD),
        (99, DriftHealth.GOOD),
        (-99, DriftHealth.GOOD),
        (100, DriftHealth.WARNING),
        (-100, DriftHealth.WARNING),
        (999, DriftHealth.WARNING),
        (1000, DriftHealth.ALARM),
        (-1000, DriftHealth.ALARM),
        (2**43, DriftHealth.ALARM),
    ],
)
def test_drift_is_rated_in_both_directions(drift_ms, health):
    assert drift_health(drift_ms) is health


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_later_than_all_that_its_sender_knew(seed):
    """Three nodes with clocks that are up to 400 ms apart and jump."""
    rng = random.Random(seed)
    clocks = [HybridClock() for _ in range(3)]
    known = [0, 0, 0]
    for step in range(500):
        sender, receiver = rng.sample(range(3), 2)
        sent = clocks[sender].now(WALL + step + rng.randrange(-200, 200))
        assert sent > known[sender]
        known[sender] = sent
        clocks[receiver].observe(sent, WALL + step + rng.randrange(-200, 200))
        known[receiver] = max(known[receiver], sent)

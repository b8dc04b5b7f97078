"""The circuit breaker: its transitions, as a table of events."""

from __future__ import annotations

import random

import pytest

from millstream.cluster.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker

LIMITS = BreakerLimits(failures_max=5, successes_min=3, open_seconds=30)
CLOSED, OPEN, HALF = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
TRIPPED = BreakerState.TRIPPED
OPENED = ["fail"] * 5
HALVED = [*OPENED, 30]

TABLE = {
    "it is closed at first": ([], CLOSED),
    "four failures do not open it": (["fail"] * 4, CLOSED),
    "five failures in a row open it": (OPENED, OPEN),
    "a success in between counts from the start": (
        ["fail"] * 4 + ["succeed"] + ["fail"] * 4,
        CLOSED,
    ),
    "it stays open for 30 s": ([*OPENED, 29.9], OPEN),
    "then it is half open": (HALVED, HALF),
    "two successes do not close it": ([*HALVED, "call", "succeed", "call", "succeed"], HALF),
    "three successes close it": ([*HALVED, *["call", "succeed"] * 3], CLOSED),
    "a failure opens it again": ([*HALVED, "call", "succeed", "call", "fail"], OPEN),
    "for another 30 s": ([*HALVED, "call", "fail", 29.9], OPEN),
    "and no longer": ([*HALVED, "call", "fail", 30], HALF),
    "successes count from the start then": (
        [*HALVED, *["call", "succeed"] * 2, "call", "fail", 30, "call", "succeed"],
        HALF,
    ),
    "closed again, it takes five failures": (
        [*HALVED, *["call", "succeed"] * 3, *["fail"] * 4],
        CLOSED,
    ),
    "a late success does not close it": ([*OPENED, "succeed"], OPEN),
    "late failures do not keep it open": ([*OPENED, 29, *["fail"] * 9, 1], HALF),
    "an operator trips it": (["trip"], TRIPPED),
    "it stays so": (["trip", 1000], TRIPPED),
    "whatever happens": (["trip", "succeed", *["fail"] * 9, 1000, "succeed"], TRIPPED),
    "an operator trips one that opened by itself": ([*OPENED, "trip", 1000], TRIPPED),
    "an operator trips one that is half open": ([*HALVED, "call", "trip", "succeed"], TRIPPED),
    "an operator resets it": (["trip", "reset"], CLOSED),
    "an operator resets one that opened by itself": ([*OPENED, "reset"], CLOSED),
    "then it takes five failures": ([*OPENED, "reset", *["fail"] * 4], CLOSED),
    "a probe without a result changes nothing": ([*HALVED, "call", "abandon"], HALF),
}


def run(events):
    breaker, now = CircuitBreaker(LIMITS), 1000.0
    for event in events:
        match event:
            case "fail":
                breaker.fail(now)
            case "succeed":
                breaker.succeed(now)
            case "call":
                assert breaker.allow(now)
            case "abandon":
                breaker.abandon()
            case "trip":
                breaker.trip()
            case "reset":
                breaker.reset()
            case seconds:
                now += seconds
    return breaker, now


@pytest.mark.parametrize("name", TABLE)
def test_transitions(name):
    events, state = TABLE[name]
    breaker, now = run(events)
    assert breaker.state(now) is state
    assert breaker.allow(now) == (state not in (OPEN, TRIPPED))


def test_closed_it_allows_any_number_of_calls():
    breaker, now = run([])
    assert all(breaker.allow(now) for _ in range(100))


@pytest.mark.parametrize("end", ["succeed", "abandon"])
def test_half_open_it_allows_one_call_at_a_time(end):
    breaker, now = run([*HALVED, "call"])
    assert not breaker.allow(now)
    if end == "succeed":
        breaker.succeed(now)
    else:
        breaker.abandon()
    assert breaker.allow(now)


def test_it_counts_how_often_it_opened():
    assert run([*HALVED, "call", "fail", 30, *["call", "succeed"] * 3, "trip"])[0].opened_count == 3


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_a_reset_closes_it_and_time_ends_its_being_open(seed):
    rng = random.Random(seed)
    breaker, now = CircuitBreaker(LIMITS), 0.0
    for _ in range(200):
        now += rng.choice([0, 1, 10, 31])
        is_allowed = breaker.allow(now)
        if rng.random() < 0.1:
            breaker.trip()
        elif is_allowed:
            match rng.randrange(3):
                case 0:
                    breaker.succeed(now)
                case 1:
                    breaker.fail(now)
                case _:
                    breaker.abandon()
        if rng.random() < 0.2:
            breaker.reset()
            assert breaker.state(now) is CLOSED
        if not breaker.is_tripped:
            now += 31
            assert breaker.state(now) is not OPEN

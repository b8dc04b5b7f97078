"""Failed logins are slowed by address and user, and nobody else is."""

from __future__ import annotations

from millstream.broker.access.sasl.login_limits import (
    FORGIVEN_SECONDS,
    INTERVAL_SECONDS,
    USER_INTERVAL_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    LoginLimits,
)


def fail(limits: LoginLimits, address: str, user: str, now: float) -> float | None:
    """Try once, fail if it is evaluated, and return when that was."""
    wait = limits.wait_seconds(address, user, now)
    if wait is None:
        return None
    limits.note_failure(address, user, now + wait)
    return now + wait


def test_an_address_without_failures_does_not_wait() -> None:
    limits = LoginLimits()
    assert [limits.wait_seconds("a", "alice", 0.0) for _ in range(100)] == [0.0] * 100
    assert len(limits) == 0


def test_of_a_thousand_wrong_logins_a_second_ten_are_evaluated() -> None:
    limits = LoginLimits()
    evaluated = [
        at
        for attempt in range(10_000)
        if (at := fail(limits, "a", f"user-{attempt}", attempt / 1000)) is not None
    ]
    for second in range(1, 10):
        # The end of a second is the beginning of the next one.
        assert len([at for at in evaluated if second <= at < second + 0.999]) <= 10


def test_an_address_that_fails_as_one_user_waits_longer_each_time() -> None:
    limits = LoginLimits()
    now, waits = 0.0, []
    for _ in range(12):
        wait = limits.wait_seconds("a", "alice", now)
        assert wait is not None
        waits.append(wait)
        now += wait
        limits.note_failure("a", "alice", now)
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == USER_INTERVAL_SECONDS_MAX


def test_the_real_user_gets_in_from_another_address_while_one_guesses() -> None:
    limits = LoginLimits()
    for attempt in range(1000):
        fail(limits, "attacker", "alice", attempt / 100)
    assert limits.wait_seconds("home", "alice", 10.0) == 0.0


def test_an_attempt_that_would_wait_too_long_is_refused_and_takes_no_turn() -> None:
    limits = LoginLimits()
    limits.note_failure("a", "alice", 0.0)
    waits = [limits.wait_seconds("a", "bob", 0.0) for _ in range(200)]
    taken = [wait for wait in waits if wait is not None]
    assert max(taken) <= WAIT_SECONDS_MAX
    assert None in waits
    assert limits.wait_seconds("a", "bob", WAIT_SECONDS_MAX) is not None


def test_a_login_forgives_the_failures_of_that_user_but_not_of_the_address() -> None:
    limits = LoginLimits()
    for _ in range(5):
        limits.note_failure("a", "alice", 0.0)
    limits.note_success("a", "alice")
    assert limits.wait_seconds("a", "alice", 0.0) == INTERVAL_SECONDS
    assert limits.wait_seconds("a", "bob", 0.0) == 2 * INTERVAL_SECONDS


def test_failures_are_forgotten_after_a_while() -> None:
    limits = LoginLimits()
    limits.note_failure("a", "alice", 0.0)
    later = FORGIVEN_SECONDS + 1
    assert limits.wait_seconds("a", "alice", later) == 0.0
    assert limits.wait_seconds("a", "alice", later) == 0.0
    assert len(limits) == 0


def test_memory_is_bounded_and_the_latest_failures_are_kept() -> None:
    limits = LoginLimits(entries_max=10)
    for number in range(1000):
        limits.note_failure(f"address-{number}", "alice", float(number) / 1000)
    assert len(limits) == 10
    assert limits.wait_seconds("address-999", "alice", 1.0) != 0.0
    assert limits.wait_seconds("address-1", "alice", 1.0) == 0.0


def test_the_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    limits = LoginLimits()
    evaluated = [
        at
        for attempt in range(5_000)
        if (at := fail(limits, f"2001:db8:0:7::{attempt:x}", f"user-{attempt}", attempt / 1000))
        is not None
    ]
    assert len([at for at in evaluated if 1 <= at < 1.999]) <= 10
    assert limits.wait_seconds("2001:db8:0:8::1", "alice", 5.0) == 0.0
    assert limits.wait_seconds("fe80::1%eth0", "alice", 5.0) == 0.0

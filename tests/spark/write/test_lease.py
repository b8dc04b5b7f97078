"""The lease of a write, with a clock and waits under control of the test."""

from __future__ import annotations

import threading

from millstream.errors import Unavailable
from millstream.spark.write.lease import TransactionLease
from millstream.testing import ManualClock


def run(renew, *, waits, lease_ms=60_000, duration_ms_max=600_000):
    """Run a lease whose task takes `waits` pauses; return the pauses."""
    clock = ManualClock()
    pauses = []
    done = threading.Event()

    def wait(event, seconds):
        pauses.append(seconds)
        clock.advance(seconds)
        if len(pauses) > waits:
            done.set()
            return True
        return event.is_set()

    lease = TransactionLease(
        renew, lease_ms=lease_ms, duration_ms_max=duration_ms_max, clock=clock, wait=wait
    )
    lease.__enter__()
    lease._thread.join(10)
    lease.__exit__(None, None, None)
    return pauses


def test_a_task_renews_four_times_per_lease():
    calls = []
    assert run(lambda: calls.append(1), waits=3) == [15.0] * 4
    assert len(calls) == 3


def test_a_renewal_that_fails_is_tried_again_soon():
    answers = [Unavailable("down"), Unavailable("down"), None, None]

    def renew():
        if (error := answers.pop(0)) is not None:
            raise error

    assert run(renew, waits=4) == [15.0, 2.0, 2.0, 15.0, 15.0]


def test_a_write_is_not_renewed_beyond_its_longest_duration():
    calls = []
    pauses = run(lambda: calls.append(1), waits=100, duration_ms_max=50_000)
    assert pauses == [15.0] * 4
    assert len(calls) == 3


def test_a_task_that_ends_ends_the_thread():
    with TransactionLease(lambda: None, lease_ms=60_000, duration_ms_max=60_000) as lease:
        assert lease._thread.is_alive()
    lease._thread.join(10)
    assert not lease._thread.is_alive()

"""Which leases must be extended, and when."""

from __future__ import annotations

from millstream.clients.http.core.queues.leases import RETRY_S, Leases


def test_a_lease_is_due_when_half_of_it_is_over():
    leases = Leases()
    leases.add(["a"], 10.0, now=100.0)
    assert leases.next_at() == 105.0
    assert leases.due(104.9) == []
    assert leases.due(105.0) == ["a"]


def test_what_was_claimed_together_is_made_longer_together():
    leases = Leases()
    leases.add(["a"], 10.0, now=100.0)
    leases.add(["b"], 10.0, now=100.1)
    leases.add(["c"], 10.0, now=103.0)
    assert leases.due(105.0) == ["a", "b"]


def test_a_lease_that_was_made_longer_is_due_later():
    leases = Leases()
    leases.add(["a"], 10.0, now=0.0)
    leases.renew(["a"], 20.0, now=5.0)
    assert leases.next_at() == 15.0


def test_a_lease_that_ended_meanwhile_is_not_taken_up_again():
    leases = Leases()
    leases.add(["a", "b"], 10.0, now=0.0)
    leases.remove(["a"])
    leases.renew(["a", "b"], 10.0, now=5.0)
    leases.retry_later(["a"], now=5.0)
    assert len(leases) == 1
    assert leases.due(10.0) == ["b"]


def test_what_could_not_be_made_longer_is_tried_again_soon():
    leases = Leases()
    leases.add(["a"], 60.0, now=0.0)
    leases.retry_later(["a"], now=30.0)
    assert leases.due(30.0) == []
    assert leases.due(30.0 + RETRY_S) == ["a"]


def test_nothing_is_due_where_nothing_is_held():
    leases = Leases()
    assert leases.next_at() is None
    assert leases.due(1e9) == []

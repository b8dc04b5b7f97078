"""Every order of events within bounds keeps the promises of replication (P3, P7, P8, P11, P16).

`MILLSTREAM_LONG` explores the bounds of the specification to the end.
"""

from __future__ import annotations

import os

import pytest

from millstream.cluster.leader import LeaderReplica
from millstream.testing.simulation.explorer import Bounds, Explorer
from millstream.testing.simulation.violation import Violation

LONG = bool(os.environ.get("MILLSTREAM_LONG"))

SMALL = {
    "three-versions": Bounds(1, 2, 3, states_max=60_000),
    "two-records": Bounds(2, 2, 2, states_max=20_000),
    "three-epochs": Bounds(1, 3, 3, crashes=0),
    "two-crashes": Bounds(1, 2, 2, crashes=2, states_max=20_000),
    "lost-disk": Bounds(1, 2, 2, disk_losses=1),
    "lost-records": Bounds(1, 2, 3, record_losses=1),
    "lost-records-and-a-late-lease": Bounds(1, 2, 4, record_losses=1, states_max=90_000),
    "lost-end": Bounds(1, 2, 4, crashes=0, end_losses=1, states_max=60_000),
    "hand-over": Bounds(1, 2, 2, crashes=0, hand_overs=1),
    "unsynced-followers": Bounds(1, 2, 2, crashes=1, has_unsynced_followers=True),
    "follower-high-watermarks": Bounds(1, 2, 2, crashes=0, has_follower_high_watermarks=True),
    "late-fetches": Bounds(1, 2, 2, crashes=0, late_fetches=1),
    "isr-changes": Bounds(1, 2, 4, crashes=0, states_max=30_000),
}
"""Explored with every change. `states_max` cuts those that would take longer."""

LARGE = {
    "2-2-4": Bounds(2, 2, 4, record_losses=1),
    "1-3-5": Bounds(1, 3, 5, record_losses=1),
    "1-2-3-lost-end": Bounds(1, 2, 3, end_losses=1),
    "1-2-4-lost-end": Bounds(1, 2, 4, crashes=0, end_losses=1),
}


@pytest.mark.parametrize("bounds", SMALL.values(), ids=SMALL)
def test_no_order_of_events_breaks_a_promise(bounds):
    result = Explorer(bounds).run()
    assert result.is_exhausted or result.states >= bounds.states_max
    assert result.states > 1000


@pytest.mark.skipif(not LONG, reason="takes long")
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("bounds", LARGE.values(), ids=LARGE)
def test_no_order_of_events_breaks_a_promise_within_large_bounds(bounds):
    assert Explorer(bounds).run().is_exhausted


def test_states_that_differ_only_in_the_numbers_of_nodes_are_one_state(monkeypatch):
    bounds = Bounds(1, 2, 2, crashes=0)
    states = Explorer(bounds).run().states
    monkeypatch.setattr(Explorer, "_canonical", lambda self, state: state)
    assert 1.8 * states < Explorer(bounds).run().states < 6 * states


def test_a_broken_promise_is_shown_with_the_events_that_lead_to_it(monkeypatch):
    monkeypatch.setattr(LeaderReplica, "may_answer", lambda self, now: not self.is_fenced)
    with pytest.raises(Violation) as found:
        Explorer(Bounds(1, 2, 2)).run()
    assert str(found.value).splitlines() == [
        "nodes 1 and 2 both answer clients",
        "  1 the lease of node 1 expires",
        "  2 elected: leader 2 in epoch 1 with ISR [(2, 1), (3, 1)]",
        "    then: nodes 2 and 1 both answer clients",
    ]

"""A node believes in its lease for a part of its time, from the moment of sending."""

from __future__ import annotations

import pytest

from millstream.cluster.lease import LeaseBelief


def test_a_lease_is_not_believed_before_it_was_renewed():
    assert not LeaseBelief(4.0).is_valid(0.0)


def test_belief_counts_from_the_moment_at_which_the_renewal_was_sent():
    lease = LeaseBelief(4.0)
    lease.renewed(sent_at=100.0)
    assert lease.valid_until == pytest.approx(102.8)
    assert lease.is_valid(102.7)
    assert not lease.is_valid(102.9)


def test_a_late_answer_to_an_earlier_renewal_takes_nothing_back():
    lease = LeaseBelief(4.0)
    lease.renewed(100.0)
    lease.renewed(99.0)
    assert lease.is_valid(102.7)


def test_a_lost_lease_is_not_believed():
    lease = LeaseBelief(4.0)
    lease.renewed(100.0)
    lease.lost()
    assert not lease.is_valid(100.0)

"""When replicas leave and join the ISR."""

from __future__ import annotations

import pytest

from millstream.cluster.isr import (
    NEVER,
    FollowerProgress,
    IsrChangeLimiter,
    IsrPolicy,
    lag_limit,
    may_join,
    next_isr,
)
from millstream.cluster.replication_state import IsrMember

from .machines import members

POLICY = IsrPolicy()


@pytest.mark.parametrize(
    ("lags", "limit"),
    [([], 0.5), ([0.0], 0.5), ([0.05], 0.5), ([0.2], 1.6), ([0.1, 0.3], 1.6), ([0, 0.2, 9], 1.6)],
)
def test_a_follower_may_be_behind_for_half_a_second_or_eight_times_the_median_of_its_peers(
    lags, limit
):
    assert lag_limit(POLICY, lags) == pytest.approx(limit)


def test_a_follower_that_keeps_up_with_a_stream_is_behind_since_its_last_fetch_only():
    follower = FollowerProgress(2, leader_end=0, now=0.0)
    for number in range(1, 20):
        # Each fetch has what was there at the fetch before, and more has come since.
        follower.fetched(10 * (number - 1), 10 * number, 10, now=float(number), revision=5)
    assert follower.lag(19.0) == 1.0
    assert follower.good_fetches == 10


def test_a_follower_that_falls_behind_is_behind_since_it_was_at_the_end():
    follower = FollowerProgress(2, leader_end=0, now=0.0)
    follower.fetched(10, 10, 10, now=1.0, revision=5)
    assert follower.behind_since == NEVER
    assert follower.lag(50.0) == 0.0
    follower.behind_since = 2.0  # The leader appended.
    follower.fetched(10, 100, 10, now=2.5, revision=5)
    follower.fetched(20, 200, 10, now=3.0, revision=5)
    follower.fetched(30, 300, 10, now=4.0, revision=5)
    assert follower.lag(5.0) == 3.0
    assert follower.good_fetches == 0


def test_a_follower_joins_if_it_has_everything_up_to_the_high_watermark_and_the_epoch_start():
    follower = FollowerProgress(2, leader_end=9, now=0.0)
    follower.revision = 3
    for end, expected in ((4, False), (5, False), (7, True)):
        follower.end = end
        assert may_join(follower, high_watermark=5, epoch_start=7, revision=3) is expected
    follower.end = 7
    assert not may_join(follower, high_watermark=8, epoch_start=7, revision=3)


def test_a_follower_joins_only_by_a_fetch_that_names_the_state_of_its_leader():
    follower = FollowerProgress(2, leader_end=9, now=0.0)
    assert not may_join(follower, high_watermark=0, epoch_start=0, revision=0)
    for revision, expected in ((3, False), (4, True), (5, True)):
        follower.fetched(9, 9, 10, now=1.0, revision=revision)
        assert may_join(follower, high_watermark=9, epoch_start=0, revision=4) is expected
    follower.begin_life(20, leader_end=9, now=2.0)
    assert not may_join(follower, high_watermark=0, epoch_start=0, revision=0)


def isr_after(current, *, leaving=(), joining=(), min_insync=2):
    return next_isr(
        members(*current),
        replicas=(1, 2, 3),
        leaving=leaving,
        joining=[IsrMember(*member) for member in joining],
        min_insync=min_insync,
    )


def test_members_leave_and_join_in_the_order_of_the_replicas():
    assert isr_after((1, 2, 3), leaving=[2]) == members(1, 3)
    assert isr_after((1, 3), joining=[(2, 12)]) == members(1, 2, 3)


def test_the_isr_does_not_shrink_below_the_minimum():
    assert isr_after((1, 2), leaving=[2]) == members(1, 2)
    assert isr_after((1, 2, 3), leaving=[2, 3]) == members(1, 3)
    assert isr_after((1, 2, 3), leaving=[2, 3], min_insync=1) == members(1)


def test_one_member_takes_the_place_of_another_in_one_change():
    assert isr_after((1, 2), leaving=[2], joining=[(3, 13)]) == members(1, 3)


def test_a_member_that_was_started_again_is_a_new_member():
    assert isr_after((1, 2), joining=[(2, 20)]) == (IsrMember(1, 11), IsrMember(2, 20))


def test_a_node_changes_fifty_partitions_in_a_second():
    limiter = IsrChangeLimiter()
    assert sum(limiter.take(7.0) for _ in range(100)) == 50
    assert sum(limiter.take(7.125) for _ in range(100)) == 6
    assert sum(limiter.take(99.0) for _ in range(100)) == 50

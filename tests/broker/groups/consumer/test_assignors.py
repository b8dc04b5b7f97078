"""Assignors: complete, balanced, and with as few moves as that needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    MemberSubscription,
    assign_ranges,
    assign_uniformly,
)
from millstream.broker.groups.consumer.partition_set import PartitionSet, count

T1, T2, T3, T4 = (UUID(int=number) for number in range(1, 5))

Owners = dict[tuple[UUID, int], str]

COUNTS = st.fixed_dictionaries({}, optional={t: st.integers(1, 9) for t in (T1, T2, T3, T4)})
SUBSCRIPTIONS = st.lists(st.frozensets(st.sampled_from([T1, T2, T3, T4])), max_size=7)


def same(count: int, *topics: UUID) -> list[MemberSubscription]:
    """Return members with the same subscription."""
    return [MemberSubscription(f"m{number}", frozenset(topics)) for number in range(count)]


def again(
    subscribers: Sequence[MemberSubscription], targets: Mapping[str, PartitionSet]
) -> list[MemberSubscription]:
    """Return the same members, after an assignment of `targets`."""
    return [
        MemberSubscription(member.member_id, member.topics, targets.get(member.member_id, {}))
        for member in subscribers
    ]


def owners(targets: Mapping[str, PartitionSet]) -> Owners:
    """Return the owner of each partition; fails if one has two."""
    found: Owners = {}
    for member_id, target in targets.items():
        for topic, numbers in target.items():
            for number in numbers:
                assert (topic, number) not in found
                found[topic, number] = member_id
    return found


def moved(before: Mapping[str, PartitionSet], after: Mapping[str, PartitionSet]) -> set[str]:
    """Return the members that got a partition that they did not have."""
    had = owners(before)
    return {member_id for place, member_id in owners(after).items() if had.get(place) != member_id}


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_every_wanted_partition_goes_to_one_member_that_wants_it(
    assign: Assignor, subscriptions: list[frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    members = [MemberSubscription(f"m{n}", topics) for n, topics in enumerate(subscriptions)]
    targets = assign(members, counts)
    assert list(targets) == [member.member_id for member in members]
    wanted = frozenset().union(*subscriptions)
    assert owners(targets).keys() == {
        (topic, number) for topic in wanted & counts.keys() for number in range(counts[topic])
    }
    for member in members:
        assert targets[member.member_id].keys() <= member.topics
        assert all(targets[member.member_id].values())


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_nothing_moves_when_nothing_changed(
    assign: Assignor, subscriptions: list[frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    members = [MemberSubscription(f"m{n}", topics) for n, topics in enumerate(subscriptions)]
    targets = assign(members, counts)
    assert assign(again(members, targets), counts) == targets


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_the_order_in_which_topics_are_named_does_not_matter(
    assign: Assignor, subscriptions: list[frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    members = [MemberSubscription(f"m{n}", topics) for n, topics in enumerate(subscriptions)]
    turned = dict(reversed(counts.items()))
    turned_members = [
        MemberSubscription(member.member_id, frozenset(sorted(member.topics, reverse=True)))
        for member in members
    ]
    assert assign(members, counts) == assign(turned_members, turned)


# uniform


@given(members=st.integers(1, 9), counts=COUNTS, earlier=st.integers(1, 9))
def test_uniform_keeps_members_with_the_same_wishes_within_one_partition(
    members: int, counts: dict[UUID, int], earlier: int
) -> None:
    before = assign_uniformly(same(earlier, *counts), counts)
    targets = assign_uniformly(again(same(members, *counts), before), counts)
    loads = [count(target) for target in targets.values()]
    assert max(loads) - min(loads) <= 1


@given(members=st.integers(2, 9), counts=COUNTS, leaver=st.integers(0, 8))
def test_uniform_moves_only_what_the_leaver_had(
    members: int, counts: dict[UUID, int], leaver: int
) -> None:
    group = same(members, *counts)
    before = assign_uniformly(group, counts)
    rest = [member for n, member in enumerate(group) if n != leaver % members]
    after = owners(assign_uniformly(again(rest, before), counts))
    gone = group[leaver % members].member_id
    for place, member_id in owners(before).items():
        assert member_id == gone or after[place] == member_id


@given(members=st.integers(1, 9), counts=COUNTS)
def test_uniform_moves_partitions_only_to_the_newcomer(
    members: int, counts: dict[UUID, int]
) -> None:
    group = same(members + 1, *counts)
    before = assign_uniformly(group[:-1], counts)
    after = assign_uniformly(again(group, before), counts)
    assert moved(before, after) <= {group[-1].member_id}


@given(members=st.integers(1, 9), counts=COUNTS, more=st.integers(1, 5))
def test_uniform_moves_nothing_when_partitions_are_added_to_an_even_group(
    members: int, counts: dict[UUID, int], more: int
) -> None:
    group = same(members, *counts)
    before = assign_uniformly(group, counts)
    after = owners(assign_uniformly(again(group, before), {t: n + more for t, n in counts.items()}))
    assert all(after[place] == member_id for place, member_id in owners(before).items())


def test_uniform_spreads_each_topic_over_the_members() -> None:
    targets = assign_uniformly(same(3, T1, T2), {T1: 3, T2: 3})
    assert targets == {f"m{n}": {T1: frozenset({n}), T2: frozenset({n})} for n in range(3)}


def test_uniform_takes_from_whom_has_most() -> None:
    group = [
        MemberSubscription("a", frozenset({T1}), {T1: frozenset(range(5))}),
        MemberSubscription("b", frozenset({T1}), {T1: frozenset({5})}),
    ]
    after = assign_uniformly(group, {T1: 6})
    assert {member_id: count(target) for member_id, target in after.items()} == {"a": 3, "b": 3}
    assert after["b"][T1] > {5}


def test_uniform_evens_out_what_overlapping_wishes_allow() -> None:
    group = [
        MemberSubscription(
            "both", frozenset({T1, T2}), {T1: frozenset({0, 1}), T2: frozenset({0, 1})}
        ),
        MemberSubscription("first", frozenset({T1})),
        MemberSubscription("second", frozenset({T2})),
    ]
    after = assign_uniformly(group, {T1: 2, T2: 2})
    loads = sorted(count(target) for target in after.values())
    assert loads == [1, 1, 2]


def test_uniform_gives_what_few_want_to_those_few() -> None:
    group = [MemberSubscription("a", frozenset({T1, T2})), MemberSubscription("b", frozenset({T2}))]
    after = assign_uniformly(group, {T1: 3, T2: 3})
    assert after == {"a": {T1: frozenset({0, 1, 2})}, "b": {T2: frozenset({0, 1, 2})}}


def test_uniform_forgets_partitions_and_topics_that_are_gone() -> None:
    old = MemberSubscription("a", frozenset({T1}), {T1: frozenset({0, 7}), T2: frozenset({0})})
    assert assign_uniformly([old], {T1: 1, T2: 1}) == {"a": {T1: frozenset({0})}}


# range


@given(members=st.integers(1, 9), partitions=st.integers(1, 12), topics=st.integers(1, 4))
def test_range_cuts_topics_of_equal_size_at_the_same_places(
    members: int, partitions: int, topics: int
) -> None:
    names = [T1, T2, T3, T4][:topics]
    targets = assign_ranges(same(members, *names), dict.fromkeys(names, partitions))
    for target in targets.values():
        assert len(set(target.values())) <= 1
        assert not target or target.keys() == set(names)


@given(members=st.integers(1, 9), counts=COUNTS)
def test_range_gives_runs_in_the_order_of_joining(members: int, counts: dict[UUID, int]) -> None:
    targets = assign_ranges(same(members, *counts), counts)
    for topic, partitions in counts.items():
        runs = [sorted(target[topic]) for target in targets.values() if topic in target]
        assert [number for run in runs for number in run] == list(range(partitions))
        lengths = [len(run) for run in runs]
        assert all(0 <= first - second <= 1 for first, second in pairwise(lengths))
        assert len(runs) == min(members, partitions)


def test_range_puts_a_newcomer_last() -> None:
    group = same(3, T1)
    before = assign_ranges(group[:2], {T1: 5})
    after = assign_ranges(again(group, before), {T1: 5})
    assert before == {"m0": {T1: frozenset({0, 1, 2})}, "m1": {T1: frozenset({3, 4})}}
    assert after["m2"] == {T1: frozenset({4})}


def test_range_counts_only_those_who_want_a_topic() -> None:
    group = [MemberSubscription("a", frozenset({T1, T2})), MemberSubscription("b", frozenset({T2}))]
    assert assign_ranges(group, {T1: 2, T2: 2}) == {
        "a": {T1: frozenset({0, 1}), T2: frozenset({0})},
        "b": {T2: frozenset({1})},
    }


# Size


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@pytest.mark.parametrize(("topics", "partitions"), [(1, 1000), (1000, 1)])
def test_a_thousand_members_share_a_thousand_partitions(
    assign: Assignor, topics: int, partitions: int
) -> None:
    names = [UUID(int=number) for number in range(topics)]
    counts = dict.fromkeys(names, partitions)
    group = same(1000, *names)
    targets = assign(group, counts)
    per_member = Counter(owners(targets).values())
    assert per_member.total() == 1000
    if assign is assign_uniformly:
        assert set(per_member.values()) == {1}
        assert len(moved(targets, assign(again(group[1:], targets), counts))) == 1

"""A classic group: its members, generations and assignments."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.broker.groups.classic.classic_group import NEW_MEMBER_SECONDS_MAX
from millstream.broker.groups.classic.rebalance import ClassicLimits
from millstream.broker.groups.values import GroupJoinResult, GroupSyncResult, LeavingMember
from millstream.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdNeeded,
    RebalanceInProgress,
    UnknownMember,
)

from .group_bench import REBALANCE_MS, SESSION_MS, Bench

SESSION = SESSION_MS / 1000
REBALANCE = REBALANCE_MS / 1000


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Joining.


def test_a_new_member_is_sent_away_with_an_id_to_come_back_with(bench: Bench) -> None:
    ticket = bench.join()
    needed = bench.answers[ticket]
    assert isinstance(needed, MemberIdNeeded)
    assert bench.group.is_empty
    again = bench.join(needed.member_id)
    bench.advance_time(0.1)
    joined = bench.answers[again]
    assert (joined.member_id, joined.generation, joined.leader) == (needed.member_id, 1, "m1")


def test_a_client_that_cannot_come_back_with_an_id_is_taken_at_once(bench: Bench) -> None:
    ticket = bench.join(needs_known_id=False)
    bench.advance_time(0.1)
    assert bench.answers[ticket].generation == 1


def test_a_static_member_is_taken_at_once(bench: Bench) -> None:
    ticket = bench.join(instance_id="i")
    bench.advance_time(0.1)
    assert isinstance(bench.answers[ticket], GroupJoinResult)


def test_an_id_that_was_given_out_lapses_with_the_session(bench: Bench) -> None:
    needed = bench.answers[bench.join()]
    bench.advance_time(SESSION)
    assert isinstance(bench.answers[bench.join(needed.member_id)], UnknownMember)
    assert bench.group.is_idle


def test_an_id_that_was_never_given_out_is_unknown(bench: Bench) -> None:
    bench.join()
    assert isinstance(bench.answers[bench.join("made up")], UnknownMember)


def test_an_empty_group_waits_for_more_members_before_it_is_divided(bench: Bench) -> None:
    first = bench.join(needs_known_id=False)
    bench.advance_time(0.05)
    assert bench.group.state == "PreparingRebalance"
    second = bench.join(needs_known_id=False)
    bench.advance_time(0.05)
    assert first not in bench.answers, "a newcomer prolongs the wait"
    bench.advance_time(0.1)
    assert bench.answers[first].generation == bench.answers[second].generation == 1


def test_the_wait_for_more_members_ends_with_the_rebalance_timeout() -> None:
    bench = Bench(ClassicLimits(members_max=100, initial_delay_ms=100))
    first = bench.join(needs_known_id=False, rebalance_timeout_ms=1000)
    for _ in range(15):
        bench.advance_time(0.08)
        if first not in bench.answers:
            bench.join(needs_known_id=False, rebalance_timeout_ms=1000)
    assert bench.answers[first].generation == 1


def test_only_the_leader_learns_of_all_members(bench: Bench) -> None:
    tickets = [bench.join(needs_known_id=False, client_id=name) for name in "abc"]
    bench.advance_time(1)
    leader, *others = (bench.answers[ticket] for ticket in tickets)
    assert leader.leader == leader.member_id
    assert [member.member_id for member in leader.members] == ["m1", "m2", "m3"]
    assert [member.metadata for member in leader.members] == [b"topics"] * 3
    assert all(joined.members == () and joined.leader == "m1" for joined in others)


def test_a_member_that_joins_a_stable_group_starts_a_new_generation(bench: Bench) -> None:
    (first,) = bench.stable(None)
    newcomer = bench.join(needs_known_id=False)
    assert bench.group.state == "PreparingRebalance"
    with pytest.raises(RebalanceInProgress):
        bench.heartbeat(first)
    again = bench.join(first)
    assert bench.answers[again].generation == bench.answers[newcomer].generation == 2
    assert bench.answers[again].leader == first


def test_the_rebalance_timeout_leaves_behind_who_is_alive_but_does_not_join(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    again = bench.join(first)
    began = bench.now
    while again not in bench.answers:
        with pytest.raises(RebalanceInProgress):
            bench.heartbeat(second)
        bench.advance_time(SESSION / 2)
    assert bench.now - began == pytest.approx(REBALANCE, abs=SESSION / 2)
    assert [m.member_id for m in bench.answers[again].members] == [first]
    with pytest.raises(UnknownMember):
        bench.heartbeat(second)


def test_a_leader_that_does_not_come_back_is_replaced(bench: Bench) -> None:
    _, other = bench.stable(None, None)
    again = bench.join(other, protocols={"range": b"other topics"})
    bench.advance_time(SESSION)  # The leader was silent.
    assert bench.answers[again].leader == other
    assert bench.answers[again].members


def test_asking_to_join_twice_answers_the_first_request_too(bench: Bench) -> None:
    first, _ = bench.stable(None, None)
    once = bench.join(first)
    twice = bench.join(first)
    assert isinstance(bench.answers[once], RebalanceInProgress)
    assert twice not in bench.answers
    bench.advance_time(REBALANCE)
    assert bench.answers[twice].generation == 2


def test_a_follower_that_joins_again_unchanged_is_told_the_present_generation(
    bench: Bench,
) -> None:
    _, second = bench.stable(None, None)
    joined = bench.answers[bench.join(second)]
    assert (joined.generation, joined.members) == (1, ())
    assert bench.group.state == "Stable"


def test_a_leader_that_joins_again_starts_a_rebalance(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    bench.join(first)
    assert bench.group.state == "PreparingRebalance"
    ticket = bench.join(second)
    assert bench.answers[ticket].generation == 2


def test_a_member_that_missed_the_answer_gets_it_again(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    joined = bench.answers[bench.join(first)]
    assert (joined.generation, len(joined.members)) == (1, 2)
    assert bench.answers[bench.join(second)].members == ()
    assert bench.group.state == "CompletingRebalance"


def test_other_metadata_while_shares_are_awaited_starts_over(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    waiting = bench.sync(second)
    bench.join(first, protocols={"range": b"other"})
    assert isinstance(bench.answers[waiting], RebalanceInProgress)
    assert bench.group.state == "PreparingRebalance"


def test_a_new_member_may_wait_only_so_long(bench: Bench) -> None:
    slow = NEW_MEMBER_SECONDS_MAX * 2
    first, second = bench.join_all(None, None, rebalance_timeout_ms=int(slow * 1000))
    bench.sync(second)
    bench.sync(first)
    newcomer = bench.join(needs_known_id=False, rebalance_timeout_ms=int(slow * 1000))
    again = bench.join(first)
    while bench.now < NEW_MEMBER_SECONDS_MAX + 400 and newcomer not in bench.answers:
        with pytest.raises(RebalanceInProgress):
            bench.heartbeat(second)
        bench.advance_time(SESSION / 2)
    assert isinstance(bench.answers[newcomer], UnknownMember)
    assert again not in bench.answers


# Assignors.


def test_the_strategy_that_most_prefer_among_those_that_all_know_is_used(bench: Bench) -> None:
    tickets = [
        bench.join(needs_known_id=False, protocols=dict.fromkeys(known, b""))
        for known in (["a", "b", "c"], ["c", "b"], ["b", "c"])
    ]
    bench.advance_time(1)
    assert {bench.answers[ticket].protocol for ticket in tickets} == {"b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": {}},
        {"protocols": {"unheard of": b""}},
    ],
)
def test_a_member_that_shares_no_strategy_is_refused(bench: Bench, changes: Any) -> None:
    bench.stable(None)
    ticket = bench.join(needs_known_id=False, **changes)
    assert isinstance(bench.answers[ticket], InconsistentProtocol)
    assert bench.group.state == "Stable"


@pytest.mark.parametrize("changes", [{"protocol_type": ""}, {"protocols": {}}])
def test_an_empty_group_needs_a_type_and_a_strategy_too(bench: Bench, changes: Any) -> None:
    ticket = bench.join(needs_known_id=False, **changes)
    assert isinstance(bench.answers[ticket], InconsistentProtocol)
    assert bench.group.is_idle


def test_a_group_that_became_empty_may_be_of_another_type(bench: Bench) -> None:
    (only,) = bench.stable(None)
    bench.leave(LeavingMember(only))
    bench.join(needs_known_id=False, protocol_type="connect", protocols={"default": b""})
    bench.advance_time(1)
    assert bench.group.protocol_type == "connect"


# Limits.


def test_a_full_group_takes_no_more_members(bench: Bench) -> None:
    bench.stable(None, None, None, None)
    for changes in ({"needs_known_id": False}, {"needs_known_id": True}, {"instance_id": "i"}):
        assert isinstance(bench.answers[bench.join(**changes)], GroupFull)
    assert bench.group.state == "Stable"


def test_a_member_of_a_full_group_may_come_back(bench: Bench) -> None:
    ids = bench.stable("i", None, None, None)
    assert isinstance(bench.answers[bench.join(instance_id="i")], GroupJoinResult)
    tickets = [bench.join(member_id) for member_id in ids[1:]]
    assert all(isinstance(bench.answers[ticket], GroupJoinResult) for ticket in tickets)


def test_ids_that_are_given_out_are_limited_too(bench: Bench) -> None:
    tickets = [bench.join() for _ in range(5)]
    found = [type(bench.answers[ticket]) for ticket in tickets]
    assert found == [MemberIdNeeded] * 4 + [GroupFull]


# Assignments.


def test_each_member_gets_the_share_that_the_leader_gave_it(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    waiting = bench.sync(second)
    assert waiting not in bench.answers
    leader = bench.sync(first, assignments={first: b"one", second: b"two", "stranger": b"three"})
    assert bench.answers[waiting] == GroupSyncResult(
        protocol_type="consumer", protocol="range", assignment=b"two"
    )
    assert bench.answers[leader].assignment == b"one"
    assert bench.group.state == "Stable"


def test_a_member_without_a_share_gets_an_empty_one(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    bench.sync(first, assignments={first: b"all"})
    assert bench.answers[bench.sync(second)].assignment == b""


def test_asking_for_a_share_twice_answers_the_first_request_too(bench: Bench) -> None:
    _, second = bench.join_all(None, None)
    once, twice = bench.sync(second), bench.sync(second)
    assert isinstance(bench.answers[once], RebalanceInProgress)
    assert twice not in bench.answers


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 0}, IllegalGeneration),
        ({"generation": 2}, IllegalGeneration),
        ({"protocol_type": "connect"}, InconsistentProtocol),
        ({"protocol": "sticky"}, InconsistentProtocol),
        ({"instance_id": "i"}, UnknownMember),
    ],
)
def test_a_share_is_given_only_to_who_speaks_of_this_generation(
    bench: Bench, changes: Any, error: type
) -> None:
    (only,) = bench.join_all(None)
    assert isinstance(bench.answers[bench.sync(only, **changes)], error)
    assert bench.group.state == "CompletingRebalance"


def test_no_share_is_given_while_members_gather(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    bench.join(first)
    assert isinstance(bench.answers[bench.sync(second)], RebalanceInProgress)


def test_who_does_not_ask_for_its_share_in_time_is_let_go(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    bench.sync(first, assignments={})
    began = bench.now
    while bench.group.state == "Stable":
        bench.heartbeat(first)
        bench.heartbeat(second)
        bench.advance_time(SESSION / 2)
    assert bench.now - began <= REBALANCE + SESSION
    again = bench.join(first)
    assert [m.member_id for m in bench.answers[again].members] == [first]


# Heartbeats.


def test_a_silent_member_is_let_go_and_the_rest_gathers(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    bench.advance_time(SESSION / 2)
    bench.heartbeat(first)
    bench.advance_time(SESSION / 2)
    with pytest.raises(RebalanceInProgress):
        bench.heartbeat(first)
    with pytest.raises(UnknownMember):
        bench.heartbeat(second)


def test_a_group_of_silent_members_becomes_empty(bench: Bench) -> None:
    bench.stable(None, None)
    bench.advance_time(SESSION)
    assert bench.group.state == "Empty"
    assert bench.group.generation == 2
    assert bench.group.deadline is None
    assert bench.group.empty_since_ms == 1_000


def test_committing_is_a_sign_of_life(bench: Bench) -> None:
    (only,) = bench.stable(None)
    for _ in range(5):
        bench.advance_time(SESSION / 2)
        bench.group.touch(only, bench.now)
    bench.heartbeat(only)


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_a_heartbeat_of_another_generation_is_refused(bench: Bench, generation: int) -> None:
    (only,) = bench.stable(None)
    with pytest.raises(IllegalGeneration, match=f"is at generation 1, got {generation}"):
        bench.heartbeat(only, generation)


def test_a_member_that_waits_for_us_need_not_be_heard(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    waiting = bench.sync(second)
    for _ in range(5):
        bench.advance_time(SESSION / 2)
        bench.heartbeat(first)
    bench.sync(first, assignments={second: b"share"})
    assert bench.answers[waiting].assignment == b"share"
    bench.advance_time(SESSION / 2)
    bench.heartbeat(second)


# Leaving.


def test_a_member_that_leaves_has_the_others_gather(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    (left,) = bench.leave(LeavingMember(second))
    assert left.error is None
    assert bench.group.state == "PreparingRebalance"
    again = bench.join(first)
    assert bench.answers[again].generation == 2


def test_the_last_member_leaves_an_empty_group(bench: Bench) -> None:
    (only,) = bench.stable(None)
    bench.leave(LeavingMember(only))
    assert (bench.group.state, bench.group.generation) == ("Empty", 2)


def test_each_leaver_has_its_own_result(bench: Bench) -> None:
    first, static = bench.stable(None, "i")
    pending_id = bench.answers[bench.join()].member_id
    results = bench.leave(
        LeavingMember("stranger"),
        LeavingMember(pending_id),
        LeavingMember("other", "i"),
        LeavingMember("", "i"),
        LeavingMember("", "unheard of"),
        LeavingMember(first),
    )
    assert [type(left.error) for left in results] == [
        UnknownMember,
        type(None),
        FencedInstance,
        type(None),
        UnknownMember,
        type(None),
    ]
    assert bench.group.state == "Empty"
    assert static


def test_a_member_that_waits_is_told_when_it_is_removed(bench: Bench) -> None:
    first, static = bench.stable(None, "i")
    waiting = bench.join(static, instance_id="i")
    assert isinstance(bench.answers[waiting], GroupJoinResult)
    bench.join(first)
    waiting = bench.join(static, instance_id="i", protocols={"range": b"other"})
    assert isinstance(bench.answers[waiting], GroupJoinResult)
    share = bench.sync(static, instance_id="i")
    bench.leave(LeavingMember("", "i"))
    assert isinstance(bench.answers[share], UnknownMember)


def test_when_the_last_one_that_others_wait_for_leaves_they_go_on(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    again = bench.join(first)
    bench.leave(LeavingMember(second))
    assert bench.answers[again].generation == 2


# Static members.


def test_a_static_member_comes_back_to_its_share_without_a_new_division(bench: Bench) -> None:
    leader, static = bench.stable(None, "i")
    joined = bench.answers[bench.join(instance_id="i")]
    assert joined.member_id not in (leader, static)
    assert (joined.generation, joined.is_skipping_assignment) == (1, False)
    assert bench.group.state == "Stable"
    share = bench.sync(joined.member_id, instance_id="i")
    assert bench.answers[share].assignment == static.encode()
    bench.heartbeat(leader)


def test_the_old_id_of_a_static_member_is_fenced(bench: Bench) -> None:
    _, static = bench.stable(None, "i")
    new = bench.answers[bench.join(instance_id="i")].member_id
    with pytest.raises(FencedInstance):
        bench.heartbeat(static, instance_id="i")
    with pytest.raises(UnknownMember):
        bench.heartbeat(static)
    assert isinstance(bench.answers[bench.sync(static, instance_id="i")], FencedInstance)
    assert isinstance(bench.answers[bench.join(static, instance_id="i")], FencedInstance)
    bench.heartbeat(new, instance_id="i")


def test_a_static_leader_that_comes_back_is_told_not_to_divide(bench: Bench) -> None:
    _, other = bench.stable("i", None)
    joined = bench.answers[bench.join(instance_id="i")]
    assert joined.is_skipping_assignment
    assert joined.leader == joined.member_id
    assert [m.member_id for m in joined.members] == [joined.member_id, other]


def test_an_old_static_leader_that_comes_back_is_told_that_it_does_not_lead(bench: Bench) -> None:
    leader, _ = bench.stable("i", None)
    joined = bench.answers[bench.join(instance_id="i", can_skip_assignment=False)]
    assert (joined.leader, joined.members, joined.is_skipping_assignment) == (leader, (), False)


def test_a_static_member_with_another_strategy_has_the_group_divided_anew(bench: Bench) -> None:
    both = {"range": b"", "sticky": b""}
    bench.join_all(None, "i", protocols=both)
    bench.sync("m2")
    bench.sync("m1", assignments={})
    ticket = bench.join(instance_id="i", protocols={"sticky": b""})
    assert ticket not in bench.answers
    bench.join("m1", protocols=both)
    assert bench.answers[ticket].protocol == "sticky"


def test_a_static_member_that_comes_back_while_shares_are_awaited_starts_over(
    bench: Bench,
) -> None:
    first, static = bench.join_all(None, "i")
    waiting = bench.sync(static, instance_id="i")
    again = bench.join(instance_id="i")
    assert isinstance(bench.answers[waiting], FencedInstance)
    assert again not in bench.answers
    bench.join(first)
    assert bench.answers[again].generation == 2


def test_two_that_claim_one_instance_never_wait_at_once(bench: Bench) -> None:
    once = bench.join(instance_id="i")
    twice = bench.join(instance_id="i")
    assert isinstance(bench.answers[once], FencedInstance)
    bench.advance_time(1)
    assert isinstance(bench.answers[twice], GroupJoinResult)


def test_a_static_member_that_is_away_keeps_its_place_for_a_session(bench: Bench) -> None:
    first, _ = bench.stable(None, "i")
    again = bench.join(first, protocols={"range": b"other"})
    bench.advance_time(SESSION / 2)
    assert again not in bench.answers
    bench.advance_time(SESSION / 2)
    assert [m.member_id for m in bench.answers[again].members] == [first]


def test_static_members_that_are_away_are_in_the_next_generation(bench: Bench) -> None:
    first, static = bench.join_all(None, "i", session_timeout_ms=10 * REBALANCE_MS)
    bench.sync(static, instance_id="i")
    bench.sync(first, assignments={})
    again = bench.join(first)
    bench.advance_time(REBALANCE)
    assert {m.member_id for m in bench.answers[again].members} == {first, static}


def test_a_static_leader_that_is_away_does_not_lead_the_next_generation(bench: Bench) -> None:
    static, other = bench.join_all("i", None, session_timeout_ms=10 * REBALANCE_MS)
    bench.sync(other)
    bench.sync(static, instance_id="i", assignments={})
    again = bench.join(other, protocols={"range": b"other"})
    bench.advance_time(REBALANCE)
    assert bench.answers[again].leader == other
    assert {m.member_id for m in bench.answers[again].members} == {static, other}


def test_a_static_member_that_never_asks_for_its_share_is_let_go_under_any_id(
    bench: Bench,
) -> None:
    first, static = bench.join_all(None, "i", session_timeout_ms=10 * REBALANCE_MS)
    bench.sync(first, assignments={static: b"share"})
    new = bench.answers[bench.join(instance_id="i", session_timeout_ms=10 * REBALANCE_MS)]
    bench.advance_time(REBALANCE)
    with pytest.raises(UnknownMember):
        bench.heartbeat(new.member_id, instance_id="i")
    assert bench.group.state == "PreparingRebalance"


# Offsets.


def commit(bench: Bench, member_id: str, generation: int, **changes: Any) -> None:
    instance_id = changes.pop("instance_id", None)
    is_transactional = changes.pop("is_transactional", False)
    bench.group.check_commit(member_id, generation, instance_id, is_transactional=is_transactional)


def test_members_commit_in_their_generation_and_nobody_else_does(bench: Bench) -> None:
    (only,) = bench.stable(None)
    commit(bench, only, 1)
    with pytest.raises(IllegalGeneration):
        commit(bench, only, 0)
    with pytest.raises(IllegalGeneration):
        commit(bench, only, -1)
    with pytest.raises(UnknownMember):
        commit(bench, "stranger", 1)
    with pytest.raises(UnknownMember):
        commit(bench, "", -1)


def test_an_empty_group_takes_commits_of_anyone_who_claims_no_generation(bench: Bench) -> None:
    commit(bench, "", -1)
    commit(bench, "stranger", -1)
    with pytest.raises(UnknownMember):
        commit(bench, "stranger", 0)


def test_what_was_read_may_be_committed_while_members_gather_but_not_while_shares_are_awaited(
    bench: Bench,
) -> None:
    first, second = bench.stable(None, None)
    bench.join(first)
    commit(bench, second, 1)
    bench.join(second)
    with pytest.raises(RebalanceInProgress):
        commit(bench, second, 2)
    commit(bench, second, 2, is_transactional=True)


def test_old_transactional_producers_name_no_member(bench: Bench) -> None:
    bench.stable(None)
    commit(bench, "", -1, is_transactional=True)


def test_a_fenced_static_member_commits_nothing(bench: Bench) -> None:
    (static,) = bench.stable("i")
    bench.join(instance_id="i")
    with pytest.raises(FencedInstance):
        commit(bench, static, 1, instance_id="i")


# Storage and restarts.


def test_members_that_are_heard_in_time_stay_in_their_generation_over_a_restart(
    bench: Bench,
) -> None:
    first, second = bench.stable(None, "i")
    bench.restart()
    bench.advance_time(SESSION / 2)
    bench.heartbeat(first, 1)
    bench.heartbeat(second, 1, "i")
    assert bench.group.state == "Stable"
    assert bench.answers[bench.sync(second)].assignment == second.encode()
    bench.advance_time(SESSION)
    assert bench.group.state == "Empty"


def test_a_generation_that_awaits_its_shares_goes_on_after_a_restart(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    bench.restart()
    assert bench.group.state == "CompletingRebalance"
    waiting = bench.sync(second, 1)
    bench.sync(first, 1, assignments={second: b"share"})
    assert bench.answers[waiting].assignment == b"share"


def test_the_generation_never_falls_over_a_restart(bench: Bench) -> None:
    first, second = bench.stable(None, None)
    for expected in range(2, 6):
        new = {"range": b"topics of %d" % expected}
        again, other = bench.join(first, protocols=new), bench.join(second, protocols=new)
        assert bench.answers[again].generation == bench.answers[other].generation == expected
        bench.restart()
        bench.join(first, protocols={"range": b"never answered"})
        bench.restart()


def test_an_empty_group_comes_back_with_its_generation_and_since_when(bench: Bench) -> None:
    bench.stable(None)
    bench.advance_time(SESSION)
    bench.restart()
    assert (bench.group.state, bench.group.generation) == ("Empty", 2)
    assert bench.group.empty_since_ms == 1_000
    assert not bench.group.is_idle


def test_what_could_not_be_stored_has_the_members_gather_again(bench: Bench) -> None:
    first, _ = bench.stable(None, None)
    assert bench.group.store_failed(bench.now) == []
    assert bench.group.state == "PreparingRebalance"
    with pytest.raises(RebalanceInProgress):
        bench.heartbeat(first)
    assert bench.group.take_changes(0) == [], "nothing is stored while members gather"


def test_those_who_wait_are_told_when_the_group_ends(bench: Bench) -> None:
    first, second = bench.join_all(None, None)
    share = bench.sync(second)
    error = UnknownMember("it is over")
    assert list(bench.group.end(error)) == [(share, error)]
    assert bench.group.state == "Dead"
    assert bench.group.deadline is None
    assert first


# Describing.


def test_a_stable_group_shows_its_strategy_and_shares_and_others_do_not(bench: Bench) -> None:
    first, static = bench.stable(None, "i")
    found = bench.group.describe()
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
    assert [(m.member_id, m.instance_id, m.metadata, m.assignment) for m in found.members] == [
        (first, None, b"topics", first.encode()),
        (static, "i", b"topics", static.encode()),
    ]
    assert bench.group.subscriptions == [b"topics", b"topics"]
    bench.join(first)
    found = bench.group.describe()
    assert (found.state, found.protocol) == ("PreparingRebalance", "")
    assert {(m.metadata, m.assignment) for m in found.members} == {(b"", b"")}

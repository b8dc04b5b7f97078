"""Heartbeats of a consumer group: joining, moving partitions, leaving, being late."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.member import ConsumerHeartbeat, ConsumerHeartbeatResult
from millstream.broker.groups.consumer.partition_set import PartitionSet
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    IllegalGeneration,
    InvalidRegex,
    InvalidRequest,
    MillstreamError,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)

from .consumer_clients import Client, FakeTopics

SESSION_S = 30.0
REBALANCE_S = 20.0
CONFIG = BrokerConfig(group_members_max=3, consumer_session_timeout_ms=30_000)


class GroupBench:
    """A group, its topics and a clock."""

    def __init__(self, config: BrokerConfig = CONFIG, **topics: int) -> None:
        self.topics = FakeTopics(**(topics or {"apple": 4}))
        self.group = ConsumerGroup("g", config)
        self.now = 0.0

    def send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        return self.group.heartbeat(beat, self.topics.catalog, self.now)

    def beat(self, client: Client) -> ConsumerHeartbeatResult:
        answer = self.send(client.beat())
        client.on_response(answer)
        return answer

    def join(
        self, member_id: str, *names: str, instance_id: str | None = None, **fields: object
    ) -> Client:
        client = Client(member_id, instance_id)
        topic_names = frozenset(names or ([] if fields else ["apple"]))
        client.subscribe(topic_names=topic_names, **fields)
        self.beat(client)
        return client

    def settle(self, *clients: Client) -> None:
        """Let clients send heartbeats until nothing changes any more."""
        for _ in range(4):
            for client in clients:
                client.release()
                self.beat(client)
        assert self.group.state == "Stable"

    def advance_time(self, seconds: float) -> None:
        self.now += seconds
        self.group.advance_time(self.now)

    def of(self, name: str, *numbers: int) -> PartitionSet:
        return {self.topics.id(name): frozenset(numbers)}


# Joining.


def test_the_first_member_gets_everything_at_once() -> None:
    bench = GroupBench(apple=2, banana=1)
    client = bench.join("a", "apple", "banana")
    assert client.epoch == 1
    assert client.hands == {**bench.of("apple", 0, 1), **bench.of("banana", 0)}
    assert bench.group.state == "Stable"
    assert (bench.group.epoch, bench.group.target_epoch) == (1, 1)


def test_a_member_may_want_nothing() -> None:
    bench = GroupBench()
    client = Client("a")
    answer = bench.send(client.beat())
    assert (answer.member_epoch, answer.assigned) == (1, {})


def test_a_member_may_want_topics_that_are_not_there_yet() -> None:
    bench = GroupBench()
    client = bench.join("a", "banana")
    assert (client.epoch, client.hands) == (1, {})


def test_an_answer_says_how_often_to_speak() -> None:
    bench = GroupBench()
    answer = bench.send(replace(Client("a").beat()))
    assert answer.heartbeat_interval_ms == CONFIG.consumer_heartbeat_interval_ms


def test_a_second_member_gets_its_share_when_the_first_has_let_go() -> None:
    bench = GroupBench(apple=4)
    first = bench.join("a")
    second = bench.join("b")
    assert (second.epoch, second.hands) == (2, {})

    told = bench.beat(first)
    assert (told.member_epoch, told.assigned) == (1, bench.of("apple", 0, 1))
    assert bench.beat(second).assigned is None
    assert bench.group.state == "Reconciling"

    first.release()
    assert bench.beat(first).member_epoch == 2
    assert bench.beat(second).assigned == bench.of("apple", 2, 3)
    assert bench.group.state == "Stable"


def test_a_member_keeps_its_epoch_until_it_has_let_go() -> None:
    bench = GroupBench()
    first, _ = bench.join("a"), bench.join("b")
    for _ in range(3):
        assert bench.beat(first).member_epoch == 1
    first.release()
    assert bench.beat(first).member_epoch == 2


def test_who_lets_go_after_the_target_moved_on_is_asked_for_more() -> None:
    bench = GroupBench(apple=6)
    first, second = bench.join("a"), bench.join("b")
    bench.beat(first)
    third = bench.join("c")
    first.release()
    answer = bench.beat(first)
    assert answer.member_epoch == 2
    assert answer.assigned == bench.of("apple", 0, 1)
    bench.settle(first, second, third)
    assert {client.epoch for client in (first, second, third)} == {3}


# Heartbeats.


def test_nothing_is_repeated_that_did_not_change() -> None:
    bench = GroupBench()
    client = bench.join("a")
    assert bench.beat(client).assigned is None
    assert bench.beat(client).assigned is None


def test_who_says_everything_is_told_everything() -> None:
    bench = GroupBench()
    client = bench.join("a")
    client.on_lost_response()
    assert bench.beat(client).assigned == bench.of("apple", 0, 1, 2, 3)


def test_who_does_not_say_what_it_owns_has_not_said_everything() -> None:
    bench = GroupBench()
    client = bench.join("a")
    client.on_lost_response()
    assert bench.send(replace(client.beat(), owned=None)).assigned is None


def test_a_member_whose_answer_was_lost_is_heard_with_the_epoch_before() -> None:
    bench = GroupBench()
    first, second = bench.join("a"), bench.join("b")
    bench.settle(first, second)
    bench.topics.grow("apple", 2)
    bench.send(second.beat())
    second.on_lost_response()
    assert second.epoch == 2
    answer = bench.beat(second)
    assert answer.member_epoch == 3
    assert answer.assigned is not None


def test_any_number_of_lost_answers_is_forgiven() -> None:
    bench = GroupBench()
    client = bench.join("a")
    for _ in range(3):
        bench.topics.grow("apple", 1)
        bench.send(client.beat())
        client.on_lost_response()
    answer = bench.beat(client)
    assert (client.epoch, answer.assigned) == (4, bench.of("apple", *range(7)))


def test_who_missed_an_epoch_and_does_not_say_what_it_owns_is_fenced() -> None:
    bench = GroupBench()
    client = bench.join("a")
    bench.topics.grow("apple", 1)
    bench.send(client.beat())
    with pytest.raises(FencedMemberEpoch, match="'a' is at epoch 2, not 1"):
        bench.send(replace(client.beat(), owned=None))


def test_who_missed_an_epoch_and_owns_what_is_not_its_own_is_fenced() -> None:
    bench = GroupBench()
    client = bench.join("a")
    bench.topics.grow("apple", 1)
    bench.send(client.beat())
    client.on_lost_response()
    client.hands = bench.of("apple", 99)
    with pytest.raises(FencedMemberEpoch):
        bench.send(client.beat())


@pytest.mark.parametrize("epoch", [1, 4])
def test_an_epoch_that_is_long_gone_or_never_was_is_fenced(epoch: int) -> None:
    bench = GroupBench()
    client = bench.join("a")
    for _ in range(2):
        bench.topics.grow("apple", 1)
        bench.beat(client)
    assert client.epoch == 3
    client.on_lost_response()
    with pytest.raises(FencedMemberEpoch, match=f"at epoch 3, not {epoch}"):
        bench.send(replace(client.beat(), member_epoch=epoch))


def test_a_fenced_member_joins_again_and_gets_back_what_is_its_own() -> None:
    bench = GroupBench()
    client = bench.join("a")
    for _ in range(2):
        bench.topics.grow("apple", 1)
        bench.beat(client)
    client.on_error(FencedMemberEpoch("too late"))
    answer = bench.beat(client)
    assert (answer.member_epoch, answer.assigned) == (3, bench.of("apple", *range(6)))
    assert bench.group.epoch == 3


def test_joining_again_with_nothing_lets_go_of_what_was_to_be_given_up() -> None:
    bench = GroupBench()
    first, second = bench.join("a"), bench.join("b")
    bench.beat(first)
    first.on_error(FencedMemberEpoch("lost its way"))
    assert bench.beat(first).member_epoch == 2
    assert bench.beat(second).assigned == bench.of("apple", 2, 3)


def test_a_stranger_is_unknown() -> None:
    bench = GroupBench()
    bench.join("a")
    with pytest.raises(UnknownMember, match="member 'b' does not exist"):
        bench.send(ConsumerHeartbeat(member_id="b", member_epoch=1))


def test_another_wish_divides_the_group_anew() -> None:
    bench = GroupBench(apple=1, banana=1)
    client = bench.join("a", "apple")
    client.subscribe(topic_names=frozenset({"banana"}))
    answer = bench.beat(client)
    assert (answer.member_epoch, answer.assigned) == (1, {})
    client.release()
    answer = bench.beat(client)
    assert (answer.member_epoch, answer.assigned) == (2, bench.of("banana", 0))


def test_the_same_wish_again_changes_nothing() -> None:
    bench = GroupBench()
    client = bench.join("a")
    client.subscribe(topic_names=frozenset({"apple"}))
    bench.beat(client)
    assert bench.group.epoch == 1


# Topics.


def test_topics_that_come_grow_and_go_are_followed() -> None:
    bench = GroupBench(apple=1)
    client = bench.join("a", "apple", "banana")
    bench.topics.create("banana", 2)
    assert bench.beat(client).assigned == {**bench.of("apple", 0), **bench.of("banana", 0, 1)}
    bench.topics.grow("apple", 1)
    assert bench.beat(client).assigned == {**bench.of("apple", 0, 1), **bench.of("banana", 0, 1)}
    bench.topics.delete("banana")
    assert bench.beat(client).assigned == bench.of("apple", 0, 1)
    client.release()
    bench.beat(client)
    assert (client.epoch, bench.group.epoch, bench.group.state) == (4, 4, "Stable")


def test_a_topic_made_anew_is_another_topic() -> None:
    bench = GroupBench(apple=1)
    client = bench.join("a")
    bench.topics.delete("apple")
    bench.topics.create("apple", 1)
    assert bench.beat(client).assigned == {}
    client.release()
    assert bench.beat(client).assigned == bench.of("apple", 0)


def test_topics_that_nobody_wants_change_nothing() -> None:
    bench = GroupBench()
    client = bench.join("a")
    bench.topics.create("banana", 1)
    assert bench.beat(client).assigned is None
    assert bench.group.epoch == 1


def test_a_pattern_follows_the_topics_that_match() -> None:
    bench = GroupBench(apple=1, cherry=1)
    client = bench.join("a", topic_regex="a.*")
    assert client.hands == bench.of("apple", 0)
    bench.topics.create("avocado", 1)
    assert bench.beat(client).assigned == {**bench.of("apple", 0), **bench.of("avocado", 0)}
    assert bench.group.is_subscribed("apricot")
    assert not bench.group.is_subscribed("cherry")


def test_names_and_a_pattern_may_be_wanted_together_and_a_pattern_be_dropped() -> None:
    bench = GroupBench(apple=1, cherry=1)
    client = bench.join("a", "cherry", topic_regex="a.*")
    assert client.hands == {**bench.of("apple", 0), **bench.of("cherry", 0)}
    client.subscribe(topic_names=frozenset({"cherry"}))
    assert bench.beat(client).assigned == bench.of("cherry", 0)


def test_a_bad_pattern_is_refused_and_changes_nothing() -> None:
    bench = GroupBench()
    bench.join("a")
    bench.group.take_changes(0)
    with pytest.raises(InvalidRegex):
        bench.join("b", topic_regex="(")
    assert list(bench.group.members) == ["a"]
    assert bench.group.take_changes(0) == []


# Assignors.


def test_the_strategy_that_most_ask_for_is_used() -> None:
    bench = GroupBench(apple=4, banana=4)
    bench.join("a", "apple", "banana", assignor="range")
    assert bench.group.assignor == "range"
    second = bench.join("b", "apple", "banana", assignor="uniform")
    assert bench.group.assignor == "range"
    bench.join("c", "apple", "banana", assignor="uniform")
    assert bench.group.assignor == "uniform"
    bench.send(second.leave_request())
    assert bench.group.assignor == "range"


def test_another_strategy_divides_the_group_anew() -> None:
    bench = GroupBench()
    client = bench.join("a")
    client.subscribe(topic_names=frozenset({"apple"}), assignor="range")
    bench.beat(client)
    assert (bench.group.epoch, bench.group.assignor) == (2, "range")


def test_range_goes_by_the_order_of_joining_also_for_a_static_member_that_comes_back() -> None:
    bench = GroupBench(apple=2)
    first = bench.join("z", instance_id="i", assignor="range", topic_regex="apple")
    second = bench.join("b", assignor="range", topic_regex="apple")
    bench.settle(first, second)
    bench.send(first.leave_request(is_temporary=True))
    back = bench.join("zz", instance_id="i", assignor="range", topic_regex="apple")
    assert back.hands == bench.of("apple", 0)
    assert second.hands == bench.of("apple", 1)
    bench.topics.grow("apple", 2)
    bench.settle(back, second)
    assert back.hands == bench.of("apple", 0, 1)
    assert second.hands == bench.of("apple", 2, 3)


# Leaving, and being late.


def test_what_a_leaver_had_goes_to_the_others() -> None:
    bench = GroupBench()
    first, second = bench.join("a"), bench.join("b")
    bench.settle(first, second)
    answer = bench.send(second.leave_request())
    assert (answer.member_id, answer.member_epoch, answer.assigned) == ("b", -1, None)
    assert bench.group.state == "Assigning"
    assert bench.beat(first).assigned == bench.of("apple", 0, 1, 2, 3)
    assert (first.epoch, bench.group.epoch) == (3, 3)


def test_a_group_without_members_is_empty_and_keeps_its_epoch() -> None:
    bench = GroupBench()
    client = bench.join("a")
    bench.send(client.leave_request())
    assert (bench.group.state, bench.group.is_empty, bench.group.epoch) == ("Empty", True, 2)
    assert bench.join("a").epoch == 3


def test_a_stranger_cannot_leave() -> None:
    bench = GroupBench()
    with pytest.raises(UnknownMember):
        bench.send(Client("a").leave_request())


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    bench = GroupBench()
    first, second = bench.join("a"), bench.join("b")
    bench.settle(first, second)
    bench.advance_time(SESSION_S - 1)
    bench.beat(first)
    bench.advance_time(1)
    assert list(bench.group.members) == ["a"]
    assert bench.beat(first).assigned == bench.of("apple", 0, 1, 2, 3)
    with pytest.raises(UnknownMember):
        bench.send(second.beat())


def test_deadlines_are_never_missed_by_who_wakes_when_told() -> None:
    bench = GroupBench()
    client = bench.join("a")
    assert bench.group.deadline == SESSION_S
    bench.advance_time(10)
    bench.beat(client)
    assert bench.group.deadline == SESSION_S  # Too early is harmless.
    bench.advance_time(SESSION_S - 10)
    assert bench.group.deadline == SESSION_S + 10
    bench.advance_time(10)
    assert bench.group.is_empty
    assert bench.group.deadline is None


def test_who_does_not_let_go_in_time_is_removed_however_often_it_speaks() -> None:
    bench = GroupBench()
    first, second = bench.join("a"), bench.join("b")
    bench.beat(first)
    for _ in range(4):
        bench.advance_time(REBALANCE_S / 4)
        bench.beat(second)
        if "a" in bench.group.members:
            bench.beat(first)
    assert list(bench.group.members) == ["b"]
    assert second.hands == bench.of("apple", 0, 1, 2, 3)
    with pytest.raises(UnknownMember):
        bench.send(first.beat())


def test_who_let_go_in_time_stays() -> None:
    bench = GroupBench()
    first = bench.join("a")
    bench.join("b")
    bench.beat(first)
    bench.advance_time(REBALANCE_S - 1)
    first.release()
    bench.beat(first)
    bench.advance_time(1)
    assert set(bench.group.members) == {"a", "b"}


# Static members.


def test_a_static_member_that_comes_back_in_time_finds_its_place() -> None:
    bench = GroupBench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    bench.settle(first, second)
    had = first.hands
    answer = bench.send(first.leave_request(is_temporary=True))
    assert answer.member_epoch == -2
    assert bench.beat(second).assigned is None

    back = bench.join("aa", instance_id="i")
    assert (back.epoch, back.hands) == (2, had)
    assert (bench.group.epoch, bench.group.state) == (2, "Stable")
    assert set(bench.group.members) == {"aa", "b"}


def test_a_static_member_that_stays_away_is_removed_when_its_session_ends() -> None:
    bench = GroupBench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    bench.settle(first, second)
    bench.send(first.leave_request(is_temporary=True))
    bench.advance_time(SESSION_S - 1)
    bench.beat(second)
    bench.advance_time(1)
    assert list(bench.group.members) == ["b"]
    assert bench.beat(second).assigned == bench.of("apple", 0, 1, 2, 3)


def test_a_static_member_that_goes_for_good_leaves_no_place() -> None:
    bench = GroupBench()
    client = bench.join("a", instance_id="i")
    bench.send(client.leave_request())
    assert bench.group.is_empty
    assert bench.join("b", instance_id="i").epoch == 3


def test_an_instance_id_in_use_is_not_given_to_another() -> None:
    bench = GroupBench()
    bench.join("a", instance_id="i")
    with pytest.raises(UnreleasedInstance, match="'i' is in use by member 'a'"):
        bench.join("b", instance_id="i")


def test_a_static_member_may_say_again_that_it_joins() -> None:
    bench = GroupBench()
    client = Client("a", "i", {"topic_names": frozenset({"apple"})})
    bench.send(client.beat())
    client.on_lost_response()
    assert bench.beat(client).assigned == bench.of("apple", 0, 1, 2, 3)


def test_who_was_replaced_is_fenced() -> None:
    bench = GroupBench()
    old = bench.join("a", instance_id="i")
    bench.send(replace(old).leave_request(is_temporary=True))
    bench.join("b", instance_id="i")
    with pytest.raises(FencedInstance, match="taken over by member 'b'"):
        bench.send(old.beat())
    with pytest.raises(FencedInstance):
        bench.send(old.leave_request())


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_member_that_left_for_a_while_cannot_go_on_as_if_it_had_not(epoch: int) -> None:
    bench = GroupBench()
    old = bench.join("a", instance_id="i")
    bench.topics.grow("apple", 1)
    bench.beat(old)
    bench.send(replace(old).leave_request(is_temporary=True))
    old.on_lost_response()
    with pytest.raises(FencedMemberEpoch):
        bench.send(replace(old.beat(), member_epoch=epoch))


def test_an_unknown_instance_id_is_unknown() -> None:
    bench = GroupBench()
    with pytest.raises(UnknownMember):
        bench.send(ConsumerHeartbeat(member_id="a", member_epoch=1, instance_id="i"))
    with pytest.raises(UnknownMember, match="no member has instance id 'i'"):
        bench.send(Client("a", "i").leave_request())


def test_a_member_keeps_its_instance_id() -> None:
    bench = GroupBench()
    client = bench.join("a", instance_id="i")
    with pytest.raises(InvalidRequest, match="has instance id 'i' and cannot change it to 'j'"):
        bench.send(replace(client.beat(), instance_id="j"))


def test_a_static_member_that_was_letting_go_has_let_go_when_it_leaves() -> None:
    bench = GroupBench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    bench.beat(first)
    bench.send(first.leave_request(is_temporary=True))
    assert bench.beat(second).assigned == bench.of("apple", 2, 3)
    bench.advance_time(REBALANCE_S)
    assert "a" in bench.group.members


# Limits.


def test_a_full_group_takes_no_one() -> None:
    bench = GroupBench()
    members = [bench.join(name) for name in "abc"]
    with pytest.raises(GroupFull, match="has 3 members, limit is 3"):
        bench.join("d")
    bench.beat(members[0])
    bench.send(members[1].leave_request())
    bench.join("d")


def test_a_static_member_comes_back_to_a_full_group() -> None:
    bench = GroupBench()
    client = bench.join("a", instance_id="i")
    bench.join("b")
    bench.join("c")
    bench.send(client.leave_request(is_temporary=True))
    bench.join("aa", instance_id="i")


JOIN = Client("a").beat()


@pytest.mark.parametrize(
    ("beat", "error", "message"),
    [
        (replace(JOIN, member_id=""), InvalidRequest, "member id must not be empty"),
        (replace(JOIN, instance_id=""), InvalidRequest, "instance id must not be empty"),
        (replace(JOIN, rack_id=""), InvalidRequest, "rack id must not be empty"),
        (replace(JOIN, member_epoch=-3), InvalidRequest, "member epoch must be at least -2"),
        (replace(JOIN, member_epoch=-2), InvalidRequest, "only a member with an instance id"),
        (replace(JOIN, rebalance_timeout_ms=None), InvalidRequest, "rebalance timeout"),
        (replace(JOIN, rebalance_timeout_ms=-5), InvalidRequest, "must not be negative, got -5 ms"),
        (replace(JOIN, owned=None), InvalidRequest, "empty list of owned partitions"),
        (
            replace(JOIN, owned={UUID(int=1): frozenset({0})}),
            InvalidRequest,
            "empty list of owned partitions",
        ),
        (
            replace(JOIN, topic_names=None, topic_regex=None),
            InvalidRequest,
            "topic names or a topic regex",
        ),
        (replace(JOIN, assignor="mine"), UnsupportedAssignor, "must be one of uniform, range"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    beat: ConsumerHeartbeat, error: type[MillstreamError], message: str
) -> None:
    bench = GroupBench()
    with pytest.raises(error, match=message):
        bench.send(beat)
    assert bench.group.is_empty
    assert bench.group.take_changes(0) == []


# Offsets.


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 1, None),
        ("a", 0, StaleMemberEpoch),
        ("a", 2, StaleMemberEpoch),
        ("b", 1, UnknownMember),
        ("", -1, UnknownMember),
    ],
)
def test_only_a_member_at_its_epoch_commits(
    member_id: str, epoch: int, error: type[MillstreamError] | None
) -> None:
    bench = GroupBench()
    bench.join("a")
    if error is None:
        bench.group.check_commit(member_id, epoch, None, is_transactional=False)
        return
    with pytest.raises(error):
        bench.group.check_commit(member_id, epoch, None, is_transactional=False)


def test_a_producer_that_speaks_of_another_epoch_has_an_illegal_generation() -> None:
    bench = GroupBench()
    bench.join("a")
    with pytest.raises(IllegalGeneration):
        bench.group.check_commit("a", 7, None, is_transactional=True)


def test_anyone_commits_to_a_group_without_members() -> None:
    bench = GroupBench()
    bench.group.check_commit("", -1, None, is_transactional=False)
    with pytest.raises(UnknownMember):
        bench.group.check_commit("a", 1, None, is_transactional=False)


def test_a_static_member_that_was_replaced_commits_nothing() -> None:
    bench = GroupBench()
    old = bench.join("a", instance_id="i")
    bench.send(old.leave_request(is_temporary=True))
    with pytest.raises(StaleMemberEpoch):
        bench.group.check_commit("a", -2, None, is_transactional=False)
    bench.join("b", instance_id="i")
    with pytest.raises(FencedInstance):
        bench.group.check_commit("a", 1, "i", is_transactional=False)


def test_offsets_are_shown_to_members_at_their_epoch_and_to_who_claims_to_be_none() -> None:
    bench = GroupBench()
    bench.join("a")
    bench.group.check_fetch("a", 1)
    bench.group.check_fetch(None, -1)
    bench.group.check_fetch("", -1)
    with pytest.raises(StaleMemberEpoch):
        bench.group.check_fetch("a", 2)
    with pytest.raises(UnknownMember):
        bench.group.check_fetch("b", 1)

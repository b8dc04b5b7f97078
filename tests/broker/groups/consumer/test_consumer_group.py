"""What members of a consumer group are told: joining, moving partitions, leaving, being late."""

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


class Room:
    """A group, its topics and a clock, with words for what happens."""

    def __init__(self, config: BrokerConfig = CONFIG, **topics: int) -> None:
        self.topics = FakeTopics(**(topics or {"apple": 4}))
        self.group = ConsumerGroup("g", config)
        self.now = 0.0

    def send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        return self.group.heartbeat(beat, self.topics.catalog, self.now)

    def beat(self, client: Client) -> ConsumerHeartbeatResult:
        answer = self.send(client.beat())
        client.hear(answer)
        return answer

    def join(
        self, member_id: str, *names: str, instance_id: str | None = None, **wants: object
    ) -> Client:
        client = Client(member_id, instance_id)
        client.want(topic_names=frozenset(names or ["apple"] if not wants else names), **wants)
        self.beat(client)
        return client

    def settle(self, *clients: Client) -> None:
        """Have everyone speak until nothing changes any more."""
        for _ in range(4):
            for client in clients:
                client.let_go()
                self.beat(client)
        assert self.group.state == "Stable"

    def advance_time(self, seconds: float) -> None:
        self.now += seconds
        self.group.advance_time(self.now)

    def of(self, name: str, *numbers: int) -> PartitionSet:
        return {self.topics.id(name): frozenset(numbers)}


# Joining.


def test_the_first_member_gets_everything_at_once() -> None:
    room = Room(apple=2, banana=1)
    client = room.join("a", "apple", "banana")
    assert client.epoch == 1
    assert client.hands == {**room.of("apple", 0, 1), **room.of("banana", 0)}
    assert room.group.state == "Stable"
    assert (room.group.epoch, room.group.target_epoch) == (1, 1)


def test_a_member_may_want_nothing() -> None:
    room = Room()
    client = Client("a")
    answer = room.send(client.beat())
    assert (answer.member_epoch, answer.assigned) == (1, {})


def test_a_member_may_want_topics_that_are_not_there_yet() -> None:
    room = Room()
    client = room.join("a", "banana")
    assert (client.epoch, client.hands) == (1, {})


def test_an_answer_says_how_often_to_speak() -> None:
    room = Room()
    answer = room.send(replace(Client("a").beat()))
    assert answer.heartbeat_interval_ms == CONFIG.consumer_heartbeat_interval_ms


def test_a_second_member_gets_its_share_when_the_first_has_let_go() -> None:
    room = Room(apple=4)
    first = room.join("a")
    second = room.join("b")
    assert (second.epoch, second.hands) == (2, {})

    told = room.beat(first)
    assert (told.member_epoch, told.assigned) == (1, room.of("apple", 0, 1))
    assert room.beat(second).assigned is None
    assert room.group.state == "Reconciling"

    first.let_go()
    assert room.beat(first).member_epoch == 2
    assert room.beat(second).assigned == room.of("apple", 2, 3)
    assert room.group.state == "Stable"


def test_a_member_keeps_its_epoch_until_it_has_let_go() -> None:
    room = Room()
    first, _ = room.join("a"), room.join("b")
    for _ in range(3):
        assert room.beat(first).member_epoch == 1
    first.let_go()
    assert room.beat(first).member_epoch == 2


def test_who_lets_go_after_the_target_moved_on_is_asked_for_more() -> None:
    room = Room(apple=6)
    first, second = room.join("a"), room.join("b")
    room.beat(first)
    third = room.join("c")
    first.let_go()
    answer = room.beat(first)
    assert answer.member_epoch == 2
    assert answer.assigned == room.of("apple", 0, 1)
    room.settle(first, second, third)
    assert {client.epoch for client in (first, second, third)} == {3}


# Speaking.


def test_nothing_is_repeated_that_did_not_change() -> None:
    room = Room()
    client = room.join("a")
    assert room.beat(client).assigned is None
    assert room.beat(client).assigned is None


def test_who_says_everything_is_told_everything() -> None:
    room = Room()
    client = room.join("a")
    client.miss()
    assert room.beat(client).assigned == room.of("apple", 0, 1, 2, 3)


def test_who_does_not_say_what_it_owns_has_not_said_everything() -> None:
    room = Room()
    client = room.join("a")
    client.miss()
    assert room.send(replace(client.beat(), owned=None)).assigned is None


def test_a_member_whose_answer_was_lost_is_heard_with_the_epoch_before() -> None:
    room = Room()
    first, second = room.join("a"), room.join("b")
    room.settle(first, second)
    room.topics.grow("apple", 2)
    room.send(second.beat())
    second.miss()
    assert second.epoch == 2
    answer = room.beat(second)
    assert answer.member_epoch == 3
    assert answer.assigned is not None


def test_any_number_of_lost_answers_is_forgiven() -> None:
    room = Room()
    client = room.join("a")
    for _ in range(3):
        room.topics.grow("apple", 1)
        room.send(client.beat())
        client.miss()
    answer = room.beat(client)
    assert (client.epoch, answer.assigned) == (4, room.of("apple", *range(7)))


def test_who_missed_an_epoch_and_does_not_say_what_it_owns_is_fenced() -> None:
    room = Room()
    client = room.join("a")
    room.topics.grow("apple", 1)
    room.send(client.beat())
    with pytest.raises(FencedMemberEpoch, match="'a' is at epoch 2, not 1"):
        room.send(replace(client.beat(), owned=None))


def test_who_missed_an_epoch_and_owns_what_is_not_its_own_is_fenced() -> None:
    room = Room()
    client = room.join("a")
    room.topics.grow("apple", 1)
    room.send(client.beat())
    client.miss()
    client.hands = room.of("apple", 99)
    with pytest.raises(FencedMemberEpoch):
        room.send(client.beat())


@pytest.mark.parametrize("epoch", [1, 4])
def test_an_epoch_that_is_long_gone_or_never_was_is_fenced(epoch: int) -> None:
    room = Room()
    client = room.join("a")
    for _ in range(2):
        room.topics.grow("apple", 1)
        room.beat(client)
    assert client.epoch == 3
    client.miss()
    with pytest.raises(FencedMemberEpoch, match=f"at epoch 3, not {epoch}"):
        room.send(replace(client.beat(), member_epoch=epoch))


def test_a_fenced_member_joins_again_and_gets_back_what_is_its_own() -> None:
    room = Room()
    client = room.join("a")
    for _ in range(2):
        room.topics.grow("apple", 1)
        room.beat(client)
    client.fail(FencedMemberEpoch("too late"))
    answer = room.beat(client)
    assert (answer.member_epoch, answer.assigned) == (3, room.of("apple", *range(6)))
    assert room.group.epoch == 3


def test_joining_again_with_nothing_lets_go_of_what_was_to_be_given_up() -> None:
    room = Room()
    first, second = room.join("a"), room.join("b")
    room.beat(first)
    first.fail(FencedMemberEpoch("lost its way"))
    assert room.beat(first).member_epoch == 2
    assert room.beat(second).assigned == room.of("apple", 2, 3)


def test_a_stranger_is_unknown() -> None:
    room = Room()
    room.join("a")
    with pytest.raises(UnknownMember, match="member 'b' does not exist"):
        room.send(ConsumerHeartbeat(member_id="b", member_epoch=1))


def test_another_wish_divides_the_group_anew() -> None:
    room = Room(apple=1, banana=1)
    client = room.join("a", "apple")
    client.want(topic_names=frozenset({"banana"}))
    answer = room.beat(client)
    assert (answer.member_epoch, answer.assigned) == (1, {})
    client.let_go()
    answer = room.beat(client)
    assert (answer.member_epoch, answer.assigned) == (2, room.of("banana", 0))


def test_the_same_wish_again_changes_nothing() -> None:
    room = Room()
    client = room.join("a")
    client.want(topic_names=frozenset({"apple"}))
    room.beat(client)
    assert room.group.epoch == 1


# Topics.


def test_topics_that_come_grow_and_go_are_followed() -> None:
    room = Room(apple=1)
    client = room.join("a", "apple", "banana")
    room.topics.create("banana", 2)
    assert room.beat(client).assigned == {**room.of("apple", 0), **room.of("banana", 0, 1)}
    room.topics.grow("apple", 1)
    assert room.beat(client).assigned == {**room.of("apple", 0, 1), **room.of("banana", 0, 1)}
    room.topics.delete("banana")
    assert room.beat(client).assigned == room.of("apple", 0, 1)
    client.let_go()
    room.beat(client)
    assert (client.epoch, room.group.epoch, room.group.state) == (4, 4, "Stable")


def test_a_topic_made_anew_is_another_topic() -> None:
    room = Room(apple=1)
    client = room.join("a")
    room.topics.delete("apple")
    room.topics.create("apple", 1)
    assert room.beat(client).assigned == {}
    client.let_go()
    assert room.beat(client).assigned == room.of("apple", 0)


def test_topics_that_nobody_wants_change_nothing() -> None:
    room = Room()
    client = room.join("a")
    room.topics.create("banana", 1)
    assert room.beat(client).assigned is None
    assert room.group.epoch == 1


def test_a_pattern_follows_the_topics_that_match() -> None:
    room = Room(apple=1, cherry=1)
    client = room.join("a", topic_regex="a.*")
    assert client.hands == room.of("apple", 0)
    room.topics.create("avocado", 1)
    assert room.beat(client).assigned == {**room.of("apple", 0), **room.of("avocado", 0)}
    assert room.group.is_subscribed("apricot")
    assert not room.group.is_subscribed("cherry")


def test_names_and_a_pattern_may_be_wanted_together_and_a_pattern_be_dropped() -> None:
    room = Room(apple=1, cherry=1)
    client = room.join("a", "cherry", topic_regex="a.*")
    assert client.hands == {**room.of("apple", 0), **room.of("cherry", 0)}
    client.want(topic_names=frozenset({"cherry"}))
    assert room.beat(client).assigned == room.of("cherry", 0)


def test_a_bad_pattern_is_refused_and_changes_nothing() -> None:
    room = Room()
    room.join("a")
    room.group.take_changes(0)
    with pytest.raises(InvalidRegex):
        room.join("b", topic_regex="(")
    assert list(room.group.members) == ["a"]
    assert room.group.take_changes(0) == []


# Strategies.


def test_the_strategy_that_most_ask_for_is_used() -> None:
    room = Room(apple=4, banana=4)
    room.join("a", "apple", "banana", assignor="range")
    assert room.group.assignor == "range"
    second = room.join("b", "apple", "banana", assignor="uniform")
    assert room.group.assignor == "range"
    room.join("c", "apple", "banana", assignor="uniform")
    assert room.group.assignor == "uniform"
    room.send(second.farewell())
    assert room.group.assignor == "range"


def test_another_strategy_divides_the_group_anew() -> None:
    room = Room()
    client = room.join("a")
    client.want(topic_names=frozenset({"apple"}), assignor="range")
    room.beat(client)
    assert (room.group.epoch, room.group.assignor) == (2, "range")


def test_range_goes_by_the_order_of_joining_also_for_a_static_member_that_comes_back() -> None:
    room = Room(apple=2)
    first = room.join("z", instance_id="i", assignor="range", topic_regex="apple")
    second = room.join("b", assignor="range", topic_regex="apple")
    room.settle(first, second)
    room.send(first.farewell(is_for_a_while=True))
    back = room.join("zz", instance_id="i", assignor="range", topic_regex="apple")
    assert back.hands == room.of("apple", 0)
    assert second.hands == room.of("apple", 1)
    room.topics.grow("apple", 2)
    room.settle(back, second)
    assert back.hands == room.of("apple", 0, 1)
    assert second.hands == room.of("apple", 2, 3)


# Leaving, and being late.


def test_what_a_leaver_had_goes_to_the_others() -> None:
    room = Room()
    first, second = room.join("a"), room.join("b")
    room.settle(first, second)
    answer = room.send(second.farewell())
    assert (answer.member_id, answer.member_epoch, answer.assigned) == ("b", -1, None)
    assert room.group.state == "Assigning"
    assert room.beat(first).assigned == room.of("apple", 0, 1, 2, 3)
    assert (first.epoch, room.group.epoch) == (3, 3)


def test_a_group_without_members_is_empty_and_keeps_its_epoch() -> None:
    room = Room()
    client = room.join("a")
    room.send(client.farewell())
    assert (room.group.state, room.group.is_empty, room.group.epoch) == ("Empty", True, 2)
    assert room.join("a").epoch == 3


def test_a_stranger_cannot_leave() -> None:
    room = Room()
    with pytest.raises(UnknownMember):
        room.send(Client("a").farewell())


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    room = Room()
    first, second = room.join("a"), room.join("b")
    room.settle(first, second)
    room.advance_time(SESSION_S - 1)
    room.beat(first)
    room.advance_time(1)
    assert list(room.group.members) == ["a"]
    assert room.beat(first).assigned == room.of("apple", 0, 1, 2, 3)
    with pytest.raises(UnknownMember):
        room.send(second.beat())


def test_deadlines_are_never_missed_by_who_wakes_when_told() -> None:
    room = Room()
    client = room.join("a")
    assert room.group.deadline == SESSION_S
    room.advance_time(10)
    room.beat(client)
    assert room.group.deadline == SESSION_S  # Too early is harmless.
    room.advance_time(SESSION_S - 10)
    assert room.group.deadline == SESSION_S + 10
    room.advance_time(10)
    assert room.group.is_empty
    assert room.group.deadline is None


def test_who_does_not_let_go_in_time_is_removed_however_often_it_speaks() -> None:
    room = Room()
    first, second = room.join("a"), room.join("b")
    room.beat(first)
    for _ in range(4):
        room.advance_time(REBALANCE_S / 4)
        room.beat(second)
        if "a" in room.group.members:
            room.beat(first)
    assert list(room.group.members) == ["b"]
    assert second.hands == room.of("apple", 0, 1, 2, 3)
    with pytest.raises(UnknownMember):
        room.send(first.beat())


def test_who_let_go_in_time_stays() -> None:
    room = Room()
    first = room.join("a")
    room.join("b")
    room.beat(first)
    room.advance_time(REBALANCE_S - 1)
    first.let_go()
    room.beat(first)
    room.advance_time(1)
    assert set(room.group.members) == {"a", "b"}


# Static members.


def test_a_static_member_that_comes_back_in_time_finds_its_place() -> None:
    room = Room()
    first, second = room.join("a", instance_id="i"), room.join("b")
    room.settle(first, second)
    had = first.hands
    answer = room.send(first.farewell(is_for_a_while=True))
    assert answer.member_epoch == -2
    assert room.beat(second).assigned is None

    back = room.join("aa", instance_id="i")
    assert (back.epoch, back.hands) == (2, had)
    assert (room.group.epoch, room.group.state) == (2, "Stable")
    assert set(room.group.members) == {"aa", "b"}


def test_a_static_member_that_stays_away_is_removed_when_its_session_ends() -> None:
    room = Room()
    first, second = room.join("a", instance_id="i"), room.join("b")
    room.settle(first, second)
    room.send(first.farewell(is_for_a_while=True))
    room.advance_time(SESSION_S - 1)
    room.beat(second)
    room.advance_time(1)
    assert list(room.group.members) == ["b"]
    assert room.beat(second).assigned == room.of("apple", 0, 1, 2, 3)


def test_a_static_member_that_goes_for_good_leaves_no_place() -> None:
    room = Room()
    client = room.join("a", instance_id="i")
    room.send(client.farewell())
    assert room.group.is_empty
    assert room.join("b", instance_id="i").epoch == 3


def test_an_instance_id_in_use_is_not_given_to_another() -> None:
    room = Room()
    room.join("a", instance_id="i")
    with pytest.raises(UnreleasedInstance, match="'i' is in use by member 'a'"):
        room.join("b", instance_id="i")


def test_a_static_member_may_say_again_that_it_joins() -> None:
    room = Room()
    client = Client("a", "i", {"topic_names": frozenset({"apple"})})
    room.send(client.beat())
    client.miss()
    assert room.beat(client).assigned == room.of("apple", 0, 1, 2, 3)


def test_who_was_replaced_is_fenced() -> None:
    room = Room()
    old = room.join("a", instance_id="i")
    room.send(replace(old).farewell(is_for_a_while=True))
    room.join("b", instance_id="i")
    with pytest.raises(FencedInstance, match="taken over by member 'b'"):
        room.send(old.beat())
    with pytest.raises(FencedInstance):
        room.send(old.farewell())


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_member_that_left_for_a_while_cannot_go_on_as_if_it_had_not(epoch: int) -> None:
    room = Room()
    old = room.join("a", instance_id="i")
    room.topics.grow("apple", 1)
    room.beat(old)
    room.send(replace(old).farewell(is_for_a_while=True))
    old.miss()
    with pytest.raises(FencedMemberEpoch):
        room.send(replace(old.beat(), member_epoch=epoch))


def test_an_unknown_instance_id_is_unknown() -> None:
    room = Room()
    with pytest.raises(UnknownMember):
        room.send(ConsumerHeartbeat(member_id="a", member_epoch=1, instance_id="i"))
    with pytest.raises(UnknownMember, match="no member has instance id 'i'"):
        room.send(Client("a", "i").farewell())


def test_a_member_keeps_its_instance_id() -> None:
    room = Room()
    client = room.join("a", instance_id="i")
    with pytest.raises(InvalidRequest, match="has instance id 'i' and cannot change it to 'j'"):
        room.send(replace(client.beat(), instance_id="j"))


def test_a_static_member_that_was_letting_go_has_let_go_when_it_leaves() -> None:
    room = Room()
    first, second = room.join("a", instance_id="i"), room.join("b")
    room.beat(first)
    room.send(first.farewell(is_for_a_while=True))
    assert room.beat(second).assigned == room.of("apple", 2, 3)
    room.advance_time(REBALANCE_S)
    assert "a" in room.group.members


# Limits.


def test_a_full_group_takes_no_one() -> None:
    room = Room()
    members = [room.join(name) for name in "abc"]
    with pytest.raises(GroupFull, match="has 3 members, limit is 3"):
        room.join("d")
    room.beat(members[0])
    room.send(members[1].farewell())
    room.join("d")


def test_a_static_member_comes_back_to_a_full_group() -> None:
    room = Room()
    client = room.join("a", instance_id="i")
    room.join("b")
    room.join("c")
    room.send(client.farewell(is_for_a_while=True))
    room.join("aa", instance_id="i")


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
    room = Room()
    with pytest.raises(error, match=message):
        room.send(beat)
    assert room.group.is_empty
    assert room.group.take_changes(0) == []


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
    room = Room()
    room.join("a")
    if error is None:
        room.group.check_commit(member_id, epoch, None, is_transactional=False)
        return
    with pytest.raises(error):
        room.group.check_commit(member_id, epoch, None, is_transactional=False)


def test_a_producer_that_speaks_of_another_epoch_has_an_illegal_generation() -> None:
    room = Room()
    room.join("a")
    with pytest.raises(IllegalGeneration):
        room.group.check_commit("a", 7, None, is_transactional=True)


def test_anyone_commits_to_a_group_without_members() -> None:
    room = Room()
    room.group.check_commit("", -1, None, is_transactional=False)
    with pytest.raises(UnknownMember):
        room.group.check_commit("a", 1, None, is_transactional=False)


def test_a_static_member_that_was_replaced_commits_nothing() -> None:
    room = Room()
    old = room.join("a", instance_id="i")
    room.send(old.farewell(is_for_a_while=True))
    with pytest.raises(StaleMemberEpoch):
        room.group.check_commit("a", -2, None, is_transactional=False)
    room.join("b", instance_id="i")
    with pytest.raises(FencedInstance):
        room.group.check_commit("a", 1, "i", is_transactional=False)


def test_offsets_are_shown_to_members_at_their_epoch_and_to_who_claims_to_be_none() -> None:
    room = Room()
    room.join("a")
    room.group.check_fetch("a", 1)
    room.group.check_fetch(None, -1)
    room.group.check_fetch("", -1)
    with pytest.raises(StaleMemberEpoch):
        room.group.check_fetch("a", 2)
    with pytest.raises(UnknownMember):
        room.group.check_fetch("b", 1)

"""Requests other than fetch and produce, and how long they are retried."""

from __future__ import annotations

import pickle
import uuid

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import OffsetBounds, TopicDescription
from millstream.errors import (
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    MalformedAnswer,
    NodeRefused,
    NodeUnreachable,
    TopicExists,
    UnknownTopic,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from millstream.protocols.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.records.topic_partition import TopicPartition
from millstream.testing.clocks.manual_clock import ManualClock
from tests.clients.proxy import Limits

from .fake_node import FakeNode
from .samples import COMMITTED, NOW_MS, UNCOMMITTED, confluent_producer

METADATA = 3
WHERE = TopicPartition("t", 0)


def metadata(*addresses, leader=0, error_code=0):
    """Return the metadata of a cluster with nodes at these ports; one of them leads t-0."""
    part = MetadataResponsePartition(partition_index=0, leader_id=leader)
    topic = MetadataResponseTopic(
        name="t", topic_id=uuid.UUID(int=1), partitions=(part,), error_code=error_code
    )
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=number, host="127.0.0.1", port=port)
            for number, port in enumerate(addresses)
        ),
        controller_id=0,
        topics=(topic,),
    )


def offset(found, *, error_code=0, partition=0):
    part = ListOffsetsResponsePartition(
        partition_index=partition, offset=found, error_code=error_code
    )
    return ListOffsetsResponse(topics=(ListOffsetsResponseTopic(name="t", partitions=(part,)),))


# A real node.


def test_topics_are_described_by_name(node, new_topic):
    first, second = new_topic(3), new_topic(1)
    found = node.topics([first, second])
    assert {name: info.partitions for name, info in found.items()} == {first: 3, second: 1}
    assert all(info.name == name and info.id.int for name, info in found.items())
    assert found.items() <= node.topics().items()


def test_internal_topics_are_shown_only_to_who_names_them(broker, node, topic):
    consumer_offsets = "__consumer_offsets"
    assert consumer_offsets not in node.topics()
    assert all(not name.startswith("__") for name in node.topics())


def test_a_topic_is_created_with_its_settings(node):
    made = node.create_topic("made", partitions=3, configs={"retention.ms": "12345"})
    assert made == node.topics(["made"])["made"]
    assert isinstance(made, TopicDescription)
    assert made.partitions == 3
    configs = node.topic_configs(["made"])["made"]
    assert configs["retention.ms"] == "12345"
    assert configs["cleanup.policy"] == "delete"


def test_what_cannot_be_created_is_said(node, topic):
    with pytest.raises(TopicExists, match=topic):
        node.create_topic(topic, partitions=1)
    with pytest.raises(InvalidName):
        node.create_topic("no/name", partitions=1)
    with pytest.raises(InvalidConfig):
        node.create_topic("badly-set", partitions=1, configs={"retention.ms": "soon"})


def test_a_topic_that_is_not_there_is_named(node, topic):
    with pytest.raises(UnknownTopic, match="'no-such'"):
        node.topics([topic, "no-such"])
    with pytest.raises(UnknownTopic, match="no-such"):
        node.topic_configs(["no-such"])
    with pytest.raises(UnknownTopic, match="no-such"):
        node.bounds([TopicPartition("no-such", 0)], isolation=COMMITTED)
    with pytest.raises(UnknownTopic, match=f"{topic}-9: the topic has 1 partitions"):
        node.bounds([TopicPartition(topic, 9)], isolation=COMMITTED)
    assert "no-such" not in node.topics(), "asking creates nothing"


def test_bounds_and_times_of_many_partitions(broker, node, new_topic):
    topic = new_topic(3)
    producer = confluent_producer(broker.bootstrap)
    for partition in (0, 2):
        for number in range(10):
            at = NOW_MS + number * 1000
            producer.produce(topic, b"v", partition=partition, timestamp=at)
    assert producer.flush(30) == 0
    where = [TopicPartition(topic, number) for number in range(3)]
    for isolation in (COMMITTED, UNCOMMITTED):
        found = node.bounds(where, isolation=isolation)
        assert list(found.values()) == [
            OffsetBounds(0, 10),
            OffsetBounds(0, 0),
            OffsetBounds(0, 10),
        ]
    assert list(node.offsets_at(where, NOW_MS + 2500).values()) == [3, None, 3]
    assert list(node.offsets_at(where, NOW_MS).values()) == [0, None, 0]
    assert list(node.offsets_at(where, NOW_MS + 9001).values()) == [None, None, None]
    assert node.bounds([], isolation=COMMITTED) == {}
    with pytest.raises(InvalidRequest, match="timestamp must be at least 0 ms, got -2"):
        node.offsets_at(where, -2)


@pytest.mark.parametrize("setting", [{"fetch_size_max": 0}, {"timeout_s": 0}])
def test_a_setting_that_makes_no_sense_is_refused(setting):
    with pytest.raises(InvalidConfig, match=f"{next(iter(setting))} must be .*, got 0"):
        KafkaClient("127.0.0.1:1", **setting)


def test_a_connection_that_the_node_closed_meanwhile_is_replaced(broker, proxy, topic):
    """A request that must not be repeated does not fail on a connection that was idle too long."""
    with KafkaClient(proxy.bootstrap, pause=lambda _: pytest.fail("it was tried again")) as node:
        node.topics()
        proxy.cut_all()
        made = node.create_topic(f"{topic}-after", partitions=1)
        assert made.partitions == 1


def test_creating_is_not_repeated_once_it_may_have_been_done(proxy, topic):
    doubts = []
    with KafkaClient(proxy.bootstrap) as node:
        for size in range(0, 1200, 50):
            name = f"{topic}-{size}"
            proxy.limits[:] = [Limits(to_client=size)]
            node.close()
            try:
                node.create_topic(name, partitions=1)
            except NodeUnreachable as error:
                doubts.append(error.may_be_done)
            assert name in node.topics()
    assert doubts
    assert all(doubts)


# A node that gives wrong responses.


def test_nobody_is_asked_for_longer_than_the_timeout():
    """The pauses grow up to a second; the last error is raised."""
    clock, pauses = ManualClock(), []

    def pause(seconds):
        pauses.append(seconds)
        clock.advance(seconds)

    def answer(header, _):
        return metadata(fake.port) if header.api_key == METADATA else offset(-1, error_code=6)

    with (
        FakeNode(answer) as fake,
        KafkaClient(fake.bootstrap, timeout_s=5.0, clock=clock, pause=pause) as node,
        pytest.raises(NodeRefused, match="NOT_LEADER_OR_FOLLOWER") as raised,
    ):
        node.bounds([WHERE], isolation=COMMITTED)
    assert raised.value.code == 6
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def test_a_leader_that_moved_is_looked_for_anew():
    moved = []

    def old(header, _):
        if header.api_key == METADATA:
            return metadata(first.port, second.port, leader=len(moved))
        moved.append(header)
        return offset(-1, error_code=6)

    def new(header, _):
        if header.api_key == METADATA:
            return metadata(first.port, second.port, leader=1)
        return offset(7)

    with (
        FakeNode(old) as first,
        FakeNode(new) as second,
        KafkaClient(first.bootstrap, pause=lambda _: None) as node,
    ):
        assert node.offsets_at([WHERE], 0) == {WHERE: 7}


@pytest.mark.parametrize("stale_leader", [0, -1])
def test_another_node_is_asked_if_what_one_says_of_the_leader_does_not_help(stale_leader):
    """Nodes that are cut off name the former leader, or none, however often they are asked."""

    def cut_off(header, _):
        if header.api_key == METADATA:
            ports = first.port, second.port, third.port
            return metadata(*ports, leader=stale_leader)
        return offset(-1, error_code=6)

    def connected(header, _):
        if header.api_key == METADATA:
            return metadata(first.port, second.port, third.port, leader=2)
        return offset(7)

    pauses = []
    with (
        FakeNode(cut_off) as first,
        FakeNode(cut_off) as second,
        FakeNode(connected) as third,
        KafkaClient(
            f"{first.bootstrap},{second.bootstrap},{third.bootstrap}", pause=pauses.append
        ) as node,
    ):
        assert node.offsets_at([WHERE], 0) == {WHERE: 7}
        assert len(pauses) == 2, "each of the nodes that are cut off is asked once"


def test_a_partition_without_a_leader_is_waited_for():
    leaders = iter([-1, -1, 0])

    def answer(header, _):
        if header.api_key == METADATA:
            return metadata(fake.port, leader=next(leaders))
        return offset(7)

    with FakeNode(answer) as fake, KafkaClient(fake.bootstrap, pause=lambda _: None) as node:
        assert node.offsets_at([WHERE], 0) == {WHERE: 7}


def test_the_next_address_is_asked_where_the_first_is_dead():
    def answer(header, _):
        return metadata(fake.port)

    with FakeNode(answer) as dead:
        pass
    with FakeNode(answer) as fake, KafkaClient(f"{dead.bootstrap},{fake.bootstrap}") as node:
        assert node.topics()["t"].partitions == 1


def test_a_silent_node_does_not_use_up_the_time_of_the_others():
    with (
        FakeNode(lambda *_: None, answers_versions=False) as silent,
        FakeNode(lambda *_: metadata(fake.port)) as fake,
        KafkaClient(f"{silent.bootstrap},{fake.bootstrap}", timeout_s=1.0) as node,
    ):
        assert node.topics()["t"].partitions == 1


def test_where_nobody_answers_all_are_named():
    with FakeNode(lambda *_: None) as one, FakeNode(lambda *_: None) as other:
        pass
    with (
        KafkaClient(f"{one.bootstrap},{other.bootstrap}", timeout_s=0.01) as node,
        pytest.raises(NodeUnreachable, match="no node can be reached") as raised,
    ):
        node.topics()
    assert one.bootstrap in str(raised.value)
    assert other.bootstrap in str(raised.value)


def test_an_answer_for_another_partition_is_none():
    def answer(header, _):
        return metadata(fake.port) if header.api_key == METADATA else offset(1, partition=5)

    with (
        FakeNode(answer) as fake,
        KafkaClient(fake.bootstrap) as node,
        pytest.raises(MalformedAnswer, match="returned no offset for t-0"),
    ):
        node.offsets_at([WHERE], 0)


def test_a_code_from_the_future_is_told_by_its_number():
    def answer(*_):
        return metadata(fake.port, error_code=999)

    with (
        FakeNode(answer) as fake,
        KafkaClient(fake.bootstrap) as node,
        pytest.raises(NodeRefused, match=r"UNKNOWN \(999\)"),
    ):
        node.topics(["t"])


@pytest.mark.parametrize(
    "error",
    [NodeUnreachable("a:1", "hung up", may_be_done=True), NodeRefused(7, "NAME", "why")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_the_driver(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)

"""confluent-kafka (librdkafka) consumers share partitions, by both group protocols."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from .conftest import TIMEOUT_S
from .librdkafka import member, poll_until, producer, read, send, values

PARTITIONS = 6

every_way = pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("classic", {"partition.assignment.strategy": "range"}),
        ("classic", {"partition.assignment.strategy": "roundrobin"}),
        ("classic", {"partition.assignment.strategy": "cooperative-sticky"}),
        ("consumer", {"group.remote.assignor": "range"}),
        ("consumer", {"group.remote.assignor": "uniform"}),
    ],
    ids=["range", "roundrobin", "cooperative-sticky", "consumer-range", "consumer-uniform"],
)
both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def join(bootstrap, name):
    """Start members of the group `name`; all are closed at the end."""
    members = []

    def start(topics, protocol="classic", settings=None):
        made = member(bootstrap, name, protocol, settings)
        made.subscribe(topics)
        members.append(made)
        return made

    yield start
    for each in members:
        with contextlib.suppress(RuntimeError):  # Closed by the test already.
            each.close()


def owned(consumer):
    return {(p.topic, p.partition) for p in consumer.assignment()}


def is_shared(consumers, partitions):
    """Whether each partition has one owner, and each consumer its fair share."""
    all_owned = [partition for consumer in consumers for partition in owned(consumer)]
    shares = [len(owned(consumer)) for consumer in consumers]
    is_fair = max(shares) - min(shares) <= 1
    return len(all_owned) == len(partitions) and set(all_owned) == partitions and is_fair


def of(topic, count=PARTITIONS):
    return {(topic, partition) for partition in range(count)}


@every_way
def test_members_share_the_partitions_as_they_come_and_go(new_topic, join, protocol, settings):
    topic = new_topic(PARTITIONS)
    members = []
    for _ in range(3):
        members.append(join([topic], protocol, settings))
        poll_until(members, lambda: is_shared(members, of(topic)))
    while len(members) > 1:
        members.pop(0).close()
        poll_until(members, lambda: is_shared(members, of(topic)))


@every_way
def test_no_message_is_lost_while_members_come_and_go(
    bootstrap, new_topic, join, protocol, settings
):
    topic = new_topic(PARTITIONS)
    writer = producer(bootstrap)
    members = [join([topic], protocol, settings)]
    found = {}

    def take(consumer, message):
        number = int(message.value())
        assert found.setdefault(number, message.offset()) == message.offset()
        with contextlib.suppress(KafkaException):  # Its partition went elsewhere meanwhile.
            consumer.commit(message=message, asynchronous=False)

    def exchange(numbers):
        """Write the numbers, then read until all were seen."""
        for number in numbers:
            writer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        assert writer.flush(TIMEOUT_S) == 0
        poll_until(members, lambda: found.keys() >= set(numbers), take)

    exchange(range(60))
    members.append(join([topic], protocol, settings))
    exchange(range(60, 120))
    poll_until(members, lambda: is_shared(members, of(topic)), take)
    exchange(range(120, 180))
    members.pop(0).close()
    exchange(range(180, 240))
    assert sorted(found) == list(range(240))


@both_protocols
def test_a_member_that_was_gone_for_good_loses_its_partitions(
    bootstrap, new_topic, join, name, protocol
):
    topic = new_topic(2)
    send(producer(bootstrap), topic, [b"0"], partition=0)
    send(producer(bootstrap), topic, [b"1"], partition=1)
    # A static member does not say goodbye: it is expected back until its session is over.
    gone = join([topic], protocol, {"group.instance.id": f"{name}-gone"})
    stays = join([topic], protocol)
    poll_until([gone, stays], lambda: is_shared([gone, stays], of(topic, 2)))
    gone.close()
    poll_until([stays], lambda: owned(stays) == of(topic, 2))


@both_protocols
def test_a_static_member_comes_back_to_its_partitions(new_topic, join, name, protocol):
    topic = new_topic(PARTITIONS)
    first, second = (
        join([topic], protocol, {"group.instance.id": f"{name}-{number}"}) for number in range(2)
    )
    poll_until([first, second], lambda: is_shared([first, second], of(topic)))
    had, kept = owned(first), owned(second)
    first.close()
    again = join([topic], protocol, {"group.instance.id": f"{name}-0"})
    poll_until([again, second], lambda: owned(again) == had)
    assert owned(second) == kept


def test_a_static_member_is_fenced_by_another_of_its_name(new_topic, join, name):
    topic = new_topic()
    first = join([topic], "classic", {"group.instance.id": name})
    poll_until([first], lambda: owned(first) == of(topic, 1))
    second = join([topic], "classic", {"group.instance.id": name})
    poll_until([second], lambda: owned(second) == of(topic, 1))
    message = first.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError._FATAL
    assert "fenced" in message.error().str()


def test_a_second_static_member_of_a_name_in_use_is_turned_away(new_topic, join, name):
    topic = new_topic()
    first = join([topic], "consumer", {"group.instance.id": name})
    poll_until([first], lambda: owned(first) == of(topic, 1))
    second = join([topic], "consumer", {"group.instance.id": name})
    message = second.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError._FATAL
    assert "still used by another member" in message.error().str()
    assert owned(first) == of(topic, 1)


@both_protocols
def test_a_pattern_finds_topics_that_are_there_and_that_come_later(
    bootstrap, new_topic, join, protocol, name
):
    early = new_topic()
    reader = join([f"^{name}-t[01]$"], protocol)
    poll_until([reader], lambda: owned(reader) == of(early, 1))
    late, other = new_topic(), new_topic()
    poll_until([reader], lambda: owned(reader) == of(early, 1) | of(late, 1))
    for topic in (other, late):
        send(producer(bootstrap), topic, [topic.encode()])
    assert values(read(reader, 1)) == [late.encode()]


@both_protocols
def test_a_member_may_change_what_it_reads(new_topic, join, protocol):
    first, second = new_topic(2), new_topic(3)
    reader = join([first], protocol)
    poll_until([reader], lambda: owned(reader) == of(first, 2))
    reader.subscribe([first, second])
    poll_until([reader], lambda: owned(reader) == of(first, 2) | of(second, 3))
    reader.subscribe([second])
    poll_until([reader], lambda: owned(reader) == of(second, 3))
    reader.unsubscribe()
    poll_until([reader], lambda: owned(reader) == set())


@both_protocols
def test_partitions_that_are_added_are_shared_too(admin, new_topic, join, protocol):
    topic = new_topic(2)
    members = [join([topic], protocol) for _ in range(2)]
    poll_until(members, lambda: is_shared(members, of(topic, 2)))
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
    poll_until(members, lambda: is_shared(members, of(topic, 4)))


def test_a_member_whose_assignor_no_one_shares_is_refused(new_topic, join):
    topic = new_topic()
    first = join([topic], "classic", {"partition.assignment.strategy": "range"})
    poll_until([first], lambda: owned(first) == of(topic, 1))
    second = join([topic], "classic", {"partition.assignment.strategy": "roundrobin"})
    message = second.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert owned(first) == of(topic, 1)


def test_an_assignor_that_the_broker_does_not_have_is_refused(new_topic, join):
    reader = join([new_topic()], "consumer", {"group.remote.assignor": "lottery"})
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError._FATAL
    assert "assignor" in message.error().str()


def test_a_session_shorter_than_the_broker_allows_is_refused(new_topic, join):
    reader = join([new_topic()], "classic", {"session.timeout.ms": 10, "heartbeat.interval.ms": 5})
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError.INVALID_SESSION_TIMEOUT


def test_an_empty_classic_group_goes_on_with_the_new_protocol_and_back(bootstrap, new_topic, join):
    topic = new_topic()
    send(producer(bootstrap), topic, [b"%d" % number for number in range(4)], partition=0)
    for number, protocol in enumerate(("classic", "consumer", "classic")):
        reader = join([topic], protocol)
        messages = read(reader, 1)
        assert values(messages) == [b"%d" % number]
        reader.commit(message=messages[0], asynchronous=False)
        reader.close()


@both_protocols
def test_a_commit_of_a_member_that_was_replaced_is_refused(
    bootstrap, new_topic, join, name, protocol
):
    topic = new_topic()
    send(producer(bootstrap), topic, [b"0"])
    reader = join([topic], protocol)
    read(reader, 1)
    stranger = member(bootstrap, name, protocol)
    with pytest.raises(KafkaException) as raised:
        stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert reader.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset < 0
    stranger.close()

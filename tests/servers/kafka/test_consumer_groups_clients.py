"""Consumer groups with assignment by the server, and librdkafka clients as members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    Producer,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.config.schema import BrokerConfig, Endpoint
from millstream.protocols.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest
from millstream.testing.broker import running_broker

from .client import RawClient

CONFIG = BrokerConfig(consumer_heartbeat_interval_ms=100, consumer_session_timeout_ms=6_000)
WAIT_S_MAX = 30.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: Any) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("consumers"), broker=CONFIG) as running:
        yield running.bootstrap


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@contextmanager
def member(bootstrap: str, group: str, *topics: str, **settings: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def make_topic(admin: AdminClient, name: str, partitions: int) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(10)


def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> list[bytes]:
    """Poll members until `condition` holds; return the records they read."""
    values = []
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            record = consumer.poll(0.02)
            if record is not None:
                assert record.error() is None, record.error()
                values.append(record.value())
    return values


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]


def test_members_share_what_there_is_and_follow_every_change(
    bootstrap: str, admin: AdminClient
) -> None:
    make_topic(admin, "orders", 4)
    with ExitStack() as stack:
        first = stack.enter_context(member(bootstrap, "g", "orders"))
        poll_until(lambda: shares(first) == [4], first)
        second = stack.enter_context(member(bootstrap, "g", "^ord.*"))
        poll_until(lambda: shares(first, second) == [2, 2], first, second)
        owned = {(part.topic, part.partition) for part in first.assignment() + second.assignment()}
        assert len(owned) == 4

        admin.create_partitions([NewPartitions("orders", 6)])["orders"].result(10)
        poll_until(lambda: shares(first, second) == [3, 3], first, second)
        make_topic(admin, "ordinary", 1)
        poll_until(lambda: shares(first, second) == [3, 4], first, second)
        first.close()
        poll_until(lambda: shares(second) == [7], second)


def test_what_was_committed_is_where_the_next_member_goes_on(
    bootstrap: str, admin: AdminClient
) -> None:
    make_topic(admin, "read", 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(6):
        producer.produce("read", str(number))
    assert producer.flush(10) == 0

    values: list[bytes] = []
    with member(bootstrap, "reading", "read") as consumer:
        while len(values) < 3:
            record = consumer.poll(WAIT_S_MAX)
            assert record is not None
            values.append(record.value())
        consumer.commit(record, asynchronous=False)
    with member(bootstrap, "reading", "read") as consumer:
        while len(values) < 6:
            record = consumer.poll(WAIT_S_MAX)
            assert record is not None
            values.append(record.value())
    assert values == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_static_member_comes_back_to_its_partitions(bootstrap: str, admin: AdminClient) -> None:
    make_topic(admin, "static", 4)
    with member(bootstrap, "statics", "static") as other:
        with member(bootstrap, "statics", "static", **{"group.instance.id": "i"}) as first:
            poll_until(lambda: shares(first, other) == [2, 2], first, other)
            had, others = first.assignment(), other.assignment()
        with member(bootstrap, "statics", "static", **{"group.instance.id": "i"}) as back:
            poll_until(lambda: shares(back) == [2], back, other)
            assert back.assignment() == had
            assert other.assignment() == others


def test_members_go_on_when_the_broker_comes_back(tmp_path: Any) -> None:
    with ExitStack() as stack:
        with running_broker(tmp_path, broker=CONFIG) as running:
            host, _, port = running.bootstrap.rpartition(":")
            make_topic(AdminClient({"bootstrap.servers": running.bootstrap}), "kept", 2)
            consumer = stack.enter_context(member(running.bootstrap, "g", "kept"))
            poll_until(lambda: shares(consumer) == [2], consumer)
            epoch = describe(running.bootstrap, "g").members[0].member_epoch
        with running_broker(tmp_path, broker=CONFIG, kafka=Endpoint(host, int(port))) as running:
            producer = Producer({"bootstrap.servers": running.bootstrap})
            producer.produce("kept", b"after")
            assert producer.flush(10) == 0
            record = consumer.poll(WAIT_S_MAX)
            assert record is not None
            assert record.value() == b"after"
            consumer.commit(record, asynchronous=False)
            group = describe(running.bootstrap, "g")
            assert (group.group_state, group.group_epoch) == ("Stable", epoch)
            stack.close()


def describe(bootstrap: str, group: str) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
    with RawClient(bootstrap) as client:
        return client.call(request).groups[0]


def test_an_operator_sees_the_group_and_deletes_it_when_it_is_empty(
    bootstrap: str, admin: AdminClient
) -> None:
    make_topic(admin, "seen", 2)
    with member(bootstrap, "looked-at", "seen") as consumer:
        poll_until(lambda: shares(consumer) == [2], consumer)
        (group,) = (
            listed
            for listed in admin.list_consumer_groups().result(10).valid
            if listed.group_id == "looked-at"
        )
        assert (group.state, group.type) == (
            ConsumerGroupState.STABLE,
            ConsumerGroupType.CONSUMER,
        )
        described = admin.describe_consumer_groups(["looked-at"])["looked-at"].result(10)
        assert described.partition_assignor == "uniform"
        (described_member,) = described.members
        parts = described_member.assignment.topic_partitions
        assert [(part.topic, part.partition) for part in parts] == [("seen", 0), ("seen", 1)]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["looked-at"])["looked-at"].result(10)
    admin.delete_consumer_groups(["looked-at"])["looked-at"].result(10)

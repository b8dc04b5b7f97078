"""Faust keeps a table of a stream, and restores it after a restart."""

from __future__ import annotations

import json

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewTopic

from .applications import running
from .conftest import TIMEOUT_S
from .librdkafka import consumer, poll_until, producer, read


def write(bootstrap, topic, orders):
    writer = producer(bootstrap)
    for customer, amount in orders:
        writer.produce(topic, json.dumps({"customer": customer, "amount": amount}), customer)
    assert writer.flush(TIMEOUT_S) == 0


def committed(admin, group):
    """Return the number of orders that the application has committed."""
    request = ConsumerGroupTopicPartitions(group)
    (future,) = admin.list_consumer_group_offsets([request]).values()
    places = future.result(TIMEOUT_S).topic_partitions
    return sum(max(place.offset, 0) for place in places if place.topic.endswith("-orders"))


def test_sums_in_a_table_go_on_after_a_restart(bootstrap, admin, name, tmp_path):
    topics = [f"{name}-orders", f"{name}-sums"]
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(TIMEOUT_S)
    reader = consumer(bootstrap)
    reader.assign([TopicPartition(topics[1], partition, 0) for partition in range(2)])

    def application(directory):
        # The table is in its topic, not in the directory, which is empty each time.
        arguments = (bootstrap, name, str(tmp_path / directory))
        return running(tmp_path / "log", "tests.compat.faust_app", *arguments)

    def sums(count):
        found = {}
        for message in read(reader, count):
            value = json.loads(message.value())
            found.setdefault(value["who"], []).append(value["sum"])
        return found

    write(bootstrap, topics[0], [("ann", 1), ("bob", 10), ("ann", 2), ("ann", 3), ("bob", 20)])
    with application("first"):
        assert sums(5) == {"ann": [1, 3, 6], "bob": [10, 30]}
        poll_until([], lambda: committed(admin, name) == 5)
    write(bootstrap, topics[0], [("bob", 100), ("ann", 100)])
    with application("second"):
        assert sums(2) == {"ann": [106], "bob": [130]}
    reader.close()

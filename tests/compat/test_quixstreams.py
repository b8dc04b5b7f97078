"""Quix Streams counts with state, exactly once, whatever happens to its process."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka import TopicPartition

from .applications import running
from .conftest import TIMEOUT_S
from .librdkafka import consumer, producer, read, read_all

PARTITIONS = 2
WORDS = ("mill", "stream", "water", "wheel", "stone")


@pytest.fixture
def topics(new_topic):
    return new_topic(PARTITIONS), new_topic(PARTITIONS)


def write(bootstrap, source, count):
    writer = producer(bootstrap)
    for number in range(count):
        word = WORDS[number % len(WORDS)]
        writer.produce(source, word, word)
    assert writer.flush(TIMEOUT_S) == 0


def counts_seen(bootstrap, target):
    """Return the counts written for each word, in order."""
    seen = {word: [] for word in WORDS}
    for partition in range(PARTITIONS):
        for message in read_all(bootstrap, target, partition=partition):
            found = json.loads(message.value())
            seen[found["word"]].append(found["count"])
    return seen


def test_every_word_is_counted_once_although_the_application_is_killed(
    bootstrap, topics, name, tmp_path
):
    source, target = topics
    write(bootstrap, source, 100)
    reader = consumer(bootstrap)
    reader.assign([TopicPartition(target, partition, 0) for partition in range(PARTITIONS)])

    def application(state):
        # Each begins with an empty state directory: the state comes back from its own topic.
        arguments = (bootstrap, source, target, name, str(tmp_path / state))
        return running(tmp_path / "log", "tests.compat.quixstreams_app", *arguments)

    with application("first") as process:
        read(reader, 30)
        process.kill()
    write(bootstrap, source, 50)
    with application("second"):
        read(reader, 120, timeout_s=2 * TIMEOUT_S)
    reader.close()
    written = Counter(WORDS[number % len(WORDS)] for size in (100, 50) for number in range(size))
    assert counts_seen(bootstrap, target) == {
        word: list(range(1, count + 1)) for word, count in written.items()
    }

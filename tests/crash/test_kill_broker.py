"""A real broker is killed again and again under load from real clients: it keeps every promise.

Nothing that was acknowledged is lost, nothing is there twice, a transaction is seen whole or not at
all, what was read once stays where it was, and committed offsets do not go back.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.broker_process import BrokerProcess

from .broker_load import (
    PARTITIONS,
    PATIENCE_S,
    QUIET,
    CommittedReader,
    IdempotentWriter,
    Load,
    OffsetCommitter,
    TransactionalWriter,
    delays,
)

ROUNDS = 1000 if os.environ.get("MILLSTREAM_LONG") else 50
SEED = 1


@pytest.fixture
def broker(tmp_path: Path):
    process = BrokerProcess(tmp_path)
    yield process
    process.close()


@pytest.mark.timeout(ROUNDS * 20)
def test_a_broker_that_is_killed_keeps_its_promises(broker: BrokerProcess) -> None:
    broker.start()
    broker.wait_until_ready()
    create_topics(broker)
    idempotent = [IdempotentWriter(broker.bootstrap, "plain", f"writer-{n}") for n in range(2)]
    transactional = [
        TransactionalWriter(broker.bootstrap, "transactions", f"transactor-{n}") for n in range(2)
    ]
    committer = OffsetCommitter(broker.bootstrap, "plain", "committer")
    places = [TopicPartition("plain", 0, 0)]
    places += [TopicPartition("transactions", partition, 0) for partition in range(PARTITIONS)]
    tail = CommittedReader(broker.bootstrap, places, "tail")
    loads: list[Load] = [*idempotent, *transactional, committer, tail]
    for load in loads:
        load.start()

    kill_again_and_again(broker, loads)

    for load in loads:
        load.finish()
    found = {(place.topic, place.partition): read(broker.bootstrap, place) for place in places}
    check_plain(found["plain", 0], idempotent)
    check_transactions([found["transactions", n] for n in range(PARTITIONS)], transactional)
    for partition, seen in tail.seen.items():
        assert {offset: found[partition].get(offset) for offset in seen} == seen
    assert committer.acked > ROUNDS
    broker.stop()
    broker.verify()


def create_topics(broker: BrokerProcess) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": broker.bootstrap})
    wanted = [NewTopic("plain", 1, 1), NewTopic("transactions", PARTITIONS, 1)]
    for future in admin.create_topics(wanted).values():
        future.result(PATIENCE_S)


def kill_again_and_again(broker: BrokerProcess, loads: list[Load]) -> None:
    for seconds, seconds_in_recovery in delays(SEED, ROUNDS):
        time.sleep(seconds)
        broker.kill()
        if seconds_in_recovery is not None:
            broker.start()
            time.sleep(seconds_in_recovery)
            broker.kill()
        broker.start()
        broker.wait_until_ready()
        for load in loads:
            load.check()


def read(bootstrap: str, place: TopicPartition) -> dict[int, str]:
    """Everything that is committed in a partition, by offset."""
    reader = Consumer(
        QUIET
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    reader.assign([place])
    found: dict[int, str] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in reader.consume(10_000, 0.2):
            if message.error() is None:
                found[message.offset()] = message.value().decode()
            elif message.error().code() == KafkaError._PARTITION_EOF:
                reader.close()
                return found
    raise AssertionError(f"the end of {place} was not reached")


def check_plain(found: dict[int, str], writers: list[IdempotentWriter]) -> None:
    assert list(found) == list(range(len(found))), "an offset is missing"
    for writer in writers:
        prefix = f"{writer.name} "
        numbers = [int(value.split()[1]) for value in found.values() if value.startswith(prefix)]
        assert numbers == sorted(numbers), "the order of a producer was not kept"
        assert len(numbers) == len(set(numbers)), "a record is there twice"
        lost = [
            number
            for number, offset in writer.acked.items()
            if found.get(offset) != f"{prefix}{number}"
        ]
        assert lost == [], "an acknowledged record is not where it was said to be"
        assert len(writer.acked) == writer.sent
        assert len(writer.acked) > ROUNDS


def check_transactions(found: list[dict[int, str]], writers: list[TransactionalWriter]) -> None:
    for writer in writers:
        prefix = f"{writer.name} "
        seen = Counter(
            int(value.split()[1])
            for partition in found
            for value in partition.values()
            if value.startswith(prefix)
        )
        torn = {number: count for number, count in seen.items() if count != PARTITIONS}
        assert torn == {}, "a transaction is seen in part, or twice"
        assert writer.committed - seen.keys() == set(), "a committed transaction was lost"
        assert writer.aborted & seen.keys() == set(), "an aborted transaction is seen"
        assert seen.keys() <= writer.committed | writer.unknown
        assert len(writer.committed) > ROUNDS
        assert writer.aborted

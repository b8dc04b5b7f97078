"""Clients pass over control batches of types that they do not know, and their position moves on.

Decisions of a log's leader are such batches (`records/decision.py`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import warnings

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition

from millstream.records.build import build_batch
from millstream.records.control import build_control_batch
from millstream.records.decision import CleaningDecision, DeletionDecision, build_decision
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.record import Record

from .conftest import TIMEOUT_S
from .test_kafkajs import FOLDER

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

VALUES = ["a", "b", "c", "d"]
END = 9
both_isolations = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])


@pytest.fixture
def topic(node, new_topic):
    """A topic with four records between decisions, of which one is the last batch."""
    if node is None:
        pytest.skip("another broker has no decisions")
    name = new_topic()
    deletion = build_decision(DeletionDecision(KeyMatch(b"k", is_prefix=False)), now_ms=5)
    cleaning = build_decision(CleaningDecision(2, 1), now_ms=5)
    unknown = build_control_batch(0x4DFF, b"", now_ms=5)
    records = [build_batch([Record(value.encode())], now_ms=7) for value in VALUES]
    log = [deletion, records[0], records[1], cleaning, unknown, records[2], cleaning]
    log += [records[3], deletion]

    async def write() -> None:
        partition = node.server.broker.topics.partition(name, 0)
        await partition.open()
        for batch in log:
            await partition.log.append(batch)

    node.run(write())
    return name


@both_isolations
def test_confluent_passes_over_them(bootstrap, topic, name, isolation):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.assign([place])
    values, is_end = [], False
    while not is_end:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        is_end = message.error() is not None
        if is_end:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            assert message.offset() == END
        else:
            values.append(message.value().decode())
    assert values == VALUES
    consumer.close()


@both_isolations
def test_kafka_python_passes_over_them(bootstrap, topic, isolation):
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False
    )
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    values: list[str] = []
    while len(values) < len(VALUES) or consumer.position(place) < END:
        for records in consumer.poll(timeout_ms=200).values():
            values += [record.value.decode() for record in records]
    assert values == VALUES
    assert consumer.position(place) == END
    consumer.close()


@both_isolations
def test_aiokafka_passes_over_them(bootstrap, topic, isolation):
    async def read() -> list[str]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False
        )
        await consumer.start()
        try:
            place = AioTopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            values: list[str] = []
            async with asyncio.timeout(TIMEOUT_S):
                while len(values) < len(VALUES) or await consumer.position(place) < END:
                    found = await consumer.getmany(place, timeout_ms=200)
                    values += [r.value.decode() for rs in found.values() for r in rs]
            assert await consumer.position(place) == END
            return values
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == VALUES


def test_kafkajs_passes_over_them(bootstrap, topic, name):
    assert (FOLDER / "node_modules" / "kafkajs").exists(), "run `make clients`"
    command = ["node", "scenario.js", "control", bootstrap, name, topic, str(len(VALUES)), str(END)]
    done = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {"values": VALUES, "offset": str(END)}

"""The broker fixture: a real broker for each test, which leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from millstream.config.schema import BrokerConfig, Durability, LogConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.cli.calls import create_topic, fetch, produce
from tests.in_loop import in_loop
from tests.servers.kafka.client import RawClient


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "broker" in thread.name]


def test_the_fixture_gives_a_broker_that_a_real_client_can_use(millstream_broker: RunningBroker):
    producer = Producer({"bootstrap.servers": millstream_broker.bootstrap})
    producer.produce("orders", b"first", key=b"k")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": millstream_broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None
        assert (message.key(), message.value()) == (b"k", b"first")
    finally:
        consumer.close()


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_has_a_broker_of_its_own(millstream_broker: RunningBroker, attempt: int):
    with RawClient(millstream_broker.bootstrap) as client:
        create_topic(client, "t")
        assert produce(client, "t", b"x") == 0


def test_pytest_finds_the_fixture_by_itself(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(
        "def test_it(millstream_broker):\n"
        "    assert millstream_broker.bootstrap.startswith('127.0.0.1:')\n"
        "    assert millstream_broker.url.startswith('http://127.0.0.1:')\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_two_brokers_run_in_one_process(tmp_path: Path):
    with running_broker(tmp_path / "a") as one, running_broker(tmp_path / "b") as other:
        assert one.bootstrap != other.bootstrap
        with RawClient(one.bootstrap) as client:
            create_topic(client, "t")
            produce(client, "t", b"only here")
        with RawClient(other.bootstrap) as client:
            create_topic(client, "t")
            assert fetch(client, "t") == b""


def test_a_broker_that_was_stopped_goes_on_where_it_was(tmp_path: Path):
    for offset in range(3):
        with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
            create_topic(client, "t")
            assert produce(client, "t", b"x") == offset


def test_settings_reach_the_broker(tmp_path: Path):
    with running_broker(
        tmp_path,
        broker=BrokerConfig(num_partitions=7),
        log=LogConfig(durability=Durability.MEMORY),
    ) as broker:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "t")
        topic = broker.server.broker.topics.get("t")
        assert len(topic.partitions) == 7
        assert topic.config.durability is Durability.MEMORY
        assert broker.data == str(tmp_path)


def test_nothing_runs_on_after_the_block(tmp_path: Path):
    before = threads()
    with running_broker(tmp_path):
        assert len(threads()) == len(before) + 1
    assert threads() == before


def test_a_failing_test_stops_its_broker_too(tmp_path: Path):
    before = threads()
    with pytest.raises(ZeroDivisionError), running_broker(tmp_path):
        _ = 1 / 0
    assert threads() == before


def test_a_broker_that_cannot_start_leaves_nothing_running(tmp_path: Path):
    before = threads()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(Exception, match="file"), running_broker(tmp_path / "file"):
        pass
    assert threads() == before


@in_loop
async def test_a_broker_can_be_started_where_a_loop_runs_already(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        assert broker.bootstrap

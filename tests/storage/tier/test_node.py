"""A node with a cold store, as its clients see it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.config.schema import StoreConfig, TierConfig
from millstream.errors import InvalidConfig, InvalidRequest
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.readonly_log import ReadOnlyLog
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.testing.broker import RunningBroker, running_broker

COUNT = 300
MANUAL = StoreConfig(upkeep_interval_ms=0)


def request(node: RunningBroker, path: str, body: object = None, method: str = "") -> object:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    sent = urllib.request.Request(
        f"{node.url}{path}", data, headers, method=method or ("POST" if data else "GET")
    )
    with urllib.request.urlopen(sent, timeout=60) as response:
        return json.loads(response.read() or b"null")


def create(node: RunningBroker, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    configs = {"segment.bytes": "16384", **{k.replace("_", "."): v for k, v in configs.items()}}
    made = admin.create_topics([NewTopic("orders", 1, config=configs)], request_timeout=60)
    made["orders"].result(60)


def produce(node: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 1})
    for number in range(COUNT):
        producer.produce("orders", json.dumps({"n": number, "x": "y" * 300}), partition=0)
        producer.poll(0)
        if number % 20 == 19:
            producer.flush(60)
    assert producer.flush(60) == 0


def consume(node: RunningBroker) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[int] = []
    try:
        while len(found) < COUNT:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            assert message.offset() == len(found)
            found.append(json.loads(message.value())["n"])
    finally:
        consumer.close()
    return found


def tier_in(tmp_path: Path, **settings: int) -> TierConfig:
    (tmp_path / "cold").mkdir()
    return TierConfig(store=str(tmp_path / "cold"), **settings)


def relocate(node: RunningBroker) -> int:
    store = node.server.broker.store
    node.run(store.relocator.run_once())
    return sum(isinstance(s, ColdSegment) for s in store.get("orders").segments)


def test_clients_read_what_was_moved_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    data = tmp_path / "data"
    with running_broker(data, store=MANUAL, tier=tier) as node:
        create(node, remote_storage_enable="true")
        produce(node)
        assert relocate(node) > 2
    with running_broker(data, store=MANUAL, tier=tier) as node:
        assert consume(node) == list(range(COUNT))
        page = request(node, "/v1/topics/orders/records?from=0&limit=10")
        assert [record["offset"] for record in page["records"]] == list(range(10))
        states = {s["state"] for s in request(node, "/v1/topics/orders/segments")["segments"]}
        assert "cold" in states
        assert states <= {"cold", "sealed", "active"}
        segments = node.server.broker.store.get("orders").segments
        local = next(s.base_offset for s in segments if not isinstance(s, ColdSegment))
        offsets = node.server.broker.topics.partition("orders", 0).offsets
        assert offsets.earliest().offset == 0
        assert offsets.earliest_local().offset == offsets.earliest_not_tiered().offset == local
        assert offsets.latest_tiered().offset == local - 1
        with pytest.raises(InvalidRequest, match="through the node"):
            ReadOnlyLog(OsFilesystem(), f"{data}/topics/orders/0").reload()


def test_a_store_that_lost_its_objects_gives_errors_and_the_tail_goes_on(tmp_path: Path) -> None:
    tier = tier_in(tmp_path, read_wait_ms=50)
    with running_broker(tmp_path / "data", store=MANUAL, tier=tier) as node:
        create(node, remote_storage_enable="true")
        produce(node)
        assert relocate(node) > 2
        (tmp_path / "cold").rename(tmp_path / "elsewhere")
        with pytest.raises(urllib.error.HTTPError) as refused:
            request(node, "/v1/topics/orders/records?from=0&limit=10")
        assert refused.value.code == 503
        refused.value.close()
        ready = request(node, "/health/ready")
        assert "tier_unavailable" in json.dumps(ready)
        tail = request(node, f"/v1/topics/orders/records?from={COUNT - 1}&limit=10")
        assert [record["offset"] for record in tail["records"]] == [COUNT - 1]
        (tmp_path / "elsewhere").rename(tmp_path / "cold")
        assert consume(node) == list(range(COUNT))


def test_a_node_without_a_cold_store_refuses_the_config(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", store=MANUAL) as node:
        with pytest.raises(KafkaException, match=r"tier\.store"):
            create(node, remote_storage_enable="true")
        create(node)


def test_a_compacted_topic_has_no_cold_store(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    with (
        running_broker(tmp_path / "data", store=MANUAL, tier=tier) as node,
        pytest.raises(KafkaException, match="compact"),
    ):
        create(node, remote_storage_enable="true", cleanup_policy="compact")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    tier = TierConfig(store="ftp://x/y")
    with (
        pytest.raises(InvalidConfig, match=r"tier\.store must be"),
        running_broker(tmp_path / "data", tier=tier),
    ):
        pass


def test_a_node_without_an_object_store_does_not_load_pyarrow() -> None:
    program = (
        "import sys, millstream.node\n"
        "from millstream.storage.tier.cold_store import open_cold_store\n"
        "open_cold_store('/mnt/archive')\n"
        "assert 'pyarrow' not in sys.modules"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

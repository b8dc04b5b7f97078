"""Metrics of the Kafka server: requests by API and outcome."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from millstream.config.schema import KafkaConfig
from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from millstream.servers.kafka.apis import HANDLERS
from millstream.testing.broker import RunningBroker, running_broker
from tests.cli.calls import create_topic, produce
from tests.cli.nodes import wait_until
from tests.servers.kafka.client import RawClient

from .test_metric import parsed


@pytest.fixture
def broker(tmp_path: Path):
    with running_broker(tmp_path, kafka_server=KafkaConfig(connections_max=3)) as running:
        yield running


def told(broker: RunningBroker) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(broker.url + "/metrics", timeout=60) as answer:
        return parsed(answer.read().decode())


def fetch_request(topic: str, *, wait_ms: int, session_epoch: int = -1) -> FetchRequest:
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1024)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1024,
        session_epoch=session_epoch,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )


def test_every_api_has_its_numbers_before_it_was_asked(broker: RunningBroker):
    found = told(broker)
    for key in HANDLERS:
        assert found["millstream_kafka_requests_total", APIS[key].name] == 0
        assert found["millstream_kafka_failed_requests_total", APIS[key].name] == 0


def test_requests_bytes_and_time_are_counted(broker: RunningBroker):
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        for _ in range(3):
            produce(client, "t", b"x" * 1000)
        found = told(broker)
    assert found["millstream_kafka_requests_total", "Produce"] == 3
    assert found["millstream_kafka_requests_total", "Metadata"] == 1
    assert 3_000 < found["millstream_kafka_received_bytes_total",] < 5_000
    assert 0 < found["millstream_kafka_sent_bytes_total",] < 1_000
    seconds = found["millstream_kafka_request_seconds_total", "Produce"]
    assert 0 < found["millstream_kafka_request_loop_seconds_total", "Produce"] < seconds


def test_connections_are_counted_as_they_come_and_go(broker: RunningBroker):
    clients = [RawClient(broker.bootstrap) for _ in range(3)]
    wait_until(lambda: told(broker)["millstream_kafka_connections",] == 3)
    with RawClient(broker.bootstrap) as fourth:
        assert fourth.is_closed_by_peer()
    found = told(broker)
    assert found["millstream_kafka_accepted_connections_total", "taken"] == 3
    assert found["millstream_kafka_accepted_connections_total", "refused"] == 1
    clients[0].socket.sendall(b"\xff" * 8)
    assert clients[0].is_closed_by_peer()
    for client in clients:
        client.socket.close()
    wait_until(lambda: told(broker)["millstream_kafka_connections",] == 0)
    assert told(broker)["millstream_kafka_closed_connections_total",] == 1


def test_fetches_that_wait_are_counted_while_they_do(broker: RunningBroker):
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        create_topic(client, "t")
        client.send(fetch_request("t", wait_ms=250_000), 12)
        wait_until(lambda: told(broker)["millstream_kafka_waiting_fetches",] == 1)
        produce(other, "t", b"x")
        assert client.receive().responses[0].partitions[0].records
        assert told(broker)["millstream_kafka_waiting_fetches",] == 0


def test_fetch_sessions_and_their_partitions_are_counted(broker: RunningBroker):
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "t")
        assert client.call(fetch_request("t", wait_ms=0, session_epoch=0), 12).session_id
        found = told(broker)
    assert found["millstream_kafka_fetch_sessions",] == 1
    assert found["millstream_kafka_fetch_session_partitions",] == 1
    assert found["millstream_kafka_fetch_session_evictions_total",] == 0


def test_memory_of_requests_is_told_and_given_back(broker: RunningBroker):
    idle = told(broker)["millstream_kafka_request_memory_bytes",]
    with RawClient(broker.bootstrap) as client:
        client.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        client.socket.sendall((50_000_000).to_bytes(4) + b"x" * 3_000_000)
        wait_until(
            lambda: told(broker)["millstream_kafka_request_memory_bytes",] > idle + 2_000_000
        )
    wait_until(lambda: told(broker)["millstream_kafka_request_memory_bytes",] == idle)

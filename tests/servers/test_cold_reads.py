"""Readers of old data that is not in memory, through both servers of a real node."""

from __future__ import annotations

import json

import pytest

from millstream.config.schema import LogConfig
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.storage.prefetch import Prefetcher
from millstream.testing.broker import running_broker
from tests.servers.http.calls import ask
from tests.servers.kafka.client import RawClient

VALUE = "x" * 900
COUNT = 40


class Disk:
    """Says that something is cold until the threads were asked for it."""

    def __init__(self) -> None:
        self.is_warm = False

    def is_resident(self, view: memoryview) -> bool:
        return self.is_warm


@pytest.fixture
def node(tmp_path):
    with running_broker(tmp_path, log=LogConfig(segment_bytes_max=4096)) as running:
        store = running.server.broker.store
        store.prefetcher = Prefetcher(store._replay_background, Disk())
        for number in range(COUNT):
            body = json.dumps({"records": [{"value": f"{number}{VALUE}"}]}).encode()
            assert ask(running.url, "POST", "/v1/topics/t/records", body).status == 201
        yield running


def fetched(client: RawClient, offset: int) -> bytes:
    part = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=(FetchRequestTopic(topic="t", partitions=(part,)),),
    )
    result = client.call(request, 12).responses[0].partitions[0]
    assert result.error_code == 0
    return bytes(result.records)


def test_a_replay_over_kafka_brings_in_what_is_cold_and_reads_the_same(node):
    warming = node.server.broker.store.prefetcher
    with RawClient(node.bootstrap) as client:
        cold = fetched(client, 0)
        assert warming.reads > 0
        assert warming.bytes > 0
        warming._page_cache_probe.is_warm = True
        reads = warming.reads
        assert fetched(client, 0) == cold
        assert warming.reads == reads, "nothing is brought in twice"
        assert b"39" + VALUE.encode() in cold


def test_a_consumer_at_the_head_brings_in_nothing(node):
    with RawClient(node.bootstrap) as client:
        assert fetched(client, COUNT - 1)
        assert fetched(client, COUNT) == b""
    assert node.server.broker.store.prefetcher.reads == 0


def test_a_replay_over_http_brings_in_what_is_cold(node):
    path = "/v1/topics/t/records"
    found = ask(node.url, "GET", f"{path}?from=0&limit=1000&max_bytes=1000000").json["records"]
    assert [record["value"][:2] for record in found[10:]] == [str(n) for n in range(10, COUNT)]
    assert node.server.broker.store.prefetcher.reads > 0
    metrics = ask(node.url, "GET", "/metrics").body.decode()
    assert (
        f"millstream_store_cold_reads_total {node.server.broker.store.prefetcher.reads}" in metrics
    )

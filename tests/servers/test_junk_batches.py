"""Batches that cannot be decoded, from a Kafka client: refusals, and what each reader sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.clients.http.sync.client import Client
from millstream.errors import DamagedRecords
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.testing.broker import RunningBroker, running_broker
from tests.broker.junk_batches import JUNK, RECORDS
from tests.servers.http.calls import ask
from tests.servers.http.live.event_streams import watching
from tests.servers.http.live.live_topic import LiveTopic, wait_until
from tests.servers.kafka.client import RawClient, produce_request

END = 2 + RECORDS
GAP = {"from": 1, "to": RECORDS, "reason": "damaged"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def topic(node: RunningBroker) -> LiveTopic:
    """A topic with junk between two records."""
    topic = LiveTopic(node)
    topic.append("before")
    assert produce(node, topic.name, JUNK["gzip"]()).error_code == ErrorCode.NONE
    topic.append("after")
    return topic


def produce(node: RunningBroker, topic: str, batch: bytes, **fields: Any) -> Any:
    with RawClient(node.bootstrap) as client:
        answer = client.call(produce_request(topic, batch, **fields), 9)
        return answer.responses[0].partition_responses[0]


def put_queue(node: RunningBroker, name: str) -> None:
    assert ask(node.url, "PUT", f"/v1/queues/{name}", b"{}").status in (200, 201)


@pytest.mark.parametrize("kind", JUNK)
def test_queues_and_compacted_topics_refuse_junk_with_an_error_that_is_not_retried(
    node: RunningBroker, kind: str
) -> None:
    compacted = LiveTopic(node, configs={"cleanup.policy": "compact"})
    queue = LiveTopic(node)
    put_queue(node, queue.name)
    for refusing in (compacted, queue):
        refused = produce(node, refusing.name, JUNK[kind]())
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert "cannot read the records" in refused.error_message
        assert refusing.partition().high_watermark == 0


def test_an_http_read_returns_what_is_sound_and_then_says_what_is_not(
    node: RunningBroker, topic: LiveTopic
) -> None:
    path = f"/v1/topics/{topic.name}/records"
    first = ask(node.url, "GET", f"{path}?from=0")
    assert first.status == 200
    assert [record["value"] for record in first.json["records"]] == ["before"]
    assert first.json["next"] == 1
    for from_ in range(1, 1 + RECORDS):
        for wait in ("", "&wait_ms=1"):
            found = ask(node.url, "GET", f"{path}?from={from_}{wait}")
            assert found.status == 500
            assert found.json["error"]["code"] == "damaged_records"
            assert found.json["error"]["detail"] == {"from": 1, "to": RECORDS}
    rest = ask(node.url, "GET", f"{path}?from={1 + RECORDS}")
    assert [record["value"] for record in rest.json["records"]] == ["after"]


def test_the_client_raises_the_range_and_can_continue_after_it(
    node: RunningBroker, topic: LiveTopic
) -> None:
    with Client(node.url) as client:
        seen = []
        with pytest.raises(DamagedRecords) as caught:
            seen.extend(record.value for record in client.read(topic.name))
        assert seen == ["before"]
        behind = client.read(topic.name, from_=caught.value.to_offset + 1)
        assert [record.value for record in behind] == ["after"]


def test_a_watcher_that_catches_up_is_told_of_the_gap_and_goes_on(
    node: RunningBroker, topic: LiveTopic
) -> None:
    with watching(node.url, topic.name, from_="earliest") as stream:
        told = [stream.next() for _ in range(3)]
    assert [event.kind for event in told] == ["records", "gap", "records"]
    assert told[1].data == {"topic": topic.name, "partition": 0, **GAP}
    assert told[1].id is not None
    assert told[1].id.startswith(topic.name)
    assert told[1].id.endswith(f":0:{1 + RECORDS}")
    assert told[2].data["records"][0]["value"] == "after"


def test_a_watcher_at_the_tail_is_told_of_the_gap_and_goes_on(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append("before")
    with watching(node.url, topic.name) as stream, watching(node.url, topic.name) as other:
        produce(node, topic.name, JUNK["zstd"]())
        for watcher in (stream, other):
            told = watcher.next()
            assert (told.kind, told.data["from"], told.data["to"]) == ("gap", 1, RECORDS)
        topic.append("after")
        for watcher in (stream, other):
            assert watcher.values(1) == ["after"]


def test_a_queue_made_on_a_topic_with_junk_delivers_the_jobs_around_it(
    node: RunningBroker, topic: LiveTopic
) -> None:
    put_queue(node, topic.name)
    path = f"/v1/queues/{topic.name}"
    seen = []
    for _ in range(2):
        claimed = ask(node.url, "POST", f"{path}/claim", b'{"max": 10, "wait_ms": 5000}').json
        seen += [job["value"] for job in claimed["jobs"]]
        receipts = [job["receipt"] for job in claimed["jobs"]]
        ask(node.url, "POST", f"{path}/ack", json.dumps({"receipts": receipts}).encode())
    assert seen == ["before", "after"]
    wait_until(node, lambda: node.server.broker.queues.get(topic.name).counts().dead == 1)
    counts = ask(node.url, "GET", path).json
    names = ("enqueued", "acked", "dead", "ready", "damaged")
    assert [counts[name] for name in names] == [3, 2, 1, 0, 1]
    metrics = ask(node.url, "GET", "/metrics").body.decode()
    assert f'millstream_queue_damaged_batches_total{{queue="{topic.name}"}} 1' in metrics

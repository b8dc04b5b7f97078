"""Long polls get records when they are committed, and always end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millstream.records.record import Record
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.http_topic import HttpTopic, in_background

LONG_MS = 60_000
"""Longer than any test may take."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running)


def test_what_is_there_is_not_waited_for(topic: HttpTopic) -> None:
    topic.append_values(1)
    assert topic.values(wait_ms=LONG_MS) == [1]


def test_what_comes_ends_the_wait(topic: HttpTopic) -> None:
    topic.append_values(1)
    polling = in_background(lambda: topic.read(from_=1, wait_ms=LONG_MS))
    topic.waiting(1)
    topic.append_values(2)
    found = polling.result()
    assert [one["value"] for one in found["records"]] == [2]
    assert (found["next"], found["head"]) == (2, 2)
    topic.waiting(0)


def test_a_wait_that_brings_nothing_ends_in_time(topic: HttpTopic) -> None:
    found = topic.read(wait_ms=1)
    assert (found["records"], found["next"], found["head"]) == ([], 0, 0)
    topic.waiting(0)


def test_what_came_from_an_excluded_node_neither_ends_the_wait_nor_is_seen_again(
    topic: HttpTopic,
) -> None:
    polling = in_background(lambda: topic.read(wait_ms=LONG_MS, exclude_node="n1", limit=3))
    topic.waiting(1)
    for n in range(20):
        topic.append_values(n, n, node="n1")
    topic.append_values("wanted", node="n2")
    found = polling.result()
    assert [(one["offset"], one["value"]) for one in found["records"]] == [(40, "wanted")]
    assert found["next"] == 41


def test_a_wait_that_saw_excluded_records_only_keeps_its_place(topic: HttpTopic) -> None:
    topic.append_values(1, 2, 3, node="n1")
    found = topic.read(wait_ms=500, exclude_node="n1", limit=1)
    assert (found["records"], found["next"], found["head"]) == ([], 3, 3)


def test_an_open_transaction_does_not_end_the_wait_and_its_commit_does(topic: HttpTopic) -> None:
    polling = in_background(lambda: topic.read(wait_ms=LONG_MS))
    topic.waiting(1)
    stamp = {"producer_id": 4_000_000, "producer_epoch": 0, "base_sequence": 0}
    topic.append_batch(Record(b"1"), is_transactional=True, **stamp)

    async def commit() -> None:
        await topic.partition().appender.append_marker(
            4_000_000, 0, is_commit=True, coordinator_epoch=0
        )

    assert not polling.done()
    topic.run(commit())
    assert [one["value"] for one in polling.result()["records"]] == [1]


def test_a_topic_that_is_deleted_meanwhile_is_not_found(topic: HttpTopic) -> None:
    polling = in_background(lambda: topic.get(wait_ms=LONG_MS))
    topic.waiting(1)
    partition = topic.partition()
    assert topic.ask("DELETE", "").status == 204
    answer = polling.result()
    assert (answer.status, answer.code) == (404, "unknown_topic")
    topic.until(lambda: not partition._watchers)


def test_retention_ends_the_wait_with_a_gap(topic: HttpTopic) -> None:
    stamp = {"producer_id": 4_000_000, "producer_epoch": 0, "base_sequence": 0}
    topic.append_batch(Record(b"1"), is_transactional=True, **stamp)
    polling = in_background(lambda: topic.read(wait_ms=LONG_MS))
    topic.waiting(1)
    topic.evict_before(1)
    assert polling.result()["gaps"] == [{"from": 0, "to": 0, "reason": "retention"}]


def test_a_node_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        topic.append_values(1)
        polling = in_background(lambda: topic.get(from_=1, wait_ms=LONG_MS))
        topic.waiting(1)
    answer = polling.result()
    assert answer.status == 200
    assert (answer.json["records"], answer.json["next"]) == ([], 1)


def request_of(topic: HttpTopic, wait_ms: int = LONG_MS) -> bytes:
    host = urlsplit(topic.running.url).netloc
    path = f"{topic.path}/records?wait_ms={wait_ms}"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_a_client_that_hangs_up_is_waited_for_no_longer(topic: HttpTopic) -> None:
    host, _, port = urlsplit(topic.running.url).netloc.partition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(request_of(topic))
            topic.waiting(1)
        topic.waiting(0)


def test_many_wait_for_one_record_and_all_get_it(topic: HttpTopic) -> None:
    host, _, port = urlsplit(topic.running.url).netloc.partition(":")
    count = 200

    async def poll() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request_of(topic))
            head = await reader.readuntil(b"\r\n\r\n")
            [size] = [
                int(line.partition(b":")[2])
                for line in head.splitlines()
                if line.startswith(b"content-length")
            ]
            return await reader.readexactly(size)
        finally:
            writer.close()

    async def poll_all() -> set[bytes]:
        return set(await asyncio.gather(*(poll() for _ in range(count))))

    polling = in_background(lambda: asyncio.run(poll_all()))
    topic.waiting(count)
    topic.append_values("for all")
    [answer] = polling.result()
    assert b'"for all"' in answer
    topic.waiting(0)

"""An append with a producer id can be repeated: it happens once, with the same response."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running)


def producer_of(running: RunningBroker) -> dict[str, int]:
    answer = ask(running.url, "POST", "/v1/producers")
    assert answer.status == 201
    assert answer.json.keys() == {"id", "epoch"}
    return answer.json


def at(producer: dict[str, int], sequence: int) -> dict[str, int]:
    return {**producer, "sequence": sequence}


def test_each_producer_has_an_id_of_its_own_also_after_a_restart(tmp_path: Path) -> None:
    taken: list[int] = []
    for _ in range(2):
        with running_broker(tmp_path) as running:
            made = [producer_of(running) for _ in range(3)]
        assert {one["epoch"] for one in made} == {0}
        taken += [one["id"] for one in made]
    assert len(set(taken)) == 6


def test_a_request_that_is_repeated_is_appended_once_and_answered_the_same(
    running: RunningBroker, topic: HttpTopic
) -> None:
    producer = producer_of(running)
    first = topic.append({"value": 1}, {"value": 2}, producer=at(producer, 0))
    again = topic.append({"value": 1}, {"value": 2}, producer=at(producer, 0))
    assert first["offsets"] == again["offsets"] == [0, 1]
    assert topic.append({"value": 3}, producer=at(producer, 2))["offsets"] == [2]
    late = topic.append({"value": 1}, {"value": 2}, producer=at(producer, 0))
    assert late["offsets"] == [0, 1]
    assert topic.values() == [1, 2, 3]


def test_a_gap_in_the_row_is_a_conflict(running: RunningBroker, topic: HttpTopic) -> None:
    producer = producer_of(running)
    topic.append({"value": 1}, producer=at(producer, 0))
    answer = topic.post({"value": 3}, producer=at(producer, 2))
    assert (answer.status, answer.code) == (409, "out_of_order_sequence")
    assert topic.values() == [1]


def test_an_older_epoch_is_a_conflict(running: RunningBroker, topic: HttpTopic) -> None:
    producer = producer_of(running)
    topic.append({"value": 1}, producer=at({**producer, "epoch": 1}, 0))
    answer = topic.post({"value": 2}, producer=at(producer, 1))
    assert (answer.status, answer.code) == (409, "invalid_producer_epoch")


def test_a_restart_forgets_no_producer(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        producer = producer_of(running)
        first = topic.append({"value": 1}, {"value": 2}, producer=at(producer, 0))
    with running_broker(tmp_path) as running:
        topic.running = running
        again = topic.append({"value": 1}, {"value": 2}, producer=at(producer, 0))
        assert again["offsets"] == first["offsets"]
        assert topic.append({"value": 3}, producer=at(producer, 2))["offsets"] == [2]
        assert topic.values() == [1, 2, 3]


UNCLEAR: list[dict[str, Any]] = [
    {"records": [{"value": 1}]},
    {"records": [{"key": "k", "value": 1}]},
    {"records": [{"value": 1, "partition": 0}, {"value": 2}]},
]


@pytest.mark.parametrize("body", UNCLEAR)
def test_where_there_are_several_partitions_one_has_to_be_named(
    running: RunningBroker, body: dict[str, Any]
) -> None:
    wide = HttpTopic(running, partitions=3)
    producer = at(producer_of(running), 0)
    answer = wide.ask("POST", "/records", {**body, "producer": producer})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "partition is required" in answer.message
    assert wide.append(*body["records"], partition=0, producer=producer)["partition"] == 0


def test_records_of_a_producer_go_to_one_partition(running: RunningBroker) -> None:
    wide = HttpTopic(running, partitions=3)
    answer = wide.post(
        {"value": 1, "partition": 0},
        {"value": 2, "partition": 1},
        producer=at(producer_of(running), 0),
    )
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "must have the same partition, got [0, 1]" in answer.message

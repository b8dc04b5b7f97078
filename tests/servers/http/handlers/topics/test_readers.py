"""Who reads a topic: groups with their lag, live connections, workers of a queue."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from millstream.servers.http.handlers.topics import readers
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.console import commit, consumer
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic
from tests.servers.http.live.event_streams import watching


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


def test_groups_that_read_the_topic_are_listed_with_their_lag(running: RunningBroker) -> None:
    topic, other = HttpTopic(running, partitions=2), HttpTopic(running)
    topic.append(*({"value": n, "partition": n % 2} for n in range(20)))
    other.append_values(1)
    body = {"topic": topic.name, "to": 4}
    ask(running.url, "PUT", "/v1/groups/gone/offsets", json.dumps(body).encode())
    body = {"topic": other.name, "to": 0}
    ask(running.url, "PUT", "/v1/groups/elsewhere/offsets", json.dumps(body).encode())
    with consumer(running, "reading", topic.name) as joined:
        commit(joined, topic.name, 0, 3)
        answer = topic.ask("GET", "/readers").json
    by_name = {group.pop("group"): group for group in answer["groups"]}
    assert set(by_name) == {"gone", "reading"}
    assert (by_name["gone"]["lag"], by_name["gone"]["members"]) == (12, 0)
    reading = by_name["reading"]
    assert (reading["lag"], reading["members"], reading["partitions"]) == (7, 1, 1)
    assert reading["state"] == "stable"
    assert (answer["next"], answer["watchers"], answer["is_queue"]) == (None, [], False)


def test_a_request_looks_at_a_limited_number_of_groups(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SCANNED_MAX", 2)
    topic = HttpTopic(running)
    topic.append_values(1, 2)
    body = json.dumps({"topic": topic.name, "to": 0}).encode()
    for number in range(5):
        ask(running.url, "PUT", f"/v1/groups/many-{number}/offsets", body)
    found: list[str] = []
    after = ""
    while True:
        answer = topic.ask("GET", "/readers", limit=1, **({"after": after} if after else {})).json
        found += [group["group"] for group in answer["groups"]]
        if answer["next"] is None:
            break
        after = answer["next"]
    assert found == [f"many-{number}" for number in range(5)]


def test_live_connections_are_counted_by_client_id(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    with (
        watching(running.url, topic.name, client_id="board"),
        watching(running.url, topic.name, client_id="board"),
        watching(running.url, topic.name),
    ):
        assert topic.ask("GET", "/readers").json["watchers"] == [
            {"client_id": "", "connections": 1},
            {"client_id": "board", "connections": 2},
        ]


def test_a_queue_tells_that_workers_claim_its_records(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    ask(running.url, "PUT", f"/v1/queues/{topic.name}")
    assert topic.ask("GET", "/readers").json["is_queue"] is True

"""Dead letters over HTTP: listed, moved back, deleted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


class HttpQueue:
    """A queue of a running node with dead letters."""

    def __init__(self, node: RunningBroker, letters: int) -> None:
        self._node = node
        self.name = f"q-{uuid.uuid4()}"
        assert self.ask("PUT", "", {"deliveries_max": 1}).status == 201
        records = [{"key": f"k{n}", "value": n, "headers": {"a": "b"}} for n in range(letters)]
        body = json.dumps({"records": records}).encode()
        assert ask(node.url, "POST", f"/v1/topics/{self.name}/records", body).status == 201
        receipts = [job["receipt"] for job in self.claim()]
        assert self.ask("POST", "/nack", {"receipts": receipts}).status == 200
        while self.ask("GET", "").json["dead"] < letters:
            pass

    def ask(self, method: str, rest: str, body: Any = None) -> Answer:
        sent = None if body is None else json.dumps(body).encode()
        return ask(self._node.url, method, f"/v1/queues/{self.name}{rest}", sent)

    def claim(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self.ask("POST", "/claim", {"max": 1000}).json["jobs"]
        return jobs


def test_letters_are_listed_with_the_reason_and_the_job(node: RunningBroker) -> None:
    queue = HttpQueue(node, 3)
    page = queue.ask("GET", "/dead_letters?limit=2").json
    assert (len(page["letters"]), page["count"], page["next"]) == (2, 3, "0:1")
    letter = page["letters"][1]
    assert (letter["key"], letter["value"], letter["partition"]) == ("k1", 1, 0)
    assert letter["headers"]["a"] == "b"
    assert letter["headers"]["millstream-reason"] == "nacked"
    assert letter["headers"]["millstream-offset"] == "1"
    rest = queue.ask("GET", f"/dead_letters?after={page['next']}").json
    assert ([one["value"] for one in rest["letters"]], rest["next"]) == ([2], None)


def test_letters_are_moved_back_and_are_jobs_again(node: RunningBroker) -> None:
    queue = HttpQueue(node, 3)
    assert queue.ask("POST", "/redrive", {"max": 2}).json == {"moved": 2, "remaining": 1}
    assert queue.ask("POST", "/redrive").json == {"moved": 1, "remaining": 0}
    jobs = queue.claim()
    assert sorted(job["value"] for job in jobs) == [0, 1, 2]
    assert {job["deliveries"] for job in jobs} == {1}
    assert [job["headers"] for job in jobs] == [{"a": "b"}] * 3
    assert queue.ask("GET", "/dead_letters").json == {"letters": [], "next": None, "count": 0}


def test_letters_are_deleted(node: RunningBroker) -> None:
    queue = HttpQueue(node, 3)
    assert queue.ask("DELETE", "/dead_letters").json == {"purged": 3, "remaining": 0}
    assert queue.claim() == []


def test_other_records_in_the_topic_are_in_the_way(node: RunningBroker) -> None:
    queue = HttpQueue(node, 1)
    body = json.dumps({"records": [{"value": "stranger"}]}).encode()
    ask(node.url, "POST", f"/v1/topics/{queue.name}-dead/records", body)
    assert queue.ask("POST", "/redrive").json == {"moved": 1, "remaining": 1}
    for method, rest in (("POST", "/redrive"), ("DELETE", "/dead_letters")):
        answer = queue.ask(method, rest)
        assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("POST", "/redrive", {"max": 0}),
        ("POST", "/redrive", {"max": 1001}),
        ("POST", "/redrive", {"all": True}),
        ("GET", "/dead_letters?after=x", None),
    ],
)
def test_bad_requests_are_refused(node: RunningBroker, method: str, rest: str, body: Any) -> None:
    assert HttpQueue(node, 1).ask(method, rest, body).status == 400
    sent = None if body is None else json.dumps(body).encode()
    assert ask(node.url, "DELETE", "/v1/queues/nothing/dead_letters").status == 404
    assert ask(node.url, "POST", "/v1/queues/nothing/redrive", sent).status in (400, 404)

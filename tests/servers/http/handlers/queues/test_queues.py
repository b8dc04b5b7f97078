"""Queues over HTTP: created, changed, described and deleted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4()}"


def call(node: RunningBroker, method: str, path: str, body: Any = None) -> Answer:
    sent = None if body is None else json.dumps(body).encode()
    return ask(node.url, method, path, sent)


def test_a_queue_is_made_with_its_defaults_and_then_changed(node: RunningBroker, name: str) -> None:
    made = call(node, "PUT", f"/v1/queues/{name}", {"deliveries_max": 3})
    assert made.status == 201
    assert made.json == {
        "name": name,
        "lease_ms": 30_000,
        "deliveries_max": 3,
        "dead_letter": f"{name}-dead",
        "claim_window_ms": 0,
        "enqueued": 0,
        "ready": 0,
        "leased": 0,
        "delayed": 0,
        "acked": 0,
        "dead": 0,
        "delivered": 0,
        "removed": 0,
        "damaged": 0,
    }
    changed = call(node, "PUT", f"/v1/queues/{name}", {"lease_ms": 500, "claim_window_ms": 20})
    assert changed.status == 200
    assert changed.json == {**made.json, "lease_ms": 500, "claim_window_ms": 20}
    assert call(node, "GET", f"/v1/queues/{name}").json == changed.json


def test_a_queue_can_be_made_without_a_body(node: RunningBroker, name: str) -> None:
    assert call(node, "PUT", f"/v1/queues/{name}").status == 201


def test_queues_are_listed_by_name(node: RunningBroker, name: str) -> None:
    for end in ("b", "a"):
        call(node, "PUT", f"/v1/queues/{name}-{end}")
    listed = [queue["name"] for queue in call(node, "GET", "/v1/queues").json["queues"]]
    assert [one for one in listed if one.startswith(name)] == [f"{name}-a", f"{name}-b"]


def test_a_queue_that_is_let_go_leaves_its_topic(node: RunningBroker, name: str) -> None:
    call(node, "PUT", f"/v1/queues/{name}")
    gone = call(node, "DELETE", f"/v1/queues/{name}")
    assert (gone.status, gone.body) == (204, b"")
    assert call(node, "GET", f"/v1/queues/{name}").status == 404
    assert call(node, "GET", f"/v1/topics/{name}").status == 200
    assert call(node, "DELETE", f"/v1/queues/{name}").status == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/claim", {}),
        ("POST", "/ack", {"receipts": ["r"]}),
        ("POST", "/nack", {"receipts": ["r"]}),
        ("POST", "/release", {"receipts": ["r"]}),
        ("POST", "/extend", {"receipts": ["r"]}),
        ("GET", "/work", None),
    ],
)
def test_a_topic_that_is_no_queue_is_told_how_it_becomes_one(
    node: RunningBroker, name: str, method: str, path: str, body: Any
) -> None:
    unknown = call(node, method, f"/v1/queues/{name}{path}", body)
    assert (unknown.status, unknown.code) == (404, "unknown_queue")
    assert "PUT" not in unknown.message
    call(node, "POST", f"/v1/topics/{name}/records", {"records": [{"value": 1}]})
    known = call(node, method, f"/v1/queues/{name}{path}", body)
    assert (known.status, known.code) == (404, "unknown_queue")
    assert f"PUT /v1/queues/{name}" in known.message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"lease_ms": 99}, "lease_ms"),
        ({"lease_ms": "1"}, "lease_ms"),
        ({"deliveries_max": 0}, "deliveries_max"),
        ({"dead_letter": ""}, "dead_letter"),
        ({"dead_letter": "a/b"}, "a/b"),
        ({"claim_window_ms": 10_001}, "claim_window_ms"),
        ({"lease": 1}, "unknown field 'lease'"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(
    node: RunningBroker, name: str, body: Any, said: str
) -> None:
    refused = call(node, "PUT", f"/v1/queues/{name}", body)
    assert refused.status == 400
    assert said in refused.message
    assert call(node, "GET", f"/v1/queues/{name}").status == 404


def test_a_queue_cannot_be_its_own_dead_letter_topic(node: RunningBroker, name: str) -> None:
    refused = call(node, "PUT", f"/v1/queues/{name}", {"dead_letter": name})
    assert refused.status == 400


def test_the_openapi_document_has_every_operation(node: RunningBroker) -> None:
    paths = call(node, "GET", "/openapi.json").json["paths"]
    found = {
        (method, path) for path in paths for method in paths[path] if path.startswith("/v1/queues")
    }
    assert found == {
        ("get", "/v1/queues/{queue}/dead_letters"),
        ("delete", "/v1/queues/{queue}/dead_letters"),
        ("post", "/v1/queues/{queue}/redrive"),
        ("get", "/v1/queues"),
        ("put", "/v1/queues/{queue}"),
        ("get", "/v1/queues/{queue}"),
        ("delete", "/v1/queues/{queue}"),
        ("post", "/v1/queues/{queue}/claim"),
        ("post", "/v1/queues/{queue}/ack"),
        ("post", "/v1/queues/{queue}/nack"),
        ("post", "/v1/queues/{queue}/release"),
        ("post", "/v1/queues/{queue}/extend"),
        ("get", "/v1/queues/{queue}/jobs"),
        ("get", "/v1/queues/{queue}/work"),
    }


@pytest.mark.parametrize("name", [".", "%2e%2e", "a%00b", "a%5Cb", "a%0d%0ab", "é", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(node: RunningBroker, name: str) -> None:
    path = f"/v1/queues/{quote(name, safe='%')}"
    refused = call(node, "PUT", path)
    assert refused.status == 400
    assert call(node, "GET", path).status == 404

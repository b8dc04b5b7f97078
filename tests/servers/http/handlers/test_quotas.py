"""Quotas over HTTP: shown, set and removed, and the same for both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.protocols.kafka.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    DescribeClientQuotasRequest,
)
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask
from tests.servers.kafka.client import RawClient, batch_of, produce_request

EVERYONE = {"default": True}
ENTITIES: list[dict[str, Any]] = [
    {"client_id": "etl"},
    {"client_id": EVERYONE},
    {"user": "alice"},
    {"user": EVERYONE},
    {"user": "alice", "client_id": "etl"},
    {"user": EVERYONE, "client_id": "etl"},
    {"user": "alice", "client_id": EVERYONE},
    {"user": EVERYONE, "client_id": EVERYONE},
    {"client_id": "ünï/漢=字\n"},
]


@pytest.fixture
def node(tmp_path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path) as running:
        yield running


def quotas(node: RunningBroker, method: str, body: Any = None) -> Answer:
    return ask(node.url, method, "/v1/quotas", body and json.dumps(body).encode())


def listed(node: RunningBroker) -> list[Any]:
    found: list[Any] = quotas(node, "GET").json["quotas"]
    return found


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_quota_is_set_shown_changed_and_removed(node, entity):
    first = {**entity, "rates": {"producer_byte_rate": 1_000, "request_percentage": 12.5}}
    answer = quotas(node, "PUT", first)
    assert (answer.status, answer.json) == (200, first)
    assert listed(node) == [first]
    changed = {**entity, "rates": {"producer_byte_rate": None, "consumer_byte_rate": 7}}
    left = {**entity, "rates": {"consumer_byte_rate": 7.0, "request_percentage": 12.5}}
    assert quotas(node, "PUT", changed).json == left
    assert listed(node) == [left]
    removed = {"removed": ["consumer_byte_rate", "request_percentage"]}
    assert quotas(node, "DELETE", entity).json == removed
    assert quotas(node, "DELETE", entity).json == {"removed": []}
    assert listed(node) == []


def test_quotas_survive_a_restart(tmp_path):
    wanted = [{**entity, "rates": {"controller_mutation_rate": 2.0}} for entity in ENTITIES]
    with running_broker(tmp_path) as node:
        for one in wanted:
            assert quotas(node, "PUT", one).status == 200
        before = listed(node)
    with running_broker(tmp_path) as node:
        assert listed(node) == before
        assert all(one in before for one in wanted)


WRONG: list[tuple[Any, str]] = [
    ({"rates": {"producer_byte_rate": 1}}, "a quota requires a user, a client id, or both"),
    ({"client_id": "", "rates": {}}, "client_id"),
    ({"client_id": "x" * 256, "rates": {}}, "client_id"),
    ({"client_id": {"default": False}, "rates": {}}, "default must be true"),
    ({"client_id": {"default": True, "x": 1}, "rates": {}}, "unknown field 'x' in client_id"),
    ({"client_id": None, "rates": {}}, "client_id"),
    ({"client_id": "a"}, "rates"),
    ({"client_id": "a", "rates": {"producer_byte_rate": 0}}, "producer_byte_rate"),
    ({"client_id": "a", "rates": {"producer_byte_rate": -1}}, "producer_byte_rate"),
    ({"client_id": "a", "rates": {"producer_byte_rate": 1.5}}, "a whole number of bytes"),
    ({"client_id": "a", "rates": {"bytes": 1}}, "unknown field 'bytes' in rates"),
    ({"client": "a", "rates": {}}, "unknown field 'client'"),
]


@pytest.mark.parametrize(("body", "says"), WRONG)
def test_what_is_no_quota_changes_nothing(node, body, says):
    good = {"client_id": "a", "rates": {"consumer_byte_rate": 5.0}}
    quotas(node, "PUT", good)
    if isinstance(body.get("rates"), dict):
        body = {**body, "rates": {"consumer_byte_rate": 6, **body["rates"]}}
    answer = quotas(node, "PUT", body)
    assert answer.status == 400
    assert says in answer.message
    assert listed(node) == [good]


def test_a_quota_set_by_one_server_is_shown_and_holds_at_the_other(node):
    wanted = {"client_id": "etl", "rates": {"producer_byte_rate": 1_000.0}}
    quotas(node, "PUT", wanted)
    with RawClient(node.bootstrap, client_id="etl") as client:
        answer = client.call(DescribeClientQuotasRequest(components=(), strict=False))
        [entry] = answer.entries
        assert [(one.entity_type, one.entity_name) for one in entry.entity] == [
            ("client-id", "etl")
        ]
        assert [(one.key, one.value) for one in entry.values] == [("producer_byte_rate", 1_000.0)]
        everyone = AlterClientQuotasRequestEntity(entity_type="client-id", entity_name=None)
        rate = AlterClientQuotasRequestOp(key="consumer_byte_rate", value=5.0, remove=False)
        entry = AlterClientQuotasRequestEntry(entity=(everyone,), ops=(rate,))
        client.call(AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    others = {"client_id": EVERYONE, "rates": {"consumer_byte_rate": 5.0}}
    assert others in listed(node)
    assert wanted in listed(node)


def test_a_client_owes_at_one_server_what_it_used_at_the_other(node):
    path = "/v1/topics/t/records"
    ask(node.url, "PUT", "/v1/topics/t")
    quotas(node, "PUT", {"client_id": "etl", "rates": {"producer_byte_rate": 1_000}})
    with RawClient(node.bootstrap, client_id="etl") as client:
        answer = client.call(produce_request("t", batch_of(b"x" * 60_000)), 9)
        assert answer.throttle_time_ms > 45_000
    body = json.dumps({"records": [{"value": 1}]}).encode()
    refused = ask(node.url, "POST", path, body, {"Client-Id": "etl"})
    assert (refused.status, refused.code) == (429, "quota_exceeded")
    assert refused.json["error"]["detail"]["throttle_ms"] > 40_000
    assert ask(node.url, "POST", path, body, {"Client-Id": "other"}).status == 201


def test_there_are_only_so_many_quotas(node, monkeypatch):
    monkeypatch.setattr("millstream.broker.quotas.QUOTAS_MAX", 2)
    for name in ("a", "b"):
        assert quotas(node, "PUT", {"client_id": name, "rates": {"request_percentage": 1}}).status
    more = quotas(node, "PUT", {"client_id": "c", "rates": {"request_percentage": 1}})
    assert (more.status, more.message) == (400, "the node has 2 quotas, limit is 2")
    assert quotas(node, "PUT", {"client_id": "a", "rates": {"request_percentage": 2}}).status == 200

"""HTTP clients that exceed their quotas, with a manual clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.quotas import QuotaKind
from millstream.config.schema import BrokerConfig
from millstream.testing.broker import running_broker

from .app_node import AppNode, PendingRequest, with_app_node
from .calls import ask

REQUEST = QuotaKind.REQUEST
RECORDS = "/v1/topics/t/records"
BULK_SIZE = 5_000
BULK = {"records": [{"value": "x" * (BULK_SIZE - len('{"records": [{"value": ""}]}'))}]}
"""The size of a body: two of them fill a bucket of 1,000 bytes per second."""


async def allow(node: AppNode, client_id: str, **rates: float | None) -> None:
    await node.ask("PUT", "/v1/quotas", {"client_id": client_id, "rates": rates})


async def status(exchange: PendingRequest) -> int:
    found, _ = await exchange.answer()
    return found


def headers(exchange: PendingRequest) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in exchange.sent[0]["headers"]}


async def head(node: AppNode) -> int:
    return (await node.ask("GET", "/v1/topics/t"))["partitions"][0]["head"]


async def owing(node: AppNode, client_id: str = "etl") -> None:
    """Have a client owe five seconds of appends."""
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, client_id, producer_byte_rate=1_000)
    for _ in range(3):
        assert await status(node.begin("POST", RECORDS, BULK, client_id)) == 201


@with_app_node
async def test_who_owes_is_refused_and_told_for_how_long(node):
    await owing(node)
    refused = node.begin("POST", RECORDS, BULK, "etl")
    code, answer = await refused.answer()
    assert code == 429
    assert answer["error"] == {
        "code": "quota_exceeded",
        "message": "producer_byte_rate is exceeded, try again in 5000 ms",
        "detail": {"kind": "quota", "quota": "producer_byte_rate", "throttle_ms": 5_000},
    }
    assert headers(refused)["retry-after"] == "5"
    assert headers(refused)["server-timing"].startswith("throttle;dur=5000, ")
    node.timers.advance(0.001)
    refused = node.begin("POST", RECORDS, BULK, "etl")
    _, answer = await refused.answer()
    assert answer["error"]["detail"]["throttle_ms"] == 4_999
    assert headers(refused)["retry-after"] == "5", "rounded up"


@with_app_node
async def test_a_refused_request_does_nothing(node):
    await owing(node)
    before = await head(node)
    for _ in range(5):
        assert await status(node.begin("POST", RECORDS, BULK, "etl")) == 429
    assert await head(node) == before
    node.timers.advance(5.0)
    code, placed = await node.begin("POST", RECORDS, BULK, "etl").answer()
    assert (code, placed["offsets"]) == (201, [before]), "refusals were not charged for either"


@with_app_node
async def test_an_answer_tells_what_is_owed(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "etl", producer_byte_rate=1_000)
    _, free = await node.begin("POST", RECORDS, BULK, "etl").answer()
    assert free["cost"]["throttle_ms"] == 0
    for _ in range(2):
        exchange = node.begin("POST", RECORDS, BULK, "etl")
        _, last = await exchange.answer()
    assert last["cost"]["throttle_ms"] == 5_000
    assert "throttle;dur=5000, " in headers(exchange)["server-timing"]


@with_app_node
async def test_who_owes_appends_may_read_and_be_told(node):
    await owing(node)
    assert await status(node.begin("GET", f"{RECORDS}?from=0", None, "etl")) == 200
    assert await status(node.begin("GET", "/v1/topics/t", None, "etl")) == 200


@with_app_node
async def test_a_throttled_client_does_not_slow_another(node):
    await owing(node)
    for client_id in ("other", "", None):
        for _ in range(20):
            code, placed = await node.begin("POST", RECORDS, BULK, client_id).answer()
            assert (code, placed["cost"]["throttle_ms"]) == (201, 0)
    assert await status(node.begin("POST", RECORDS, BULK, "etl")) == 429


@with_app_node
async def test_reads_are_charged_by_what_is_answered(node):
    await node.ask("PUT", "/v1/topics/t")
    await node.append("t", "x" * 15_000)
    await allow(node, "reader", consumer_byte_rate=1_000)
    read = node.begin("GET", f"{RECORDS}?from=0", None, "reader")
    assert await status(read) == 200
    owed_ms = len(read.sent[1]["body"]) - 10_000
    assert headers(read)["server-timing"].startswith(f"throttle;dur={owed_ms}, ")
    code, answer = await node.begin("GET", f"{RECORDS}?from=0", None, "reader").answer()
    assert (code, answer["error"]["detail"]["quota"]) == (429, "consumer_byte_rate")
    assert await status(node.begin("POST", RECORDS, BULK, "reader")) == 201


@with_app_node
async def test_claims_are_reads_and_what_becomes_of_jobs_is_not(node):
    """A worker that read too much must still be able to acknowledge."""
    await node.ask("PUT", "/v1/queues/mail")
    await node.append("mail", "x" * 20_000)
    await allow(node, "worker", consumer_byte_rate=1_000)
    claim = {"max": 1, "worker": "w"}
    code, claimed = await node.begin("POST", "/v1/queues/mail/claim", claim, "worker").answer()
    assert code == 200
    assert claimed["cost"]["throttle_ms"] > 10_000
    assert await status(node.begin("POST", "/v1/queues/mail/claim", claim, "worker")) == 429
    receipts = {"receipts": [claimed["jobs"][0]["receipt"]]}
    code, acked = await node.begin("POST", "/v1/queues/mail/ack", receipts, "worker").answer()
    assert (code, acked["acked"]) == (200, 1)


CHANGES: list[tuple[str, str, Any, int]] = [
    ("PUT", "/v1/topics/a", {"partitions": 20}, 201),
    ("PUT", "/v1/topics/grown", {"partitions": 21}, 200),
    ("DELETE", "/v1/topics/wide", None, 204),
]


@pytest.mark.parametrize(("method", "path", "body", "code"), CHANGES)
def test_partitions_that_come_and_go_are_charged(tmp_path: Path, method, path, body, code):
    @with_app_node
    async def test(node: AppNode) -> None:
        await node.ask("PUT", "/v1/topics/grown")
        await node.ask("PUT", "/v1/topics/wide", {"partitions": 20})
        await allow(node, "admin", controller_mutation_rate=1)
        assert await status(node.begin(method, path, body, "admin")) == code
        _, answer = await node.begin("PUT", "/v1/topics/b", None, "admin").answer()
        assert answer["error"]["detail"]["throttle_ms"] == 10_000
        assert node.broker.topics.find("b") is None
        for refused in ("/v1/topics/b/records", "/v1/topics/new/records"):
            assert await status(node.begin("POST", refused, BULK, "admin")) == 429
        assert node.broker.topics.find("new") is None
        assert await status(node.begin("PUT", "/v1/queues/q", None, "admin")) == 429
        assert await status(node.begin("PUT", "/v1/streams/s", None, "admin")) == 429
        assert await status(node.begin("POST", "/v1/topics/grown/records", BULK, "admin")) == 201

    test(tmp_path)


@with_app_node
async def test_a_topic_that_an_append_or_a_queue_makes_is_charged(node):
    await allow(node, "admin", controller_mutation_rate=0.1)
    await node.begin("POST", "/v1/topics/made/records", BULK, "admin").answer()
    await node.begin("PUT", "/v1/queues/q", None, "admin").answer()
    await node.begin("PUT", "/v1/queues/q", None, "admin").answer()  # It is there: nothing is made.
    _, answer = await node.begin("PUT", "/v1/topics/b", None, "admin").answer()
    assert answer["error"]["detail"]["throttle_ms"] == 10_000


@with_app_node
async def test_time_is_charged_and_whoever_owes_it_is_refused_everything(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "etl", request_percentage=1)
    usage_seconds = 0.2
    node.broker.quotas.charge(REQUEST, "ANONYMOUS", "etl", usage_seconds, node.clock.monotonic())
    for method, path in (("GET", "/v1/topics"), ("GET", "/v1/events?topic=t"), ("POST", RECORDS)):
        code, answer = await node.begin(method, path, BULK, "etl").answer()
        assert (code, answer["error"]["detail"]["quota"]) == (429, "request_percentage")


@with_app_node
async def test_health_metrics_and_quotas_are_never_refused(node):
    await allow(node, "etl", request_percentage=1, producer_byte_rate=1)
    node.broker.quotas.charge(REQUEST, "ANONYMOUS", "etl", 1000.0, node.clock.monotonic())
    for path in ("/health/live", "/health/ready", "/metrics", "/openapi.json", "/v1/quotas"):
        found = node.begin("GET", path, None, "etl")
        await found.task
        assert found.sent[0]["status"] == 200, path
    assert await status(node.begin("GET", "/v1/topics", None, "etl")) == 429
    body = {"client_id": "etl"}
    assert await status(node.begin("DELETE", "/v1/quotas", body, "etl")) == 200
    assert await status(node.begin("GET", "/v1/topics", None, "etl")) == 200


@with_app_node
async def test_a_hostile_client_id_is_refused_whether_or_not_there_are_quotas(node):
    for _ in range(2):
        code, answer = await node.begin("GET", "/v1/topics", None, "a\tb").answer()
        assert (code, answer["error"]["code"]) == (400, "malformed_request")
        await allow(node, "etl", request_percentage=1)
    assert await status(node.begin("GET", "/health/live", None, "a\tb")) == 200


@with_app_node
async def test_quotas_count_what_they_hold_up(node):
    await owing(node)
    for _ in range(3):
        await node.begin("POST", RECORDS, BULK, "etl").answer()
    assert node.counters.throttled == {"producer_byte_rate": 3}
    assert node.counters.throttle_seconds["producer_byte_rate"] == pytest.approx(15.0)


def test_every_client_has_the_default_of_the_node(tmp_path):
    config = BrokerConfig(limit_producer_bytes_per_second=1_000)
    with running_broker(tmp_path, broker=config) as node:
        bulk = json.dumps({"records": [{"value": "x" * 60_000}]}).encode()
        for client_id in ("a", "b"):
            headers = {"Client-Id": client_id}
            assert ask(node.url, "POST", RECORDS, bulk, headers).status == 201
            refused = ask(node.url, "POST", RECORDS, bulk, headers)
            assert (refused.status, refused.code) == (429, "quota_exceeded")
            assert 45 <= int(refused.headers["retry-after"]) <= 51
        listed = ask(node.url, "GET", "/v1/quotas").json
        assert listed == {"quotas": [], "defaults": {"producer_byte_rate": 1_000.0}}
        own = json.dumps({"client_id": "a", "rates": {"producer_byte_rate": 10**9}}).encode()
        assert ask(node.url, "PUT", "/v1/quotas", own).status == 200
        assert ask(node.url, "POST", RECORDS, bulk, {"Client-Id": "c"}).status == 201

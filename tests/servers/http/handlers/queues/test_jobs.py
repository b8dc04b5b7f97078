"""Jobs over HTTP: claimed, acknowledged, returned and extended, by clients that may disconnect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from millstream.protocols.http.queues import (
    AckAnswer,
    ClaimAnswer,
    ExtendAnswer,
    NackAnswer,
    ReleaseAnswer,
)
from tests.servers.http.app_node import AppNode, with_app_node

QUEUE = "mail"
CLAIM = f"/v1/queues/{QUEUE}/claim"
COST = {"commit_ms", "fsync_ms", "throttle_ms"}


async def make_queue(node: AppNode, *jobs: Any, **settings: Any) -> None:
    await node.ask("PUT", f"/v1/queues/{QUEUE}", settings)
    if jobs:
        await node.append(QUEUE, *jobs)


async def claim(node: AppNode, **wanted: Any) -> list[dict[str, Any]]:
    return (await node.ask("POST", CLAIM, wanted))["jobs"]


async def settle(node: AppNode, what: str, *jobs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    body = {"receipts": [job["receipt"] for job in jobs], **more}
    return await node.begin("POST", f"/v1/queues/{QUEUE}/{what}", body).answer()


async def in_line(node: AppNode, claims: int = 1) -> None:
    """Wait until so many claims are waiting."""
    queue = node.broker.queues.get(QUEUE)
    while queue.waiting != claims:  # noqa: ASYNC110 - Nobody is told when one stands in line.
        await asyncio.sleep(0)


async def counts(node: AppNode) -> dict[str, int]:
    return await node.ask("GET", f"/v1/queues/{QUEUE}")


@with_app_node
async def test_a_claim_answers_jobs_in_the_shape_that_is_promised(node: AppNode) -> None:
    await make_queue(node)
    record = {"key": "k", "value": {"n": 1}, "headers": {"a": "b"}, "node": "n1"}
    await node.ask("POST", f"/v1/topics/{QUEUE}/records", {"records": [record]})
    answer = await node.ask("POST", CLAIM, {"max": 10, "lease_ms": 5_000, "worker": "w1"})
    [job] = answer["jobs"]
    assert len(job.pop("receipt")) > 20
    assert job == {
        "offset": 0,
        "partition": 0,
        "timestamp": node.clock.wall_ms(),
        "key": "k",
        "value": {"n": 1},
        "headers": {"a": "b"},
        "node": "n1",
        "deliveries": 1,
        "deadline_ms": 5_000,
    }
    assert answer["cost"].keys() == COST


@with_app_node
async def test_answers_are_what_the_description_says(node: AppNode) -> None:
    await make_queue(node, 1, 2, 3, 4)
    answer = await node.ask("POST", CLAIM, {"max": 4})
    msgspec.json.decode(json.dumps(answer), type=ClaimAnswer)
    first, second, third, fourth = answer["jobs"]
    for what, job, kind in (
        ("ack", first, AckAnswer),
        ("nack", second, NackAnswer),
        ("extend", third, ExtendAnswer),
        ("release", fourth, ReleaseAnswer),
    ):
        status, settled = await settle(node, what, job)
        assert status == 200
        msgspec.json.decode(json.dumps(settled), type=kind)


@with_app_node
async def test_what_a_request_cost_stands_in_its_answer_and_its_head(node: AppNode) -> None:
    await make_queue(node, 1)
    exchange = node.begin("POST", CLAIM, {})
    _, answer = await exchange.answer()
    assert answer["cost"].keys() == COST
    head = dict(exchange.sent[0]["headers"])
    assert head[b"server-timing"].startswith(b"commit;dur=")


@with_app_node
async def test_an_acked_job_is_done_and_the_ack_can_be_repeated(node: AppNode) -> None:
    await make_queue(node, "a", "b")
    first, second = await claim(node, max=2)
    status, answer = await settle(node, "ack", first, second)
    assert (status, answer["acked"]) == (200, 2)
    status, answer = await settle(node, "ack", first)
    assert status == 200
    assert (await counts(node))["acked"] == 2
    assert await claim(node) == []


@with_app_node
async def test_a_released_job_can_be_claimed_at_once_and_was_not_delivered(node: AppNode) -> None:
    await make_queue(node, "a", "b", deliveries_max=1)
    first, second = await claim(node, max=2)
    status, answer = await settle(node, "release", first, second)
    assert (status, answer["released"]) == (200, 2)
    jobs = await claim(node, max=2)
    assert [(job["value"], job["deliveries"]) for job in jobs] == [("a", 1), ("b", 1)]
    for old, job in zip((first, second), jobs, strict=True):
        assert old["receipt"] != job["receipt"]
        status, answer = await settle(node, "ack", old)
        assert status == 409
    found = await counts(node)
    assert (found["leased"], found["delivered"], found["dead"]) == (2, 4, 0)


@pytest.mark.parametrize("what", ["ack", "nack", "extend", "release"])
def test_a_stale_receipt_is_named_and_the_others_take_effect(what: str, tmp_path: Any) -> None:
    @with_app_node
    async def test(node: AppNode) -> None:
        await make_queue(node, "a", "b")
        [old] = await claim(node, max=1)
        await settle(node, "nack", old)
        jobs = await claim(node, max=2)
        assert [job["deliveries"] for job in jobs] == [2, 1]
        status, answer = await settle(node, what, old, jobs[1])
        assert status == 409
        assert answer["error"]["code"] == "stale_receipt"
        assert answer["error"]["detail"] == {"stale": [old["receipt"]], "done": 1}

    test(tmp_path)


@with_app_node
async def test_a_receipt_of_nobody_is_stale(node: AppNode) -> None:
    await make_queue(node)
    for receipt in ("", "x", "A" * 44, "é" * 44, "\0", '"'):
        status, answer = await settle(node, "ack", {"receipt": receipt})
        assert (status, answer["error"]["detail"]) == (409, {"stale": [receipt], "done": 0})


@with_app_node
async def test_a_job_that_is_given_back_for_later_comes_later(node: AppNode) -> None:
    await make_queue(node, "a")
    [job] = await claim(node)
    status, answer = await settle(node, "nack", job, delay_ms=2_000)
    assert (status, answer["nacked"]) == (200, 1)
    assert (await counts(node))["delayed"] == 1
    assert await claim(node) == []
    waiting = node.begin("POST", CLAIM, {"wait_ms": 10_000})
    await in_line(node)
    node.timers.advance(2.0)
    _, answer = await waiting.answer()
    assert [job["deliveries"] for job in answer["jobs"]] == [2]


@with_app_node
async def test_a_lease_that_is_extended_lasts_from_now(node: AppNode) -> None:
    await make_queue(node, "a", lease_ms=1_000)
    [job] = await claim(node)
    node.timers.advance(0.9)
    status, answer = await settle(node, "extend", job, lease_ms=3_000)
    assert (status, answer["extended"], answer["deadline_ms"]) == (200, 1, 3_000)
    node.timers.advance(2.9)
    status, answer = await settle(node, "extend", job)
    assert (status, answer["deadline_ms"]) == (200, 1_000)
    node.timers.advance(0.9)
    assert (await settle(node, "ack", job))[0] == 200


@with_app_node
async def test_a_claim_that_waits_gets_the_job_that_comes(node: AppNode) -> None:
    await make_queue(node)
    waiting = node.begin("POST", CLAIM, {"wait_ms": 10_000})
    await in_line(node)
    await node.append(QUEUE, "late")
    _, answer = await waiting.answer()
    assert [job["value"] for job in answer["jobs"]] == ["late"]


@with_app_node
async def test_a_claim_that_waited_in_vain_answers_with_no_job(node: AppNode) -> None:
    await make_queue(node)
    waiting = node.begin("POST", CLAIM, {"wait_ms": 10_000})
    await in_line(node)
    node.timers.advance(10.0)
    status, answer = await waiting.answer()
    assert (status, answer["jobs"]) == (200, [])


@with_app_node
async def test_a_client_that_went_away_swallows_no_job(node: AppNode) -> None:
    await make_queue(node)
    waiting = node.begin("POST", CLAIM, {"wait_ms": 10_000})
    await in_line(node)
    waiting.leave()
    await waiting.task
    await node.append(QUEUE, "a")
    [job] = await claim(node)
    assert (job["value"], job["deliveries"]) == ("a", 1)
    assert waiting.sent == []


@with_app_node
async def test_whenever_a_client_goes_away_its_job_goes_to_others_unless_it_was_sent(
    node: AppNode,
) -> None:
    await make_queue(node, "a", deliveries_max=1)
    unsent = 0
    for moment in range(60):
        gone = node.begin("POST", CLAIM, {})
        for _ in range(moment):
            await asyncio.sleep(0)
        gone.leave()
        await gone.task
        found = await counts(node)
        if gone.sent or found["leased"]:
            # A response that crosses the disconnect is lost, and its job stays leased.
            assert gone.sent or gone.lost
            assert (found["leased"], found["ready"]) == (1, 0)
            await settle(node, "release", (await gone.answer())[1]["jobs"][0])
        else:
            assert (found["leased"], found["ready"]) == (0, 1)
            unsent += found["delivered"]
        assert found["dead"] == 0, "a job that nobody was sent was not delivered"
    assert unsent


@with_app_node
async def test_a_claim_that_could_not_be_called_off_gives_back_what_it_got(node: AppNode) -> None:
    await make_queue(node, "a")
    queue = node.broker.queues.get(QUEUE)
    claim_really = queue.claim

    async def claim_to_the_end(**wanted: Any) -> Any:
        claimed = await claim_really(**wanted)
        gone.leave()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return claimed

    queue.claim = claim_to_the_end  # type: ignore[method-assign]
    gone = node.begin("POST", CLAIM, {})
    await gone.task
    found = await counts(node)
    assert (found["leased"], found["ready"], found["delivered"]) == (0, 1, 1)
    assert gone.sent == []


@with_app_node
async def test_claims_that_wait_are_answered_when_the_server_stops(node: AppNode) -> None:
    await make_queue(node)
    waiting = node.begin("POST", CLAIM, {"wait_ms": 10_000})
    await in_line(node)
    node.shutdown.begin()
    status, answer = await waiting.answer()
    assert (status, answer["jobs"]) == (200, [])


@with_app_node
async def test_a_job_can_be_any_bytes(node: AppNode) -> None:
    await make_queue(node)
    for value in (None, "text", {"base64": "AAE="}, [1, 2], {"a\n": "\u2028"}):
        await node.append(QUEUE, value)
    assert [job["value"] for job in await claim(node, max=10)] == [
        None,
        "text",
        {"base64": "AAE="},
        [1, 2],
        {"a\n": "\u2028"},
    ]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("claim", {"max": 0}, "max"),
        ("claim", {"max": 1_001}, "max"),
        ("claim", {"lease_ms": 99}, "lease_ms"),
        ("claim", {"wait_ms": 60_001}, "wait_ms"),
        ("claim", {"worker": "w" * 256}, "worker"),
        ("claim", {"count": 1}, "'count'"),
        ("ack", {"receipts": []}, "receipts"),
        ("ack", {"receipts": ["r"] * 1_001}, "receipts"),
        ("ack", {"receipts": ["r" * 201]}, "receipts"),
        ("ack", {}, "receipts"),
        ("nack", {"receipts": ["r"], "delay_ms": -1}, "delay_ms"),
        ("release", {"receipts": []}, "receipts"),
        ("release", {"receipts": ["r"], "delay_ms": 1}, "delay_ms"),
        ("extend", {"receipts": ["r"], "lease_ms": 0}, "lease_ms"),
    ],
)
def test_a_request_that_is_not_allowed_is_told_why(
    path: str, body: Any, said: str, tmp_path: Any
) -> None:
    @with_app_node
    async def test(node: AppNode) -> None:
        await make_queue(node)
        status, answer = await node.begin("POST", f"/v1/queues/{QUEUE}/{path}", body).answer()
        assert status == 400
        assert said in answer["error"]["message"]

    test(tmp_path)

"""Pushed jobs: never more than requested, never to a disconnected worker, and evenly."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.servers.http.handlers.queues import job_push as work
from tests.servers.http.app_node import AppNode, PendingRequest, with_app_node

from .test_jobs import QUEUE, claim, counts, in_line, make_queue, settle

Job = dict[str, Any]


def pushed(node: AppNode, **wanted: Any) -> PendingRequest:
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    return node.begin("GET", f"/v1/queues/{QUEUE}/work?{query}")


async def jobs_of(worker: PendingRequest, count: int) -> list[Job]:
    """Wait for so many pushed jobs, and return them."""
    events = 0
    while True:
        found = await worker.events(events)
        jobs = [job for event, data in found if event == "jobs" for job in data["jobs"]]
        if len(jobs) >= count:
            return jobs
        events = len(found) + 1


async def end(node: AppNode, *workers: PendingRequest) -> None:
    """Stop the server, and wait until all streams have ended."""
    node.shutdown.begin()
    for worker in workers:
        await worker.task


@with_app_node
async def test_jobs_are_pushed_as_a_claim_answers_them(node: AppNode) -> None:
    await make_queue(node, {"n": 1})
    worker = pushed(node, max=2, lease_ms=5_000, worker="w1")
    [(event, data)] = await worker.events(1)
    assert event == "jobs"
    [job] = data["jobs"]
    assert len(job.pop("receipt")) > 20
    assert job == {
        "offset": 0,
        "partition": 0,
        "timestamp": node.clock.wall_ms(),
        "key": None,
        "value": {"n": 1},
        "headers": {},
        "deliveries": 1,
        "deadline_ms": 5_000,
    }
    head = dict(worker.sent[0]["headers"])
    assert head[b"content-type"] == b"text/event-stream"
    assert head[b"cache-control"] == b"no-store"
    await end(node, worker)


@with_app_node
async def test_jobs_that_come_later_are_pushed_when_they_come(node: AppNode) -> None:
    await make_queue(node)
    worker = pushed(node, max=10)
    await in_line(node)
    await node.append(QUEUE, "a")
    assert [job["value"] for job in await jobs_of(worker, 1)] == ["a"]
    await in_line(node)
    await node.append(QUEUE, "b", "c")
    assert [job["value"] for job in await jobs_of(worker, 3)] == ["a", "b", "c"]
    await end(node, worker)


@pytest.mark.parametrize("how", ["ack", "nack", "expire"])
def test_a_worker_has_no_more_jobs_at_a_time_than_it_asked_for(how: str, tmp_path: Any) -> None:
    @with_app_node
    async def test(node: AppNode) -> None:
        await make_queue(node, *range(5), lease_ms=1_000)
        worker = pushed(node, max=2)
        first, second = await jobs_of(worker, 2)
        assert (await counts(node))["leased"] == 2
        if how == "expire":
            await settle(node, "extend", second, lease_ms=60_000)
            node.timers.advance(1.0)
        else:
            await settle(node, how, first, **({"delay_ms": 60_000} if how == "nack" else {}))
        *_, third = await jobs_of(worker, 3)
        assert third["value"] == (0 if how == "expire" else 2)
        assert (await counts(node))["leased"] == 2
        await end(node, worker)

    test(tmp_path)


@with_app_node
async def test_a_worker_that_went_away_gets_nothing_more(node: AppNode) -> None:
    await make_queue(node)
    worker = pushed(node, max=2)
    await in_line(node)
    worker.leave()
    await worker.task
    await node.append(QUEUE, "a")
    [job] = await claim(node)
    assert job["deliveries"] == 1


@with_app_node
async def test_jobs_that_were_sent_belong_to_the_worker_though_it_is_gone(node: AppNode) -> None:
    await make_queue(node, "a", lease_ms=1_000)
    worker = pushed(node)
    await jobs_of(worker, 1)
    worker.leave()
    await worker.task
    assert await claim(node) == []
    node.timers.advance(1.0)
    [job] = await claim(node)
    assert job["deliveries"] == 2


@with_app_node
async def test_a_quiet_connection_hears_a_heartbeat(node: AppNode) -> None:
    await make_queue(node)
    worker = pushed(node)
    await in_line(node)
    for beats in (1, 2, 3):
        node.timers.advance(1.0)
        assert await worker.events(beats) == [("heartbeat", {})] * beats
    await end(node, worker)


@with_app_node
async def test_the_stream_ends_when_the_server_stops(node: AppNode) -> None:
    await make_queue(node, "a")
    worker = pushed(node)
    await jobs_of(worker, 1)
    await end(node, worker)
    assert (await worker.events(2))[-1] == ("end", {"reason": "stopping"})
    assert not worker.sent[-1].get("more_body")


@with_app_node
async def test_the_stream_ends_with_its_queue(node: AppNode) -> None:
    await make_queue(node)
    worker = pushed(node)
    await in_line(node)
    await node.ask("DELETE", f"/v1/queues/{QUEUE}")
    await worker.task
    assert await worker.events(1) == [("end", {"reason": "deleted"})]


@with_app_node
async def test_a_full_worker_is_told_of_the_end_of_its_queue(node: AppNode) -> None:
    await make_queue(node, "a")
    worker = pushed(node)
    await jobs_of(worker, 1)
    await node.ask("DELETE", f"/v1/queues/{QUEUE}")
    await worker.task
    assert (await worker.events(2))[-1] == ("end", {"reason": "deleted"})


@with_app_node
async def test_looking_at_the_head_of_the_stream_claims_nothing(node: AppNode) -> None:
    await make_queue(node, "a")
    looking = node.begin("HEAD", f"/v1/queues/{QUEUE}/work")
    assert await looking.answer() == (200, None)
    assert (await counts(node))["ready"] == 1


@with_app_node
async def test_jobs_that_were_not_sent_go_to_others_at_once(node: AppNode) -> None:
    large = "x" * (work.EVENT_BYTES_MAX // 2)
    await make_queue(node, *[large] * 6)
    worker = pushed(node, max=6)
    worker.stop_reading_after(2)
    await jobs_of(worker, 2)  # The next two have been handed to the connection, and nobody knows.
    worker.leave()
    await worker.task
    found = await counts(node)
    assert (found["leased"], found["ready"]) == (4, 2)
    jobs = await claim(node, max=6)
    assert [job["deliveries"] for job in jobs] == [1, 1], "they were never delivered"


@pytest.mark.parametrize(
    "query", ["max=0", "max=1001", "lease_ms=1", "max=a", "min=1", "max=1&max=2"]
)
def test_a_query_that_is_not_allowed_is_refused(query: str, tmp_path: Any) -> None:
    @with_app_node
    async def test(node: AppNode) -> None:
        await make_queue(node)
        status, answer = await node.begin("GET", f"/v1/queues/{QUEUE}/work?{query}").answer()
        assert status == 400
        assert answer["error"]["code"] == "malformed_request"

    test(tmp_path)


@with_app_node
async def test_a_worker_that_owes_claims_nothing_and_others_get_the_jobs(node: AppNode) -> None:
    await make_queue(node)
    rates = {"consumer_byte_rate": 1_000}
    await node.ask("PUT", "/v1/quotas", {"client_id": "slow", "rates": rates})
    slow = node.begin("GET", f"/v1/queues/{QUEUE}/work?max=10", None, "slow")
    await in_line(node)
    await node.append(QUEUE, "x" * 20_000)
    await jobs_of(slow, 1)
    await in_line(node, 0)
    await node.append(QUEUE, "second")
    assert [job["value"] for job in await claim(node)] == ["second"]
    node.timers.advance(5.0)
    assert (await slow.events(2))[-1][0] == "heartbeat"
    assert node.broker.queues.get(QUEUE).waiting == 0
    node.timers.advance(10.0)
    await in_line(node)
    await node.append(QUEUE, "third")
    assert [job["value"] for job in await jobs_of(slow, 2)][1] == "third"
    await end(node, slow)

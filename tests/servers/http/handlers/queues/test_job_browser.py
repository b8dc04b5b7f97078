"""Browsing jobs of a queue shows state and worker, and claims nothing."""

from __future__ import annotations

from typing import Any

from millstream.broker.queues import job_browser as looking
from tests.servers.http.app_node import AppNode, with_app_node

from .test_jobs import QUEUE, claim, counts, make_queue, settle


async def seen(node: AppNode, **query: Any) -> list[dict[str, Any]]:
    """Return all jobs, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        answer = await node.ask("GET", f"/v1/queues/{QUEUE}/jobs?{words}")
        assert len(answer["jobs"]) <= query.get("limit", 100)
        found += answer["jobs"]
        if answer["next"] is None:
            return found
        query["after"] = answer["next"]


def briefly(jobs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (one["value"], one["state"], one["deliveries"], one["ready_in_ms"], one["worker"])
        for one in jobs
    ]


@with_app_node
async def test_jobs_are_seen_in_all_states_and_nothing_is_claimed(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, *range(5))
    first = await claim(node, max=2, lease_ms=10_000, worker="w1")
    await settle(node, "nack", first[0], delay_ms=5_000)
    node.timers.advance(1)
    before = await counts(node)
    assert briefly(await seen(node)) == [
        (0, "delayed", 1, 4_000, ""),
        (1, "leased", 1, 9_000, "w1"),
        (2, "ready", 0, None, ""),
        (3, "ready", 0, None, ""),
        (4, "ready", 0, None, ""),
    ]
    assert await counts(node) == before


@with_app_node
async def test_jobs_of_one_state_come_page_by_page_each_once(node: AppNode) -> None:
    await node.ask("PUT", f"/v1/topics/{QUEUE}", {"partitions": 2})
    await make_queue(node)
    for partition in (0, 1):
        records = [{"value": n, "partition": partition} for n in range(5)]
        await node.ask("POST", f"/v1/topics/{QUEUE}/records", {"records": records})
    await claim(node, max=7)
    everything = [(index, offset) for index in (0, 1) for offset in range(5)]
    for limit in (1, 2, 3, 5, 100):
        by_state = {
            state: [
                (one["partition"], one["offset"])
                for one in await seen(node, limit=limit, state=state)
            ]
            for state in ("ready", "leased", "delayed")
        }
        assert [len(one) for one in by_state.values()] == [3, 7, 0]
        assert sorted(by_state["ready"] + by_state["leased"]) == everything
        found = [(one["partition"], one["offset"]) for one in await seen(node, limit=limit)]
        assert found == everything


@with_app_node
async def test_a_job_whose_lease_ran_out_is_ready_and_nobodys(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, "a")
    await claim(node, lease_ms=1_000, worker="w1")
    node.timers.advance(1.5)
    assert briefly(await seen(node)) == [("a", "ready", 1, None, "")]


@with_app_node
async def test_a_job_shows_who_has_it_now_and_not_who_had_it(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, "a")
    for worker in ("w1", "w2", ""):
        await claim(node, lease_ms=1_000, worker=worker)
        assert briefly(await seen(node, state="leased"))[0][-1] == worker
        node.timers.advance(1.5)


@with_app_node
async def test_a_worker_that_jobs_are_pushed_to_is_shown(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, "a")
    worker = node.begin("GET", f"/v1/queues/{QUEUE}/work?worker=w7")
    await worker.events(1)
    assert briefly(await seen(node))[0][-1] == "w7"
    node.shutdown.begin()
    await worker.task


@with_app_node
async def test_a_job_that_is_done_or_deleted_is_not_seen(node: AppNode) -> None:
    await make_queue(node)
    await node.ask(
        "POST",
        f"/v1/topics/{QUEUE}/records",
        {"records": [{"key": f"k{n}", "value": n} for n in range(4)]},
    )
    claimed = await claim(node, max=2)
    await settle(node, "ack", claimed[0])
    for key in ("k1", "k2"):
        await node.ask("DELETE", f"/v1/topics/{QUEUE}/records", {"key": key})
    assert [one["value"] for one in await seen(node)] == [3]


@with_app_node
async def test_a_page_ends_where_much_was_read_and_the_next_goes_on(node: AppNode) -> None:
    await make_queue(node)
    for number in range(6):
        await node.append(QUEUE, f"{number}" * 100)
    await claim(node, max=3)
    kept = looking.BYTES_MAX
    looking.BYTES_MAX = 150
    try:
        answer = await node.ask("GET", f"/v1/queues/{QUEUE}/jobs")
        assert 1 <= len(answer["jobs"]) < 6
        assert answer["next"] is not None
        assert [one["offset"] for one in await seen(node)] == list(range(6))
    finally:
        looking.BYTES_MAX = kept


@with_app_node
async def test_many_jobs_that_were_handed_out_are_sorted_in_pieces(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, *range(40))
    await claim(node, max=40)
    kept = looking.JOBS_PER_TURN
    looking.JOBS_PER_TURN = 7
    try:
        assert [one["offset"] for one in await seen(node, limit=9)] == list(range(40))
    finally:
        looking.JOBS_PER_TURN = kept


@with_app_node
async def test_an_empty_queue_has_nothing_to_see(node: AppNode) -> None:
    await make_queue(node)
    assert await seen(node) == []


@with_app_node
async def test_a_page_behind_all_partitions_is_empty(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, "a")
    assert await seen(node, after="9:0") == []


@with_app_node
async def test_a_page_of_a_queue_that_was_created_again_is_the_first_one(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, *range(5))
    page = await node.ask("GET", f"/v1/queues/{QUEUE}/jobs?limit=2")
    assert page["gaps"] == []
    await node.ask("DELETE", f"/v1/topics/{QUEUE}")
    await make_queue(node)
    await node.append(QUEUE, "a", "b", "c", "d")
    page = await node.ask("GET", f"/v1/queues/{QUEUE}/jobs?after={page['next']}")
    assert [one["value"] for one in page["jobs"]] == ["a", "b", "c", "d"]
    assert page["gaps"] == [{"from": 1, "to": 1, "reason": "recreated"}]


@with_app_node
async def test_a_receipt_of_a_queue_that_was_created_again_is_stale(node: AppNode) -> None:
    await make_queue(node)
    await node.append(QUEUE, "old")
    [job] = await claim(node)
    await node.ask("DELETE", f"/v1/topics/{QUEUE}")
    await make_queue(node)
    await node.append(QUEUE, "new")
    await claim(node)
    status, answer = await settle(node, "ack", job)
    assert (status, answer["error"]["code"]) == (409, "stale_receipt")


@with_app_node
async def test_what_is_no_state_or_no_queue_is_refused(node: AppNode) -> None:
    await make_queue(node)
    for words in ("state=done", "state=null", "after=x", "limit=0", "limit=1001"):
        status, answer = await node.begin("GET", f"/v1/queues/{QUEUE}/jobs?{words}").answer()
        assert (status, answer["error"]["code"]) == (400, "malformed_request"), words
    status, answer = await node.begin("GET", "/v1/queues/nowhere/jobs").answer()
    assert (status, answer["error"]["code"]) == (404, "unknown_queue")

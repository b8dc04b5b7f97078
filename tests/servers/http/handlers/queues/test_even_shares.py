"""With a claim window, all waiting claims and pushed workers get an even share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers.http.app_node import AppNode, PendingRequest, with_app_node

from .test_job_push import end, jobs_of, pushed
from .test_jobs import CLAIM, in_line, make_queue, settle

WINDOW_MS = 100


async def claimed(*claims: PendingRequest) -> list[int]:
    """Return the number of jobs in each claim."""
    return [len((await claim.answer())[1]["jobs"]) for claim in claims]


def claim(node: AppNode, most: int = 10) -> PendingRequest:
    return node.begin("POST", CLAIM, {"max": most, "wait_ms": 10_000})


@pytest.mark.parametrize("workers", [2, 4, 5, 10])
def test_claims_within_the_window_get_even_shares(workers: int, tmp_path: Any) -> None:
    @with_app_node
    async def test(node: AppNode) -> None:
        await make_queue(node, *range(20), claim_window_ms=WINDOW_MS)
        claims = [claim(node) for _ in range(workers)]
        await in_line(node, workers)
        node.timers.advance(WINDOW_MS / 1000)
        assert await claimed(*claims) == [20 // workers] * workers

    test(tmp_path)


@with_app_node
async def test_jobs_that_come_to_those_who_wait_are_shared_evenly(node: AppNode) -> None:
    await make_queue(node, claim_window_ms=WINDOW_MS)
    claims = [claim(node) for _ in range(4)]
    await in_line(node, 4)
    node.timers.advance(WINDOW_MS / 1000)
    await in_line(node, 4)
    await node.append("mail", *range(20))
    assert await claimed(*claims) == [5, 5, 5, 5]


@with_app_node
async def test_what_one_does_not_want_is_for_the_others(node: AppNode) -> None:
    await make_queue(node, *range(20), claim_window_ms=WINDOW_MS)
    claims = [claim(node, 2), claim(node, 10), claim(node, 10)]
    await in_line(node, 3)
    node.timers.advance(WINDOW_MS / 1000)
    assert await claimed(*claims) == [2, 9, 9]


@with_app_node
async def test_without_a_window_the_first_is_served_first(node: AppNode) -> None:
    await make_queue(node)
    claims = [claim(node), claim(node)]
    await in_line(node, 2)
    await node.append("mail", *range(12))
    assert await claimed(*claims) == [10, 2]


@with_app_node
async def test_workers_that_have_work_pushed_stand_in_the_same_line(node: AppNode) -> None:
    await make_queue(node, *range(20), claim_window_ms=WINDOW_MS)
    workers = [pushed(node, max=10), pushed(node, max=10)]
    claims = [claim(node), claim(node)]
    await in_line(node, 4)
    node.timers.advance(WINDOW_MS / 1000)
    assert await claimed(*claims) == [5, 5]
    for worker in workers:
        assert len(await jobs_of(worker, 1)) == 5
    await end(node, *workers)


@with_app_node
async def test_workers_that_ack_at_the_same_pace_get_the_same_in_the_long_run(
    node: AppNode,
) -> None:
    await make_queue(node, *range(40), claim_window_ms=WINDOW_MS)
    workers = [pushed(node, max=4, worker=f"w{number}") for number in range(5)]
    seen = [0] * len(workers)
    for _ in range(2):
        await in_line(node, len(workers))
        node.timers.advance(WINDOW_MS / 1000)
        for number, worker in enumerate(workers):
            jobs = (await jobs_of(worker, seen[number] + 4))[seen[number] :]
            seen[number] += len(jobs)
            await settle(node, "ack", *jobs)
    assert seen == [8] * len(workers)
    await end(node, *workers)

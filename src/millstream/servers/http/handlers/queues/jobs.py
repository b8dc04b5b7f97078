"""What workers ask of a queue: jobs, and to note what became of them.

A claim that waits belongs to a client that may go away meanwhile. It is taken out of the line then,
so that a job that comes later goes to somebody who is there. Jobs that were claimed already, and
that nobody was sent, are given back at once. That they were handed out stays counted: the count of
a job never falls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import ClaimResult, LeasedJob
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.record_appender import AppendTimings as QueueCost
from millstream.errors import MillstreamError
from millstream.protocols.http.queues import (
    CLAIM_MAX,
    RECEIPT_LENGTH_MAX,
    AckAnswer,
    ClaimAnswer,
    ClaimBody,
    ExtendAnswer,
    ExtendBody,
    NackAnswer,
    NackBody,
    ReceiptsBody,
    claim_json,
    job_json,
)
from millstream.protocols.http.records import RequestCost
from millstream.servers.http.handlers.queues.queues import queue_of
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request_state import json_response, note_cost, note_long_poll
from millstream.servers.http.routing.usage import usage_of

CLAIM_SIZE_MAX = 16 * 1024
"""Bytes of a body that says who claims: a few numbers and a name."""

RECEIPTS_SIZE_MAX = CLAIM_MAX * (RECEIPT_LENGTH_MAX + 64) + CLAIM_SIZE_MAX
"""Bytes of a body with as many receipts as may come at once, each on a line of its own."""


async def claim_jobs(request: Request) -> Response:
    """Claim jobs, and wait for one where there is none.

    A job belongs to who claimed it until it is acked, given back, or its lease has run out. That
    it was handed out is durable before this is answered.
    """
    body = await read_message(request, ClaimBody, size_max=CLAIM_SIZE_MAX)
    queue = queue_of(request)
    if body.wait_ms:
        note_long_poll(request)
    claim = queue.claim(
        max_jobs=body.max, lease_ms=body.lease_ms, wait_ms=body.wait_ms, worker=body.worker
    )
    async with watch_disconnect(request) as leaving:
        claimed = await _claim(queue, asyncio.ensure_future(claim), leaving)
    jobs = [encode_job(job) for job in claimed.jobs]
    usage_of(request).charge(QuotaKind.CONSUME, sum(map(len, jobs)))
    return json_response(claim_json(jobs, _cost(request, claimed.timings)))


async def _claim(
    queue: WorkQueue,
    claiming: asyncio.Future[ClaimResult],
    leaving: asyncio.Future[DisconnectReason],
) -> ClaimResult:
    """Return what is claimed, for as long as somebody waits for it; raises `ClientDisconnect`."""
    try:
        await asyncio.wait((claiming, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        claiming.cancel()
    await asyncio.wait((claiming,))
    claimed = ClaimResult([], QueueCost()) if claiming.cancelled() else claiming.result()
    if leaving.done() and leaving.result() is DisconnectReason.CLIENT:
        await return_jobs(queue, claimed.jobs)
        raise ClientDisconnect
    return claimed


async def return_jobs(queue: WorkQueue, jobs: Iterable[LeasedJob]) -> None:
    """Let others have jobs that were claimed for somebody who was not sent them."""
    receipts = [job.receipt for job in jobs]
    if receipts:
        with suppress(MillstreamError):  # Their leases run out, then.
            await queue.nack(receipts, delay_ms=0)


def encode_job(job: LeasedJob, *, age_ms: int = 0) -> bytes:
    """Return a job as JSON, `age_ms` after it was claimed."""
    return job_json(
        job.receipt,
        job.partition,
        job.record,
        deliveries=job.deliveries,
        deadline_ms=job.deadline_ms - age_ms,
    )


# What became of jobs.


async def ack_jobs(request: Request) -> Response:
    """Note that jobs are done: none of them is handed out again, whatever happens.

    Durable before this is answered, in the class of the queue's topic. Repeating it is fine.
    With 409, some receipts were stale: `detail.stale` names them, the others took effect.
    """
    body = await read_message(request, ReceiptsBody, size_max=RECEIPTS_SIZE_MAX)
    settled = await queue_of(request).ack(body.receipts)
    return json_response(AckAnswer(acked=settled.count, cost=_cost(request, settled.timings)))


async def nack_jobs(request: Request) -> Response:
    """Give jobs back, to be handed out again: at once, or after a while.

    Those that were handed out as often as they may be go to the dead-letter topic. With 409,
    some receipts were stale: `detail.stale` names them, the others took effect.
    """
    body = await read_message(request, NackBody, size_max=RECEIPTS_SIZE_MAX)
    settled = await queue_of(request).nack(body.receipts, delay_ms=body.delay_ms)
    return json_response(NackAnswer(nacked=settled.count, cost=_cost(request, settled.timings)))


async def extend_jobs(request: Request) -> Response:
    """Keep jobs for longer: their leases end `lease_ms` from now.

    With 409, some receipts were stale: `detail.stale` names them, the others took effect.
    """
    body = await read_message(request, ExtendBody, size_max=RECEIPTS_SIZE_MAX)
    queue = queue_of(request)
    settled = await queue.extend(body.receipts, lease_ms=body.lease_ms)
    return json_response(
        ExtendAnswer(
            extended=settled.count,
            deadline_ms=body.lease_ms or queue.config.lease_ms,
            cost=_cost(request, settled.timings),
        )
    )


def _cost(request: Request, cost: QueueCost) -> RequestCost:
    """Return what it cost, for the body of the answer; its head tells too."""
    return RequestCost(**note_cost(request, cost)._asdict())


_ERRORS = (HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE)

_RECEIPT = "AQAAAAAAAAAAAAAABwAAAAGtVqkbX0ZY6oA0JpJr7w2m"
_COST = {"commit_ms": 0.4, "fsync_ms": 0.3, "throttle_ms": 0}

OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/claim",
        claim_jobs,
        "Claim jobs",
        {HTTPStatus.OK: ClaimAnswer},
        body=ClaimBody,
        uses=(QuotaKind.CONSUME,),
        errors=_ERRORS,
        tag="queues",
        example={"max": 10, "lease_ms": 30_000, "wait_ms": 1_000, "worker": "w1"},
        answer_example={
            "jobs": [
                {
                    "receipt": _RECEIPT,
                    "offset": 7,
                    "partition": 0,
                    "timestamp": 1763240000000,
                    "key": None,
                    "value": {"to": "a@example.com"},
                    "headers": {},
                    "deliveries": 1,
                    "deadline_ms": 30_000,
                }
            ],
            "cost": _COST,
        },
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/ack",
        ack_jobs,
        "Say that jobs are done",
        {HTTPStatus.OK: AckAnswer},
        body=ReceiptsBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT]},
        answer_example={"acked": 1, "cost": _COST},
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/nack",
        nack_jobs,
        "Give jobs back",
        {HTTPStatus.OK: NackAnswer},
        body=NackBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT], "delay_ms": 5_000},
        answer_example={"nacked": 1, "cost": _COST},
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/extend",
        extend_jobs,
        "Keep jobs for longer",
        {HTTPStatus.OK: ExtendAnswer},
        body=ExtendBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT], "lease_ms": 60_000},
        answer_example={"extended": 1, "deadline_ms": 60_000, "cost": _COST},
    ),
)

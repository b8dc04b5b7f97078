"""Handlers of jobs for workers: claim, ack, nack, release, extend.

The client of a waiting claim may disconnect. Its claim is then withdrawn, so that a later job is
delivered to a worker that is connected. Jobs that were already claimed and not sent are released at
once: nobody has seen them, so their delivery does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from millstream.broker.access.resources import Operation
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
    ReleaseAnswer,
    claim_json,
    job_json,
)
from millstream.protocols.http.records import RequestCost
from millstream.servers.http.handlers.queues.queues import queue_of
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operation_access import queue_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

CLAIM_SIZE_MAX = 16 * 1024
"""Bytes of a claim: a few numbers and a name."""

RECEIPTS_SIZE_MAX = CLAIM_MAX * (RECEIPT_LENGTH_MAX + 64) + CLAIM_SIZE_MAX
"""Bytes of a body with the maximum number of receipts, each on its own line."""


async def claim_jobs(request: HttpRequest) -> Response:
    """Claim jobs, and wait for one if none is ready.

    A job belongs to its worker until it is acknowledged or returned, or its lease ends. The
    delivery is durable before the response.
    """
    body = await read_message(request, ClaimBody, size_max=CLAIM_SIZE_MAX)
    queue = queue_of(request)
    if body.wait_ms:
        request.is_long_poll = True
    claim = queue.claim(
        max_jobs=body.max, lease_ms=body.lease_ms, wait_ms=body.wait_ms, worker=body.worker
    )
    async with watch_disconnect(request) as disconnected:
        claimed = await _claim(queue, asyncio.ensure_future(claim), disconnected)
    jobs = [encode_job(job) for job in claimed.jobs]
    request.usage.charge(QuotaKind.CONSUME, sum(map(len, jobs)))
    return json_response(claim_json(jobs, _cost(request, claimed.timings)))


async def _claim(
    queue: WorkQueue,
    claiming: asyncio.Future[ClaimResult],
    disconnected: asyncio.Future[DisconnectReason],
) -> ClaimResult:
    """Return the claimed jobs while the client is connected; raises `ClientDisconnect`."""
    try:
        await asyncio.wait((claiming, disconnected), return_when=asyncio.FIRST_COMPLETED)
    finally:
        claiming.cancel()
    await asyncio.wait((claiming,))
    claimed = ClaimResult([], QueueCost()) if claiming.cancelled() else claiming.result()
    if disconnected.done() and disconnected.result() is DisconnectReason.CLIENT:
        await release_unsent(queue, claimed.jobs)
        raise ClientDisconnect
    return claimed


async def release_unsent(queue: WorkQueue, jobs: Iterable[LeasedJob]) -> None:
    """Release jobs that were claimed for a client and not sent to it."""
    receipts = [job.receipt for job in jobs]
    if receipts:
        with suppress(MillstreamError):  # They come back when their leases end.
            await queue.release(receipts)


def encode_job(job: LeasedJob, *, age_ms: int = 0) -> bytes:
    """Return a job as JSON, `age_ms` after it was claimed."""
    return job_json(
        job.receipt,
        job.partition,
        job.record,
        deliveries=job.deliveries,
        deadline_ms=job.deadline_ms - age_ms,
    )


# Settling jobs.


async def ack_jobs(request: HttpRequest) -> Response:
    """Acknowledge jobs: they are never delivered again.

    Durable before the response, in the durability class of the queue's topic. It can be repeated.
    409 means that some receipts were stale: `detail.stale` lists them, the others took effect.
    """
    body = await read_message(request, ReceiptsBody, size_max=RECEIPTS_SIZE_MAX)
    settled = await queue_of(request).ack(body.receipts)
    return json_response(AckAnswer(acked=settled.count, cost=_cost(request, settled.timings)))


async def nack_jobs(request: HttpRequest) -> Response:
    """Return jobs to be delivered again, at once or after a delay. The delivery counts.

    Jobs that have reached the maximum number of deliveries are moved to the dead-letter topic. 409
    means that some receipts were stale: `detail.stale` lists them, the others took effect.
    """
    body = await read_message(request, NackBody, size_max=RECEIPTS_SIZE_MAX)
    settled = await queue_of(request).nack(body.receipts, delay_ms=body.delay_ms)
    return json_response(NackAnswer(nacked=settled.count, cost=_cost(request, settled.timings)))


async def release_jobs(request: HttpRequest) -> Response:
    """Return jobs that the worker did not try: the delivery does not count.

    They can be claimed at once, and their receipts are stale from now on. 409 means that some
    receipts were stale: `detail.stale` lists them, the others took effect.
    """
    body = await read_message(request, ReceiptsBody, size_max=RECEIPTS_SIZE_MAX)
    settled = await queue_of(request).release(body.receipts)
    cost = _cost(request, settled.timings)
    return json_response(ReleaseAnswer(released=settled.count, cost=cost))


async def extend_jobs(request: HttpRequest) -> Response:
    """Extend leases: they end `lease_ms` from now.

    409 means that some receipts were stale: `detail.stale` lists them, the others took effect.
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


def _cost(request: HttpRequest, cost: QueueCost) -> RequestCost:
    """Return the times for the response body, and report them in its head."""
    return RequestCost(**request.note_timings(cost)._asdict())


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
        is_forwarded=True,
        access=queue_access(Operation.READ, Operation.READ),
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/ack",
        ack_jobs,
        "Acknowledge jobs",
        {HTTPStatus.OK: AckAnswer},
        body=ReceiptsBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT]},
        answer_example={"acked": 1, "cost": _COST},
        is_forwarded=True,
        access=queue_access(Operation.READ),
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/nack",
        nack_jobs,
        "Return jobs",
        {HTTPStatus.OK: NackAnswer},
        body=NackBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT], "delay_ms": 5_000},
        answer_example={"nacked": 1, "cost": _COST},
        is_forwarded=True,
        access=queue_access(Operation.READ),
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/release",
        release_jobs,
        "Return jobs untried",
        {HTTPStatus.OK: ReleaseAnswer},
        body=ReceiptsBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT]},
        answer_example={"released": 1, "cost": _COST},
        is_forwarded=True,
        access=queue_access(Operation.READ),
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/extend",
        extend_jobs,
        "Extend leases",
        {HTTPStatus.OK: ExtendAnswer},
        body=ExtendBody,
        errors=_ERRORS,
        tag="queues",
        example={"receipts": [_RECEIPT], "lease_ms": 60_000},
        answer_example={"extended": 1, "deadline_ms": 60_000, "cost": _COST},
        is_forwarded=True,
        access=queue_access(Operation.READ),
    ),
)

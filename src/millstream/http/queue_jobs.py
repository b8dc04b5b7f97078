"""Jobs of a queue over HTTP, to look at: nothing is claimed by it, and no count changes."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from millstream.broker.queues.looking import LookedAt, look
from millstream.http.bodies import read_query
from millstream.http.door import answer_json, off_loop_if
from millstream.http.operations import Operation
from millstream.http.places import read_place
from millstream.http.queues import queue_of
from millstream.http.records import INLINE_RECORDS_MAX
from millstream.wire.web.queues import JobsQuery, SeenJobsAnswer, seen_job_json, seen_jobs_json


async def look_at_jobs(request: Request) -> Response:
    """Look at the jobs of a queue that are not done, by partition and offset, a page at a time.

    Nothing is claimed. Values are read from the topic, so a page may hold fewer jobs than
    `limit` where they are large; `next` goes on behind them.
    """
    query = read_query(request, JobsQuery)
    after = read_place(query.after) if query.after else None
    state = None if query.state is UNSET else query.state
    found = await look(queue_of(request), state=state, after=after, limit=query.limit)
    jobs = await off_loop_if(
        len(found.jobs) > INLINE_RECORDS_MAX, lambda: [_encoded(job) for job in found.jobs]
    )
    return answer_json(seen_jobs_json(jobs, None if found.next is None else str(found.next)))


def _encoded(job: LookedAt) -> bytes:
    return seen_job_json(
        job.partition,
        job.record,
        state=job.state,
        deliveries=job.deliveries,
        ready_in_ms=job.ready_in_ms,
        worker=job.worker,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/queues/{queue}/jobs",
        look_at_jobs,
        "Look at jobs",
        {HTTPStatus.OK: SeenJobsAnswer},
        query=JobsQuery,
        tag="queues",
        answer_example={
            "jobs": [
                {
                    "partition": 0,
                    "offset": 7,
                    "state": "leased",
                    "deliveries": 1,
                    "ready_in_ms": 29_000,
                    "worker": "w1",
                    "timestamp": 1763240000000,
                    "key": None,
                    "value": {"to": "a@example.com"},
                    "headers": {},
                }
            ],
            "next": None,
        },
    ),
)

"""Handler that browses the jobs of a queue. Nothing is claimed, and no count changes."""

from __future__ import annotations

import uuid
from http import HTTPStatus

from msgspec import UNSET
from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.queues.job_browser import QueuedJob, RecordPosition, browse_jobs
from millstream.protocols.http.queues import (
    BrowsedJobsAnswer,
    JobsQuery,
    browsed_job_json,
    browsed_jobs_json,
)
from millstream.records.cursor import encode_topic_id
from millstream.records.record import RECREATED, Gap
from millstream.servers.http.handlers.queues.queues import queue_of
from millstream.servers.http.handlers.record_position import parse_record_position
from millstream.servers.http.handlers.records import INLINE_RECORDS_MAX
from millstream.servers.http.routing.bodies import in_thread_if, read_query
from millstream.servers.http.routing.operation_access import queue_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


async def list_jobs(request: HttpRequest) -> Response:
    """List the jobs of a queue that are not done, by partition and offset, one page at a time.

    Nothing is claimed. Values are read from the topic, so a page may have fewer jobs than `limit`
    if they are large; `next` continues after them.
    """
    query = read_query(request, JobsQuery)
    queue = queue_of(request)
    after, gap = _start(query.after, queue.topic.id)
    state = None if query.state is UNSET else query.state
    page = await browse_jobs(queue, state=state, after=after, limit=query.limit)
    jobs = await in_thread_if(
        len(page.jobs) > INLINE_RECORDS_MAX, lambda: [_encoded(job) for job in page.jobs]
    )
    following = None if page.next is None else f"{page.next}@{encode_topic_id(queue.topic.id)}"
    return json_response(browsed_jobs_json(jobs, following, gap))


def _start(text: str, topic_id: uuid.UUID) -> tuple[RecordPosition | None, Gap | None]:
    """Return the position after which the page starts, and the gap to report.

    The cursor of a queue whose topic was deleted starts over.
    """
    if not text:
        return None, None
    position, _, id_text = text.partition("@")
    after = parse_record_position(position)
    if not id_text or id_text == encode_topic_id(topic_id):
        return after, None
    return None, Gap(after.offset, after.offset, RECREATED)


def _encoded(job: QueuedJob) -> bytes:
    return browsed_job_json(
        job.partition,
        job.record,
        state=job.state,
        deliveries=job.deliveries,
        ready_in_ms=job.ready_in_ms,
        worker=job.worker,
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/queues/{queue}/jobs",
        list_jobs,
        "Browse jobs",
        {HTTPStatus.OK: BrowsedJobsAnswer},
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
            "gaps": [],
        },
        is_forwarded=True,
        access=queue_access(Operation.DESCRIBE, Operation.READ),
    ),
)

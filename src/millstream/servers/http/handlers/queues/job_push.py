"""`GET /v1/queues/{queue}/work`: jobs are pushed to a worker over server-sent events.

    event: jobs         data: {"jobs": [...]}      as a claim answers them
    event: heartbeat    data: {}                   where nothing happened for a while
    event: end          data: {"reason": "..."}    stopping, deleted or failed: nothing follows

A connection claims for its worker, in line with all other claims. It has at most `max` jobs at a
time that are neither done, nor given back, nor run out; as these become fewer, more are claimed. So
a worker that is slow gets less, and one that went away gets nothing more. One that owes what its
quota does not allow it claims nothing until it owes nothing.

Jobs that were claimed and not sent when the worker went away are given back at once, as `jobs.py`
does. Those that were sent belong to it, as far as anybody can know: they come back when their
leases end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import ClaimResult, LeasedJob
from millstream.broker.quotas import QuotaKind
from millstream.clock import Clock, Timers
from millstream.errors import MillstreamError, Stopping, UnknownQueue
from millstream.protocols.http.queues import WorkQuery, jobs_json
from millstream.protocols.http.records import WAIT_MS_MAX
from millstream.servers.http.handlers.queues.jobs import encode_job, return_jobs
from millstream.servers.http.handlers.queues.queues import queue_of
from millstream.servers.http.live.heartbeat_timer import HeartbeatTimer
from millstream.servers.http.live.sse import HEADERS, frame
from millstream.servers.http.live.subscriber import LiveEvent
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.servers.http.routing.request_state import broker_of, config_of, note_resumable
from millstream.servers.http.routing.throttle import Throttle
from millstream.servers.http.routing.usage import ClientUsage, usage_of

EVENT_BYTES_MAX = 256 * 1024
"""Jobs in one event, by their size; one job may be larger. What waits for a worker that reads
slowly is this, and what its connection holds."""

SendEvent = Callable[[LiveEvent], Awaitable[None]]
"""Sends an event; returns when the connection has room for another. A worker that takes nothing is
cut off by the listener, and then counts as one that went away."""


class JobPush:
    """The jobs of one connection: claimed, pushed, and remembered until they are settled."""

    def __init__(
        self,
        queue: WorkQueue,
        query: WorkQuery,
        leaving: asyncio.Future[DisconnectReason],
        usage: ClientUsage,
        *,
        clock: Clock,
        timers: Timers,
        beat_seconds: float,
    ) -> None:
        self._queue = queue
        self._usage = usage
        self._woken = asyncio.Event()
        self._holding = Throttle(usage, timers, self._woken.set)
        self._query = query
        self._leaving = leaving
        self._clock = clock
        self._pulse = HeartbeatTimer(clock, timers, beat_seconds, self._beat)
        self._is_beat_due = False
        self._held: list[LeasedJob] = []
        """Jobs that were pushed and may not be settled."""
        self._claiming: asyncio.Task[ClaimResult] | None = None

    async def run(self, say: SendEvent) -> None:
        """Push jobs until the worker leaves, the node stops or the queue is gone."""
        self._queue.watch(self._note)
        self._leaving.add_done_callback(self._wake)
        try:
            reason = await self._push_until_the_end(say)
            await say(LiveEvent("end", b'{"reason":"%s"}' % reason))
        finally:
            self._pulse.stop()
            self._holding.close()
            self._queue.unwatch(self._note)
            await self._leave_the_line()

    async def _push_until_the_end(self, say: SendEvent) -> bytes:
        """Return why it ended."""
        while True:
            await self._something_happens()
            if self._leaving.done():
                return b"stopping"
            if (refusal := self._queue.refusal) is not None:
                return _reason(refusal)
            if self._is_beat_due:
                self._is_beat_due = False
                await say(LiveEvent("heartbeat", b"{}"))
            if self._claiming is not None and self._claiming.done():
                claiming, self._claiming = self._claiming, None
                try:
                    claimed = claiming.result()
                except MillstreamError as error:
                    return _reason(error)
                await self._push(deque(claimed.jobs), say)

    async def _something_happens(self) -> None:
        """Wait until there may be something to do, and get in line where there is room.

        A worker that owes does not get in line: jobs that wait for it would be others' meanwhile.
        """
        is_free = self._claiming is None and not self._holding.is_held()
        if is_free and (room := self._room()):
            self._claiming = asyncio.create_task(self._claim(room))
            self._claiming.add_done_callback(self._wake)
        await self._woken.wait()
        self._woken.clear()

    def _room(self) -> int:
        """Return how many jobs the worker may have beside those that it has."""
        if len(self._held) >= self._query.max:
            self._held = [job for job in self._held if self._queue.is_leased(job)]
        return self._query.max - len(self._held)

    async def _claim(self, room: int) -> ClaimResult:
        return await self._queue.claim(
            max_jobs=room,
            lease_ms=self._query.lease_ms,
            wait_ms=WAIT_MS_MAX,
            worker=self._query.worker,
        )

    async def _push(self, jobs: deque[LeasedJob], say: SendEvent) -> None:
        """Push jobs in pieces; what is left when the worker leaves is given back."""
        began = self._clock.monotonic()
        try:
            while jobs and not self._leaving.done():
                age_ms = int((self._clock.monotonic() - began) * 1000)
                if piece := self._piece(jobs, age_ms):
                    event = LiveEvent("jobs", jobs_json(piece))
                    await say(event)
                    self._pulse.note_sent()
                    self._usage.charge(QuotaKind.CONSUME, len(event.data))
                    self._usage.settle()
        finally:
            await return_jobs(self._queue, jobs)

    def _piece(self, jobs: deque[LeasedJob], age_ms: int) -> list[bytes]:
        """Take as many jobs as fit into one event; those that have run out are left out."""
        piece: list[bytes] = []
        size = 0
        while jobs and size < EVENT_BYTES_MAX:
            job = jobs.popleft()
            if age_ms < job.deadline_ms:
                self._held.append(job)
                piece.append(encode_job(job, age_ms=age_ms))
                size += len(piece[-1])
        return piece

    async def _leave_the_line(self) -> None:
        """Claim no more; jobs that were claimed meanwhile are given back."""
        if self._claiming is None:
            return
        claiming, self._claiming = self._claiming, None
        claiming.cancel()
        await asyncio.wait((claiming,))
        if not claiming.cancelled() and claiming.exception() is None:
            await return_jobs(self._queue, claiming.result().jobs)

    def _note(self) -> None:
        """Look again, because a lease ended; who is in line already need not."""
        if self._claiming is None:
            self._woken.set()

    def _beat(self) -> None:
        self._is_beat_due = True
        self._woken.set()

    def _wake(self, _: object) -> None:
        self._woken.set()


def _reason(error: MillstreamError) -> bytes:
    """Say why nothing follows; what exactly is wrong with a node is for its log."""
    if isinstance(error, UnknownQueue):
        return b"deleted"
    return b"stopping" if isinstance(error, Stopping) else b"failed"


class JobPushResponse(Response):
    """The answer, which goes on until the worker leaves, the queue ends or the node stops."""

    def __init__(self, request: Request, queue: WorkQueue, query: WorkQuery) -> None:
        super().__init__()
        self._request = request
        self._queue = queue
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head, then events until the end."""
        note_resumable(scope)
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        if scope["method"] != "HEAD":
            await self._serve(send)
        await send({"type": "http.response.body", "body": b""})

    async def _serve(self, send: Send) -> None:
        async def say(event: LiveEvent) -> None:
            await send({"type": "http.response.body", "body": frame(event), "more_body": True})

        broker = broker_of(self._request)
        async with watch_disconnect(self._request) as leaving:
            work = JobPush(
                self._queue,
                self._query,
                leaving,
                usage_of(self._request),
                clock=broker.clock,
                timers=broker.timers,
                beat_seconds=config_of(self._request).heartbeat_ms / 1000,
            )
            await work.run(say)


async def push_work(request: Request) -> Response:
    """Push jobs to a worker, as server-sent events, for as long as it is there.

    Events are `jobs` (as a claim answers them), `heartbeat` and `end`. The worker acks, gives back
    or extends by requests of their own. Only so many jobs are on their way to it, or with it, as
    `max` says.
    """
    query = read_query(request, WorkQuery)
    return JobPushResponse(request, queue_of(request), query)


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/queues/{queue}/work",
        push_work,
        "Have jobs pushed",
        {HTTPStatus.OK: Media("text/event-stream", "Events: `jobs`, `heartbeat`, `end`")},
        query=WorkQuery,
        tag="queues",
    ),
)

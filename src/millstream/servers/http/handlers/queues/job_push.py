"""`GET /v1/queues/{queue}/work`: pushes jobs to a worker as server-sent events.

    event: jobs         data: {"jobs": [...]}      as in the response to a claim
    event: heartbeat    data: {}                   if nothing happened for a while
    event: end          data: {"reason": "..."}    stopping, deleted or failed: nothing follows

A connection claims for its worker, in line with all other claims. The worker has at most `max` jobs
at a time that are neither acknowledged, nor returned, nor expired; as these become fewer, more are
claimed. So a slow worker gets less, and a disconnected one gets nothing more. A worker that exceeds
its quota claims nothing until it owes nothing.

Jobs that were claimed and not sent when the worker disconnected are released at once, as in
`jobs.py`. Jobs that were sent may have arrived: they come back when their leases end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream.broker.access.resources import Operation
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import ClaimResult, LeasedJob
from millstream.broker.quotas import QuotaKind
from millstream.clock import Clock, Timers
from millstream.errors import (
    MillstreamError,
    NotCoordinator,
    NotCoordinatorAnymore,
    NotLeader,
    Stopping,
    UnknownQueue,
)
from millstream.protocols.http.queues import WorkQuery, jobs_json
from millstream.protocols.http.records import WAIT_MS_MAX
from millstream.servers.http.handlers.queues.jobs import encode_job, release_unsent
from millstream.servers.http.handlers.queues.queues import queue_of
from millstream.servers.http.live.heartbeat_timer import HeartbeatTimer
from millstream.servers.http.live.sse import frame, stream_head
from millstream.servers.http.live.subscriber import LiveEvent
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operation_access import queue_access
from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.throttle import Throttle
from millstream.servers.http.routing.usage import ClientUsage

EVENT_BYTES_MAX = 256 * 1024
"""Bytes of jobs in one event; a single job may be larger. It also bounds what waits for a worker
that reads slowly, in addition to the buffer of its connection."""

SendEvent = Callable[[LiveEvent], Awaitable[None]]
"""Sends an event; returns when the connection can take another. A worker that reads nothing is cut
off by the server, and then counts as disconnected.
"""


class JobPush:
    """The jobs of one connection: claimed, pushed, and tracked until they are settled."""

    def __init__(
        self,
        queue: WorkQueue,
        query: WorkQuery,
        disconnected: asyncio.Future[DisconnectReason],
        usage: ClientUsage,
        *,
        clock: Clock,
        timers: Timers,
        heartbeat_seconds: float,
    ) -> None:
        self._queue = queue
        self._usage = usage
        self._woken = asyncio.Event()
        self._throttle = Throttle(usage, timers, self._woken.set)
        self._query = query
        self._disconnected = disconnected
        self._clock = clock
        self._heartbeat = HeartbeatTimer(clock, timers, heartbeat_seconds, self._request_heartbeat)
        self._is_heartbeat_due = False
        self._pushed: list[LeasedJob] = []
        """Jobs that were pushed and may not be settled."""
        self._claiming: asyncio.Task[ClaimResult] | None = None

    async def run(self, send: SendEvent) -> None:
        """Push jobs until the worker disconnects, the node stops or the queue is deleted."""
        self._queue.watch(self._note)
        self._disconnected.add_done_callback(self._wake)
        try:
            reason = await self._push_until_end(send)
            await send(LiveEvent("end", b'{"reason":"%s"}' % reason))
        finally:
            self._heartbeat.stop()
            self._throttle.close()
            self._queue.unwatch(self._note)
            await self._withdraw_claim()

    async def _push_until_end(self, send: SendEvent) -> bytes:
        """Push jobs; return the reason of the end."""
        while True:
            await self._wait_for_event()
            if self._disconnected.done():
                return b"stopping"
            if (refusal := self._queue.refusal) is not None:
                return _reason(refusal)
            if self._is_heartbeat_due:
                self._is_heartbeat_due = False
                await send(LiveEvent("heartbeat", b"{}"))
            if self._claiming is not None and self._claiming.done():
                claiming, self._claiming = self._claiming, None
                try:
                    claimed = claiming.result()
                except MillstreamError as error:
                    return _reason(error)
                await self._push(deque(claimed.jobs), send)

    async def _wait_for_event(self) -> None:
        """Wait until there may be something to do, and claim if the worker may have more jobs.

        A worker that exceeds its quota does not claim: the jobs would wait for it while others
        could take them.
        """
        is_free = self._claiming is None and not self._throttle.is_held()
        if is_free and (capacity := self._capacity()):
            self._claiming = asyncio.create_task(self._claim(capacity))
            self._claiming.add_done_callback(self._wake)
        await self._woken.wait()
        self._woken.clear()

    def _capacity(self) -> int:
        """Return how many jobs the worker may have beside those that it has."""
        if len(self._pushed) >= self._query.max:
            self._pushed = [job for job in self._pushed if self._queue.is_leased(job)]
        return self._query.max - len(self._pushed)

    async def _claim(self, capacity: int) -> ClaimResult:
        return await self._queue.claim(
            max_jobs=capacity,
            lease_ms=self._query.lease_ms,
            wait_ms=WAIT_MS_MAX,
            worker=self._query.worker,
        )

    async def _push(self, jobs: deque[LeasedJob], send: SendEvent) -> None:
        """Push jobs in events of bounded size; release the others when the worker disconnects."""
        began = self._clock.monotonic()
        try:
            while jobs and not self._disconnected.done():
                age_ms = int((self._clock.monotonic() - began) * 1000)
                if piece := self._take_event(jobs, age_ms):
                    event = LiveEvent("jobs", jobs_json(piece))
                    await send(event)
                    self._heartbeat.note_sent()
                    self._usage.charge(QuotaKind.CONSUME, len(event.data))
                    self._usage.settle()
        finally:
            await release_unsent(self._queue, jobs)

    def _take_event(self, jobs: deque[LeasedJob], age_ms: int) -> list[bytes]:
        """Take as many jobs as fit into one event, without those whose lease has ended."""
        piece: list[bytes] = []
        size = 0
        while jobs and size < EVENT_BYTES_MAX:
            job = jobs.popleft()
            if age_ms < job.deadline_ms:
                self._pushed.append(job)
                piece.append(encode_job(job, age_ms=age_ms))
                size += len(piece[-1])
        return piece

    async def _withdraw_claim(self) -> None:
        """Withdraw the claim; release jobs that were claimed meanwhile."""
        if self._claiming is None:
            return
        claiming, self._claiming = self._claiming, None
        claiming.cancel()
        await asyncio.wait((claiming,))
        if not claiming.cancelled() and claiming.exception() is None:
            await release_unsent(self._queue, claiming.result().jobs)

    def _note(self) -> None:
        """Check again because a lease ended, unless a claim is waiting anyway."""
        if self._claiming is None:
            self._woken.set()

    def _request_heartbeat(self) -> None:
        self._is_heartbeat_due = True
        self._woken.set()

    def _wake(self, _: object) -> None:
        self._woken.set()


def _reason(error: MillstreamError) -> bytes:
    """Return the reason for the end. Details of a failure are only in the log of the node."""
    if isinstance(error, UnknownQueue):
        return b"deleted"
    if isinstance(error, Stopping | NotLeader | NotCoordinator | NotCoordinatorAnymore):
        return b"stopping"  # The worker continues at the node that coordinates the queue now.
    return b"failed"


class JobPushResponse(Response):
    """The response: lasts until the worker disconnects, the queue is deleted or the node stops."""

    def __init__(self, request: HttpRequest, queue: WorkQueue, query: WorkQuery) -> None:
        super().__init__()
        self._request = request
        self._queue = queue
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head, then events until the end."""
        with self._request.live_slot():
            await send(stream_head())
            if scope["method"] != "HEAD":
                await self._serve(send)
            await send({"type": "http.response.body", "body": b""})

    async def _serve(self, send: Send) -> None:
        async def send_event(event: LiveEvent) -> None:
            await send({"type": "http.response.body", "body": frame(event), "more_body": True})

        broker = self._request.context.broker
        async with watch_disconnect(self._request) as disconnected:
            push = JobPush(
                self._queue,
                self._query,
                disconnected,
                self._request.usage,
                clock=broker.clock,
                timers=broker.timers,
                heartbeat_seconds=self._request.context.config.heartbeat_ms / 1000,
            )
            await push.run(send_event)


async def push_work(request: HttpRequest) -> Response:
    """Push jobs to a worker as server-sent events while it is connected.

    Events are `jobs` (as in the response to a claim), `heartbeat` and `end`. The worker
    acknowledges, returns or extends jobs with separate requests. At most `max` jobs are with the
    worker or on their way to it.
    """
    query = read_query(request, WorkQuery)
    return JobPushResponse(request, queue_of(request), query)


def _end_event(_: HttpRequest) -> bytes:
    """Return the end of a connection whose node failed."""
    return frame(LiveEvent("end", b'{"reason":"stopping"}'))


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/queues/{queue}/work",
        push_work,
        "Push jobs to a worker",
        {HTTPStatus.OK: Media("text/event-stream", "Events: `jobs`, `heartbeat`, `end`")},
        query=WorkQuery,
        tag="queues",
        is_forwarded=True,
        end_event=_end_event,
        access=queue_access(Operation.READ, Operation.READ),
    ),
)

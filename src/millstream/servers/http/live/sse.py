"""`GET /v1/events`: live delivery as server-sent events.

    id: orders@x3Jd0QmnRkK8m2Yv1pTq5w:0:42
    event: records
    data: {"topic":"orders","partition":0,"records":[...],"next":42,"head":42}

Each event is one `send` of its id, and of data that all watchers of the topic share.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from millstream.broker.access.resources import Operation
from millstream.protocols.http.live import EventsQuery
from millstream.records.cursor import CURSOR_LENGTH_MAX
from millstream.servers.http.live.heartbeat_timer import HeartbeatTimer
from millstream.servers.http.live.start_position import StartPosition
from millstream.servers.http.live.subscriber import LiveEvent, LiveSubscriber
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import checked
from millstream.servers.http.routing.operations import HttpOperation, Media, Parameter
from millstream.servers.http.routing.request import HttpRequest

RETRY_MS = 1_000
"""Delay after which a browser reconnects."""

HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


def stream_head() -> Message:
    """Return the head of an event stream.

    It is resumable: a client that does not read is cut off when the node stops, and continues from
    its cursor.
    """
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": list(HEADERS),
        "is_resumable": True,
    }


FIRST = b"retry: %d\n" % RETRY_MS


async def watch_events(request: HttpRequest) -> Response:
    """Watch topics: records are pushed as server-sent events when they are committed.

    The id of an event is a cursor over all topics of the connection. A browser sends it back by
    itself, as `Last-Event-ID`, when it reconnects, and continues from there; other clients pass it
    as `from`. If a topic was deleted and created again since, each partition starts with a gap with
    the reason `recreated`, and then with its first record.
    """
    query = read_query(request, EventsQuery)
    for name in query.topic:
        request.require_topic(Operation.READ, name)
    start = StartPosition(query.from_, request.headers.get("last-event-id"))
    return EventStream(request, query, start)


class EventStream(Response):
    """The response: lasts until the client disconnects, the topics end or the node stops."""

    def __init__(self, request: HttpRequest, query: EventsQuery, start: StartPosition) -> None:
        super().__init__()
        self._request = request
        self._broker = request.context.broker
        self._usage = request.usage
        self._shutdown = request.context.shutdown
        self._live = request.context.live
        self._seconds = request.context.config.heartbeat_ms / 1000
        self._query = query
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow the topics, or raise the reason why not; then send events."""
        with self._request.live_slot():
            await self._follow(scope, receive, send)

    async def _follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        live, query = self._live, self._query
        subscriber = live.enter(is_lasting=False, usage=self._usage)
        try:
            await live.follow(subscriber, query.topic, self._start, query.exclude_node)
            await send(stream_head())
            if scope["method"] != "HEAD":
                live.counters.event_streams += 1
                try:
                    await self._serve(subscriber, receive, send)
                finally:
                    live.counters.event_streams -= 1
            await send({"type": "http.response.body", "body": b""})
        finally:
            live.leave(subscriber)

    async def _serve(self, subscriber: LiveSubscriber, receive: Receive, send: Send) -> None:
        timers = self._broker.timers
        heartbeat = HeartbeatTimer(self._broker.clock, timers, self._seconds, subscriber.beat)
        listening = asyncio.get_running_loop().create_task(_until_disconnected(receive, subscriber))
        self._shutdown.watch(subscriber.stop)
        counters = self._live.counters
        # The first event has the cursor, so that the watcher misses nothing from here on, even if
        # the connection breaks before there is a record.
        first = subscriber.heartbeat()
        event: LiveEvent | None = first
        body = FIRST + frame(first)
        try:
            while event is not None:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                heartbeat.note_sent()
                counters.events += 1
                counters.sent_bytes += len(body)
                subscriber.note_sent(event, len(body))
                event = await subscriber.next_event()
                body = b"" if event is None else frame(event)
        finally:
            self._shutdown.unwatch(subscriber.stop)
            heartbeat.stop()
            listening.cancel()


def frame(event: LiveEvent) -> bytes:
    """Return an event in the SSE format."""
    kind, data, cursor = event
    if cursor is None:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (cursor, kind.encode(), data)


async def _until_disconnected(receive: Receive, subscriber: LiveSubscriber) -> None:
    """Close the subscriber when its client disconnects. Further input is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.close()


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/events",
        watch_events,
        "Watch topics with server-sent events",
        {HTTPStatus.OK: Media("text/event-stream", "Events, until the client disconnects")},
        query=EventsQuery,
        errors=(HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE),
        headers=(
            Parameter(
                "Last-Event-ID",
                "Id of the last event received: continue after it. Takes precedence over `from`.",
                {"type": "string", "maxLength": CURSOR_LENGTH_MAX},
            ),
        ),
        tag="live",
        access=checked("READ on the topics of the query"),
    ),
)

"""State of a follower: live delivery of topics over connections that break.

    connect ─► events, each with a cursor ─► lost ─► pause ─► connect with the cursor ─► ...

The cursor advances with each item that is handed out. A node that is asked to continue at a cursor
sends everything after it, and reports what was deleted since, so nothing is lost. Items before the
cursor are skipped if they arrive again, so nothing is delivered twice. The cursor names its topics:
if one is deleted and created again, the node reports a gap, and following starts over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from millstream.clients.http.core import requests
from millstream.clients.http.core.attempts import Attempts
from millstream.clients.http.core.events import ServerSentEvent, ServerSentEventReader
from millstream.clients.http.core.read_state import position_after
from millstream.clients.http.core.refusal import refusal_of
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.core.responses import decoded, positions_of, record_of
from millstream.clients.http.core.steps import ClientContext
from millstream.clients.http.core.values import Item, TopicGap, TopicState
from millstream.errors import (
    InvalidRequest,
    MalformedAnswer,
    MalformedRequest,
    MillstreamError,
    NodeUnreachable,
    UnknownTopic,
)
from millstream.protocols.http.live import EARLIEST, LATEST, EndData, GapData, RecordsData
from millstream.records.cursor import CursorPosition, decode_cursor, encode_cursor
from millstream.records.record import RECREATED


class FollowState:
    """Position of a follower, and its next action."""

    def __init__(
        self,
        context: ClientContext,
        topics: Sequence[str],
        *,
        from_: str,
        exclude_node: str | None = None,
    ) -> None:
        if not topics:
            raise InvalidRequest("at least one topic must be given")
        self._context = context
        self._topics = tuple(dict.fromkeys(topics))
        self._from = from_
        self._exclude_node = exclude_node
        self._positions = {} if from_ in {EARLIEST, LATEST} else _decode(from_)
        self._attempts: Attempts | None = None
        self._events = self._new_events()

    @property
    def topics_to_ask(self) -> tuple[str, ...]:
        """Topics whose heads must be fetched before following starts.

        `latest` means the time of the call, not of the first connection that succeeds.
        """
        return self._topics if self._from == LATEST and not self._positions else ()

    def start_at(self, states: Sequence[TopicState]) -> None:
        """Start at the heads of the topics."""
        for state in states:
            for partition in state.partitions:
                head = CursorPosition(partition.head, _topic_id(state.id))
                self._positions[state.name, partition.partition] = head

    @property
    def cursor(self) -> str:
        """Position after all items that were handed out.

        It is `earliest` until the first event arrives, if following starts there.
        """
        return encode_cursor(self._positions) if self._positions else self._from

    # Connections.

    def request(self) -> Request:
        """Return the request that opens the next connection."""
        self._events = self._new_events()
        cursor = encode_cursor(self._positions) if self._positions else None
        return requests.get_events(
            self._topics, self._from, last_event_id=cursor, exclude_node=self._exclude_node
        )

    def check_response(self, answer: ClientResponse) -> None:
        """Check the head of the response. Raises if the node refused."""
        refusal = refusal_of(answer)
        if refusal is not None:
            if refusal.is_temporary:
                raise _TemporaryRefusal(refusal.error, refusal.retry_after_s)
            raise refusal.error
        media = answer.headers.get("content-type", "")
        if not media.startswith("text/event-stream"):
            raise MalformedAnswer(f"expected an event stream, got the media type {media[:100]!r}")

    def retry_pause_s(self, error: MillstreamError) -> float:
        """Return how long to wait before the next connection; raises `error` if the time is up.

        The time starts when a connection is lost, and ends with the first event of the next one.
        """
        context = self._context
        now = context.clock.monotonic()
        if self._attempts is None:
            self._attempts = Attempts(context.config, now=now, jitter=context.jitter)
        retry_after_s = error.retry_after_s if isinstance(error, _TemporaryRefusal) else 0.0
        pause_s = self._attempts.pause_s(now, retry_after_s=retry_after_s)
        if pause_s is None:
            raise error.error if isinstance(error, _TemporaryRefusal) else error
        return pause_s

    # Events.

    def feed(self, data: bytes) -> Iterator[Item]:
        """Process bytes of the stream and yield new items, advancing the cursor."""
        for event in self._events.feed(data):
            self._attempts = None
            after = {} if event.id is None else positions_of("event id", event.id)
            for item in self._items(event):
                key = (item.topic, item.partition)
                position = after.get(key) or self._positions.get(key)
                topic_id = None if position is None else position.topic_id
                self._positions[key] = position_after(item, topic_id)
                yield item
            self._positions |= after

    def _items(self, event: ServerSentEvent) -> Iterator[Item]:
        if event.kind == "records":
            page = decoded(event.data, RecordsData)
            for shape in page.records:
                if shape.offset >= self._next_offset(page.topic, page.partition):
                    yield record_of(shape, page.topic, page.partition)
        elif event.kind == "gap":
            gap = decoded(event.data, GapData)
            is_new = gap.to >= self._next_offset(gap.topic, gap.partition)
            if is_new or gap.reason == RECREATED:
                yield TopicGap(gap.topic, gap.partition, gap.from_, gap.to, gap.reason)
        elif event.kind == "end":
            end = decoded(event.data, EndData)
            if end.reason == "stopping":
                raise NodeUnreachable(str(self._context.address), "the node is stopping")
            raise UnknownTopic(f"topic {end.topic} ended: {end.reason}")

    def _next_offset(self, topic: str, partition: int) -> int:
        position = self._positions.get((topic, partition))
        return 0 if position is None else position.offset

    def _new_events(self) -> ServerSentEventReader:
        return ServerSentEventReader(event_size_max=self._context.config.event_size_max)


class _TemporaryRefusal(MillstreamError):
    """A refusal that may be retried. Internal: `error` is raised when time is up."""

    def __init__(self, error: MillstreamError, retry_after_s: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


RETRIABLE = (NodeUnreachable, _TemporaryRefusal)
"""Errors after which a new connection may succeed."""


def _topic_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise MalformedAnswer(f"topic id must be a UUID, got {text[:100]!r}") from None


def _decode(cursor: str) -> dict[tuple[str, int], CursorPosition]:
    try:
        return decode_cursor(cursor)
    except MalformedRequest as error:
        raise InvalidRequest(f"from_: {error}") from None

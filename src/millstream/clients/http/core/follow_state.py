"""Following topics live, over connections that break.

    connect ─► events, each with a cursor ─► lost ─► pause ─► connect with the cursor ─► ...

The cursor moves with what was handed out. A node that is asked to go on from a cursor says what is
new since then, and what is not there any more, so nothing is lost and nothing comes twice. What
lies before the cursor is passed over, should it come again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.clients.http.core import requests
from millstream.clients.http.core.attempts import Attempts
from millstream.clients.http.core.events import ServerSentEvent, ServerSentEventReader
from millstream.clients.http.core.requests import Request
from millstream.clients.http.core.responses import ClientResponse, decoded, record_of, refusal_of
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
from millstream.protocols.http.cursors import decode_cursor, encode_cursor
from millstream.protocols.http.live import EARLIEST, LATEST, EndData, GapData, RecordsData


class FollowState:
    """Where a follower stands, and what it has to do next."""

    def __init__(
        self,
        around: ClientContext,
        topics: Sequence[str],
        *,
        from_: str,
        exclude_node: str | None = None,
    ) -> None:
        if not topics:
            raise InvalidRequest("there is no topic to follow")
        self._around = around
        self._topics = tuple(dict.fromkeys(topics))
        self._from = from_
        self._exclude_node = exclude_node
        self._places = {} if from_ in {EARLIEST, LATEST} else _decode(from_)
        self._attempts: Attempts | None = None
        self._events = self._new_events()

    @property
    def topics_to_ask(self) -> tuple[str, ...]:
        """Topics whose heads have to be known before it begins.

        `latest` means now, and not when a connection is first made that does not break.
        """
        return self._topics if self._from == LATEST and not self._places else ()

    def begin_at(self, states: Sequence[TopicState]) -> None:
        """Begin at the heads of the topics."""
        for state in states:
            for one in state.partitions:
                self._places[state.name, one.partition] = one.head

    @property
    def cursor(self) -> str:
        """Where to go on: all that was handed out lies before.

        It is `earliest` until the first event came, where it was to begin there.
        """
        return encode_cursor(self._places) if self._places else self._from

    # Connections.

    def request(self) -> Request:
        """Return the request that opens the next connection."""
        self._events = self._new_events()
        cursor = encode_cursor(self._places) if self._places else None
        return requests.get_events(
            self._topics, self._from, last_event_id=cursor, exclude_node=self._exclude_node
        )

    def opened(self, answer: ClientResponse) -> None:
        """Take what a node answered before its events: raises where it refuses."""
        refusal = refusal_of(answer)
        if refusal is not None:
            if refusal.is_temporary:
                raise _NotNow(refusal.error, refusal.retry_after_s)
            raise refusal.error
        media = answer.headers.get("content-type", "")
        if not media.startswith("text/event-stream"):
            raise MalformedAnswer(f"events are of the media type {media[:100]!r}")

    def lost(self, error: MillstreamError) -> float:
        """Return how long to wait before the next connection; raises where time is up.

        Time begins when a connection is lost, and ends with the first event of the next one.
        """
        around = self._around
        now = around.clock.monotonic()
        if self._attempts is None:
            self._attempts = Attempts(around.config, now=now, chance=around.chance)
        retry_after_s = error.retry_after_s if isinstance(error, _NotNow) else 0.0
        pause_s = self._attempts.pause_s(now, retry_after_s=retry_after_s)
        if pause_s is None:
            raise error.error if isinstance(error, _NotNow) else error
        return pause_s

    # Events.

    def feed(self, data: bytes) -> Iterator[Item]:
        """Take bytes of the stream, and hand out what is new; the cursor moves along."""
        for event in self._events.feed(data):
            self._attempts = None
            for item in self._items(event):
                self._passed(item)
                yield item
            if event.id is not None:
                self._places |= _decode_answer(event.id)

    def _items(self, event: ServerSentEvent) -> Iterator[Item]:
        if event.kind == "records":
            found = decoded(event.data, RecordsData)
            for shape in found.records:
                if shape.offset >= self._places.get((found.topic, found.partition), 0):
                    yield record_of(shape, found.topic, found.partition)
        elif event.kind == "gap":
            gap = decoded(event.data, GapData)
            if gap.to >= self._places.get((gap.topic, gap.partition), 0):
                yield TopicGap(gap.topic, gap.partition, gap.from_, gap.to, gap.reason)
        elif event.kind == "end":
            end = decoded(event.data, EndData)
            if end.reason == "stopping":
                raise NodeUnreachable(str(self._around.address), "the node is stopping")
            raise UnknownTopic(f"{end.topic} came to its end: {end.reason}")

    def _passed(self, item: Item) -> None:
        after = item.to_offset if isinstance(item, TopicGap) else item.offset
        self._places[item.topic, item.partition] = after + 1

    def _new_events(self) -> ServerSentEventReader:
        return ServerSentEventReader(event_size_max=self._around.config.event_size_max)


class _NotNow(MillstreamError):
    """The node refuses for now. Never leaves this module: `error` does, when time is up."""

    def __init__(self, error: MillstreamError, retry_after_s: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


RETRIABLE = (NodeUnreachable, _NotNow)
"""After these, another connection may do."""


def _decode(cursor: str) -> dict[tuple[str, int], int]:
    try:
        return decode_cursor(cursor)
    except MalformedRequest as error:
        raise InvalidRequest(f"from_: {error}") from None


def _decode_answer(cursor: str) -> dict[tuple[str, int], int]:
    try:
        return decode_cursor(cursor)
    except MalformedRequest as error:
        raise MalformedAnswer(f"id of an event: {error}") from None

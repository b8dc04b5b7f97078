"""State of a reader: pages of a topic from a cursor up to its head.

The head is the one seen when reading of a partition starts, so a read ends even while others
append. The cursor advances with the items that were handed out, not with the pages that were
fetched: a reader that stops anywhere can continue there. It names its topic: if that is deleted and
created again, the next page starts with a gap, and reading starts over.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from millstream.clients.http.core import requests
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.core.responses import PartitionPage, page_of
from millstream.clients.http.core.values import Item, TopicGap
from millstream.errors import InvalidRequest, MalformedAnswer, MalformedRequest
from millstream.records.cursor import CursorPosition, decode_cursor, encode_cursor
from millstream.records.record import RECREATED


class PageOptions(NamedTuple):
    """Limits of a page."""

    limit: int = 1_000
    """Maximum number of records."""
    bytes_max: int = 1024 * 1024
    """Maximum bytes of keys and values; a single record may be larger."""
    exclude_node: str | None = None


class ReadState:
    """Position of a reader of one topic, and its next request."""

    def __init__(
        self, topic: str, partitions: Sequence[int], from_: int | str, options: PageOptions
    ) -> None:
        self._topic = topic
        self._options = options
        self._positions = _start_positions(topic, partitions, from_)
        self._remaining = list(self._positions)
        """Partitions that were not read up to their heads."""
        self._head: int | None = None
        """Head of the current partition when reading of it started."""
        self._topic_id: uuid.UUID | None = None
        """Topic of the current page."""

    @property
    def cursor(self) -> str:
        """Position after all items that were handed out."""
        return encode_cursor(
            {(self._topic, partition): at for partition, at in self._positions.items()}
        )

    def next_request(self) -> Request | None:
        """Return the request for the next page; `None` at the end."""
        if not self._remaining:
            return None
        partition = self._remaining[0]
        position = self._positions[partition]
        start: Any = position.offset
        if position.topic_id is not None:
            start = encode_cursor({(self._topic, partition): position})
        return requests.get_records(
            self._topic,
            partition=partition,
            limit=self._options.limit,
            max_bytes=self._options.bytes_max,
            exclude_node=self._options.exclude_node,
            **{"from": start},
        )

    def take(self, answer: ClientResponse) -> PartitionPage:
        """Decode a page. The caller calls `advance` for each item, then `finish` for the page."""
        partition = self._remaining[0]
        page = page_of(answer, self._topic, partition)
        _check(page, 0 if page.is_of_new_topic else self._positions[partition].offset)
        if self._head is None or page.is_of_new_topic:
            self._head = page.head
        self._topic_id = page.next_position.topic_id
        return page

    def advance(self, item: Item) -> None:
        """Move the cursor past an item that was handed out."""
        self._positions[item.partition] = position_after(item, self._topic_id)

    def finish(self, page: PartitionPage) -> None:
        """Move the cursor past a page whose items were all handed out."""
        partition = self._remaining[0]
        assert self._head is not None
        # Readers do not get past an open transaction; a read ends there instead of waiting.
        next_offset = page.next_position.offset
        is_stuck = not page.records and next_offset == self._positions[partition].offset
        self._positions[partition] = page.next_position
        if next_offset >= self._head or is_stuck:
            self._remaining.pop(0)
            self._head = None


def position_after(item: Item, topic_id: uuid.UUID | None) -> CursorPosition:
    """Return the position after an item of the topic with this id."""
    if not isinstance(item, TopicGap):
        return CursorPosition(item.offset + 1, topic_id)
    return CursorPosition(0 if item.reason == RECREATED else item.to_offset + 1, topic_id)


def _check(page: PartitionPage, from_offset: int) -> None:
    """Raise unless the page starts at or after `from_offset` and is in order."""
    offset = from_offset
    for record in page.records:
        if record.offset < offset:
            raise MalformedAnswer(
                f"response has offset {record.offset}, expected {offset} or later"
            )
        offset = record.offset + 1
    if (next_offset := page.next_position.offset) < offset:
        raise MalformedAnswer(
            f"response continues at offset {next_offset}, but its records end at {offset}"
        )


def _start_positions(
    topic: str, partitions: Sequence[int], from_: int | str
) -> dict[int, CursorPosition]:
    if isinstance(from_, int):
        if from_ and len(partitions) > 1:
            raise InvalidRequest(
                f"from_ is {from_}: partition must be set, because {topic} has {len(partitions)}"
                " partitions; or pass a cursor"
            )
        if from_ < 0:
            raise InvalidRequest(f"from_ must be an offset of at least 0 or a cursor, got {from_}")
        return dict.fromkeys(partitions, CursorPosition(from_))
    try:
        decoded = decode_cursor(from_)
    except MalformedRequest as error:
        raise InvalidRequest(f"from_: {error}") from None
    positions = {index: at for (name, index), at in decoded.items() if name == topic}
    # A partition that the cursor does not have was created since, in the same topic.
    ids = [position.topic_id for position in positions.values()]
    start = CursorPosition(0, ids[0] if ids else None)
    return {partition: positions.get(partition, start) for partition in partitions}

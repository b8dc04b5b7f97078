"""State of a reader: pages of a topic from a cursor up to its head.

The head is the one seen when reading of a partition starts, so a read ends even while others
append. The cursor advances with the items that were handed out, not with the pages that were
fetched: a reader that stops anywhere can continue there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.clients.http.core import requests
from millstream.clients.http.core.requests import Request
from millstream.clients.http.core.responses import ClientResponse, PartitionPage, page_of
from millstream.clients.http.core.values import Item, TopicGap
from millstream.errors import InvalidRequest, MalformedAnswer, MalformedRequest
from millstream.protocols.http.cursors import decode_cursor, encode_cursor


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
        self._offsets = _start_offsets(topic, partitions, from_)
        self._remaining = list(self._offsets)
        """Partitions that were not read up to their heads."""
        self._head: int | None = None
        """Head of the current partition when reading of it started."""

    @property
    def cursor(self) -> str:
        """Position after all items that were handed out."""
        return encode_cursor(
            {(self._topic, partition): offset for partition, offset in self._offsets.items()}
        )

    def next_request(self) -> Request | None:
        """Return the request for the next page; `None` at the end."""
        if not self._remaining:
            return None
        partition = self._remaining[0]
        return requests.get_records(
            self._topic,
            partition=partition,
            limit=self._options.limit,
            max_bytes=self._options.bytes_max,
            exclude_node=self._options.exclude_node,
            **{"from": self._offsets[partition]},
        )

    def take(self, answer: ClientResponse) -> PartitionPage:
        """Decode a page. The caller calls `advance` for each item, then `finish` for the page."""
        partition = self._remaining[0]
        page = page_of(answer, self._topic, partition)
        _check(page, self._offsets[partition])
        if self._head is None:
            self._head = page.head
        return page

    def advance(self, item: Item) -> None:
        """Move the cursor past an item that was handed out."""
        after = item.to_offset if isinstance(item, TopicGap) else item.offset
        self._offsets[item.partition] = after + 1

    def finish(self, page: PartitionPage) -> None:
        """Move the cursor past a page whose items were all handed out."""
        partition = self._remaining[0]
        assert self._head is not None
        # Readers do not get past an open transaction; a read ends there instead of waiting.
        is_stuck = not page.records and page.next_offset == self._offsets[partition]
        self._offsets[partition] = page.next_offset
        if page.next_offset >= self._head or is_stuck:
            self._remaining.pop(0)
            self._head = None


def _check(page: PartitionPage, from_offset: int) -> None:
    """Raise unless the page starts at or after `from_offset` and is in order."""
    offset = from_offset
    for record in page.records:
        if record.offset < offset:
            raise MalformedAnswer(
                f"response has offset {record.offset}, expected {offset} or later"
            )
        offset = record.offset + 1
    if page.next_offset < offset:
        raise MalformedAnswer(
            f"response continues at offset {page.next_offset}, but its records end at {offset}"
        )


def _start_offsets(topic: str, partitions: Sequence[int], from_: int | str) -> dict[int, int]:
    if isinstance(from_, int):
        if from_ and len(partitions) > 1:
            raise InvalidRequest(
                f"from_ is {from_}: partition must be set, because {topic} has {len(partitions)}"
                " partitions; or pass a cursor"
            )
        if from_ < 0:
            raise InvalidRequest(f"from_ must be an offset of at least 0 or a cursor, got {from_}")
        return dict.fromkeys(partitions, from_)
    try:
        offsets = decode_cursor(from_)
    except MalformedRequest as error:
        raise InvalidRequest(f"from_: {error}") from None
    return {partition: offsets.get((topic, partition), 0) for partition in partitions}

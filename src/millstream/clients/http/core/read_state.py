"""The difference of a topic from a cursor on, page by page, until its head.

The head is the one that was there when the reading of a partition began, so a reading ends though
others go on appending. The cursor moves with what was handed out, and not with what was fetched:
who stops anywhere goes on there.
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
    """What is asked of a page."""

    limit: int = 1_000
    """Records in one page."""
    bytes_max: int = 1024 * 1024
    """Bytes of keys and values in one page; one record may be larger."""
    exclude_node: str | None = None


class ReadState:
    """Where a reader of one topic stands, and what it has to ask for next."""

    def __init__(
        self, topic: str, partitions: Sequence[int], from_: int | str, which: PageOptions
    ) -> None:
        self._topic = topic
        self._which = which
        self._places = _places(topic, partitions, from_)
        self._left = list(self._places)
        """Partitions that were not read to their heads."""
        self._head: int | None = None
        """That of the partition that is being read, when it began."""

    @property
    def cursor(self) -> str:
        """Where to go on: all that was handed out lies before."""
        return encode_cursor({(self._topic, one): at for one, at in self._places.items()})

    def next_request(self) -> Request | None:
        """Return the request for the next page; nothing where all was read."""
        if not self._left:
            return None
        partition = self._left[0]
        return requests.get_records(
            self._topic,
            partition=partition,
            limit=self._which.limit,
            max_bytes=self._which.bytes_max,
            exclude_node=self._which.exclude_node,
            **{"from": self._places[partition]},
        )

    def take(self, answer: ClientResponse) -> PartitionPage:
        """Read a page; each of its items is `passed` as it is handed out, and then the page."""
        partition = self._left[0]
        page = page_of(answer, self._topic, partition)
        _check(page, self._places[partition])
        if self._head is None:
            self._head = page.head
        return page

    def passed(self, item: Item) -> None:
        """Take note that an item was handed out."""
        after = item.to_offset if isinstance(item, TopicGap) else item.offset
        self._places[item.partition] = after + 1

    def finish(self, page: PartitionPage) -> None:
        """Take note that all of a page was handed out."""
        partition = self._left[0]
        assert self._head is not None
        # An open transaction keeps readers from the head: what is behind it waits for its end.
        is_stuck = not page.records and page.next_offset == self._places[partition]
        self._places[partition] = page.next_offset
        if page.next_offset >= self._head or is_stuck:
            self._left.pop(0)
            self._head = None


def _check(page: PartitionPage, from_offset: int) -> None:
    """Raise unless a page goes on where it was asked to, in order."""
    offset = from_offset
    for record in page.records:
        if record.offset < offset:
            raise MalformedAnswer(f"node gave offset {record.offset} from {offset} on")
        offset = record.offset + 1
    if page.next_offset < offset:
        raise MalformedAnswer(f"node goes on at {page.next_offset}, records end at {offset}")


def _places(topic: str, partitions: Sequence[int], from_: int | str) -> dict[int, int]:
    if isinstance(from_, int):
        if from_ and len(partitions) > 1:
            raise InvalidRequest(
                f"from_ is {from_}, and {topic} has {len(partitions)} partitions: needed is"
                " partition, or the cursor of a reading"
            )
        if from_ < 0:
            raise InvalidRequest(f"from_ is {from_}, allowed is an offset from 0, or a cursor")
        return dict.fromkeys(partitions, from_)
    try:
        found = decode_cursor(from_)
    except MalformedRequest as error:
        raise InvalidRequest(f"from_: {error}") from None
    return {one: found.get((topic, one), 0) for one in partitions}

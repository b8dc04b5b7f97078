"""Reading and printing of a topic for `topic tail`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import click

from millstream.cli.support.output import printable
from millstream.cli.support.record_lines import json_line, shown, text_line
from millstream.clients.http.core.values import Item, PartitionState, TopicGap, TopicRecord
from millstream.errors import UnknownTopic
from millstream.records.cursor import CursorPosition, encode_cursor
from millstream.records.record import RECREATED

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client

_POLICIES = {
    "age": "retention, by age",
    "bytes": "retention, by size",
    "records": "retention, by record count",
}
"""What deleted the records of a gap, by its reason."""

Print: TypeAlias = Callable[[TopicRecord], None]


class TopicTail:
    """Reads a topic from a start position."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        start: str,
        follows: bool,
        limit: int | None,
        partition: int | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._follows = follows
        self._left = limit
        self._partition = partition

    def run(self, show: Print) -> None:
        """Print records until the limit or the end; report gaps."""
        for item in self._items():
            if self._partition not in (None, item.partition):
                continue
            if isinstance(item, TopicGap):
                _tell_gap(item)
                continue
            show(item)
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    return

    def _items(self) -> Iterator[Item]:
        cursor = encode_cursor(self._positions())
        if not self._follows:
            yield from self._client.read(self._topic, from_=cursor, partition=self._partition)
            return
        with self._client.follow(self._topic, from_=cursor) as follower:
            yield from follower

    def _positions(self) -> dict[tuple[str, int], CursorPosition]:
        """Return the start of each partition; unselected partitions start at the end."""
        topic = self._client.topic(self._topic).describe()
        partitions, topic_id = topic.partitions, uuid.UUID(topic.id)
        if self._partition is not None and self._partition >= len(partitions):
            raise UnknownTopic(
                f"{self._topic} has partitions 0-{len(partitions) - 1}, got {self._partition}"
            )
        is_offset = self._start.isdigit()
        if is_offset and self._partition is None and len(partitions) > 1:
            raise click.UsageError(
                f"{self._topic} has {len(partitions)} partitions: an offset requires --partition"
            )
        return {
            (self._topic, state.partition): CursorPosition(
                self._start_offset(state)
                if self._partition in (None, state.partition)
                else state.head,
                topic_id,
            )
            for state in partitions
        }

    def _start_offset(self, state: PartitionState) -> int:
        if self._start == "latest":
            return state.head
        if self._start == "earliest":
            return 0  # Not the first live offset: the gap before it is reported.
        if self._start.startswith("-"):
            return max(state.first_live_offset, state.head + int(self._start))
        return int(self._start)


def printer(*, is_values: bool, as_json: bool) -> Print:
    """Return the function that prints a record."""
    if as_json:
        return lambda record: click.echo(json_line(record).encode())
    if not is_values:
        return lambda record: click.echo(text_line(record))
    if sys.stdout.isatty():
        return lambda record: click.echo(shown(record.raw or b""))
    return lambda record: click.echo(record.raw or b"")


def _tell_gap(gap: TopicGap) -> None:
    if gap.reason == RECREATED:
        text = f"partition {gap.partition}: the topic was deleted and created again"
    else:
        text = (
            f"partition {gap.partition}: offsets {gap.from_offset}-{gap.to_offset} were deleted by"
            f" {_POLICIES.get(gap.reason, gap.reason)}"
        )
    click.echo(printable(text), err=True)

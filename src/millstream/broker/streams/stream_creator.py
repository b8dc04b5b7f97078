"""Making streams: plain ones, such that begin with records, and forks.

The row of a plain stream is put before its topic is created, and names the topic's id, which was
drawn before: a row whose topic is not there is a stream that is gone. One that has records from the
beginning, or inherits some, has a row in the state `making` until all of them are there; what is
found in that state when the node starts goes, with the topic of that id and no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from millstream.broker.partition.partition import Partition
from millstream.broker.streams.create_stream import (
    ClockReading,
    CreateStream,
    is_json,
    new_stream_row,
)
from millstream.broker.streams.fork_copy import FORK_BYTES_MAX, ForkCopy
from millstream.broker.streams.paths import topic_of_path
from millstream.broker.streams.registry import StreamRegistry
from millstream.broker.streams.row import StreamRow, encode, row_key
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.writers import WriteMark
from millstream.broker.topics.configs.topic_config import NO_LIMIT
from millstream.broker.topics.configs.topic_settings import RETENTION_MS
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.errors import StreamExists, UnknownStream, UnknownTopic, UnknownTopicId

MESSAGE_BYTES = "max.message.bytes"


class StreamCreator:
    """Makes streams, and takes back what was not finished."""

    def __init__(self, registry: StreamRegistry, topics: Topics, *, clock: Clock) -> None:
        self.fork_bytes_max = FORK_BYTES_MAX
        self.is_stopping: Callable[[], bool] = lambda: False
        self._registry = registry
        self._topics = topics
        self._clock = clock

    async def make(
        self,
        path: str,
        asked: CreateStream,
        source: DurableStream | None,
        values: Sequence[bytes],
        *,
        steady_ms: int,
        message_bytes_max: int,
    ) -> DurableStream:
        """Make a stream that is not there; durable, and readable, when this returns."""
        row = new_stream_row(
            asked,
            source,
            topic=topic_of_path(path),
            topic_id=self._topics.new_id(),
            now=ClockReading(self._clock.wall_ms(), steady_ms),
        )
        if self._topics.find(row.topic) is not None:
            raise StreamExists(f"there is a topic {row.topic!r}, and it is not that of this stream")
        is_plain = not values and not asked.is_closed and source is None
        if not is_plain:
            row = msgspec.structs.replace(row, state="making")
        self._registry.refer(path, row)
        try:
            await self._registry.state.put([(row_key(path), encode(row))])
            partition = await self._create_topic(row, message_bytes_max)
            if source is not None:
                row = await self._inherit(row, source, partition)
            stream = DurableStream(path, row, partition, self._registry.state, clock=self._clock)
            if not is_plain:
                await self._fill(stream, values, is_closed=asked.is_closed)
        except BaseException:
            await self.unmake(path, row, [])
            raise
        return stream

    async def _create_topic(self, row: StreamRow, message_bytes_max: int) -> Partition:
        topic = await self._topics.create(
            row.topic,
            partitions=1,
            topic_id=row.topic_id,
            configs={RETENTION_MS: str(NO_LIMIT), MESSAGE_BYTES: str(message_bytes_max)},
        )
        return topic.partition(0)

    async def _inherit(
        self, row: StreamRow, source: DurableStream, partition: Partition
    ) -> StreamRow:
        """Copy what a fork inherits. Where it goes on, it counts as the source does."""
        fork = row.fork
        assert fork is not None
        await partition.open()
        copy = ForkCopy(
            source,
            partition,
            clock=self._clock,
            is_stopping=self.is_stopping,
            size_max=self.fork_bytes_max,
        )
        end_offset = fork.offset - source.row.shift
        count = await copy.until(end_offset)
        if fork.sub_offset:
            await copy.more(end_offset, fork.sub_offset, is_json=is_json(row.content_type))
        return msgspec.structs.replace(row, shift=fork.offset - count)

    async def _fill(
        self, stream: DurableStream, values: Sequence[bytes], *, is_closed: bool
    ) -> None:
        """Append what a stream begins with; then, and not before, it is there."""
        if values:
            await stream.append(values, WriteMark(is_closing=is_closed))
        elif is_closed:
            await stream.close(WriteMark(is_closing=True))
        stream.row = msgspec.structs.replace(stream.row, state="live")
        await self._registry.state.put([(row_key(stream.path), encode(stream.row))])
        if self._topics.find(stream.row.topic) is None:
            raise UnknownStream(f"the topic of stream {stream.path[:300]!r} was deleted")

    async def unmake(self, path: str, row: StreamRow | None, producers: Sequence[str]) -> None:
        """Take back a stream that was not finished."""
        if row is not None:
            with contextlib.suppress(UnknownTopic, UnknownTopicId):
                await self._topics.delete(row.topic, topic_id=row.topic_id)
        self._registry.forget(path, row, producers)
        await self._registry.settled()

"""Creating streams: plain ones, those with initial records, and forks.

The row of a plain stream is stored before its topic is created, and contains the topic's id, which
was chosen before: a row without its topic is a deleted stream. A stream with initial or inherited
records has a row in the state `making` until all of them are stored; a stream in that state is
removed when the node starts, with the topic of that id and no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from millstream.broker.access.caller import Caller
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
from millstream.broker.streams.stream_factory import StreamFactory
from millstream.broker.streams.writers import WriteMark
from millstream.broker.topics.configs.topic_config import NO_LIMIT
from millstream.broker.topics.configs.topic_settings import RETENTION_MS
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.errors import StreamExists, UnknownStream, UnknownTopic, UnknownTopicId

MESSAGE_BYTES = "max.message.bytes"


class StreamCreator:
    """Creates streams, and removes those that were not completed."""

    def __init__(
        self,
        registry: StreamRegistry,
        topics: Topics,
        *,
        clock: Clock,
        appends: RecordAppender,
        factory: StreamFactory,
    ) -> None:
        self.fork_bytes_max = FORK_BYTES_MAX
        self.is_stopping: Callable[[], bool] = lambda: False
        self._registry = registry
        self._topics = topics
        self._clock = clock
        self._appends = appends
        self._factory = factory

    async def create(
        self,
        path: str,
        request: CreateStream,
        source: DurableStream | None,
        values: Sequence[bytes],
        *,
        retention_ms: int,
        message_bytes_max: int,
        creator: Caller | None = None,
    ) -> DurableStream:
        """Create a stream that does not exist; durable, and readable, when this returns."""
        row = new_stream_row(
            request,
            source,
            topic=topic_of_path(path),
            topic_id=self._topics.new_id(),
            now=ClockReading(self._clock.wall_ms(), retention_ms),
        )
        if self._topics.find(row.topic) is not None:
            raise StreamExists(f"topic {row.topic!r} exists and belongs to no stream of this path")
        is_plain = not values and not request.is_closed and source is None
        if not is_plain:
            row = msgspec.structs.replace(row, state="making")
        self._registry.add_fork(path, row)
        try:
            await self._registry.state.put([(row_key(path), encode(row))])
            partition = await self._create_topic(row, message_bytes_max, creator)
            if source is not None:
                row = await self._inherit(row, source, partition)
            stream = self._factory.make(path, row, partition)
            if not is_plain:
                await self._fill(stream, values, is_closed=request.is_closed)
        except BaseException:
            await self.undo_create(path, row, [])
            raise
        return stream

    async def _create_topic(
        self, row: StreamRow, message_bytes_max: int, creator: Caller | None
    ) -> Partition:
        topic = await self._topics.create(
            row.topic,
            partitions=1,
            topic_id=row.topic_id,
            configs={RETENTION_MS: str(NO_LIMIT), MESSAGE_BYTES: str(message_bytes_max)},
            creator=creator,
        )
        return topic.partition(0)

    async def _inherit(
        self, row: StreamRow, source: DurableStream, partition: Partition
    ) -> StreamRow:
        """Copy the inherited records of a fork; its offsets continue those of the source."""
        fork = row.fork
        assert fork is not None
        copy = ForkCopy(
            source,
            partition,
            clock=self._clock,
            appends=self._appends,
            is_stopping=self.is_stopping,
            size_max=self.fork_bytes_max,
        )
        end_offset = fork.offset - source.row.shift
        count = await copy.copy_until(end_offset)
        if fork.sub_offset:
            await copy.copy_more(end_offset, fork.sub_offset, is_json=is_json(row.content_type))
        return msgspec.structs.replace(row, shift=fork.offset - count)

    async def _fill(
        self, stream: DurableStream, values: Sequence[bytes], *, is_closed: bool
    ) -> None:
        """Append the initial records of a stream; it exists only after that."""
        if values:
            await stream.append(values, WriteMark(is_closing=is_closed))
        elif is_closed:
            await stream.close(WriteMark(is_closing=True))
        stream.row = msgspec.structs.replace(stream.row, state="live")
        await self._registry.state.put([(row_key(stream.path), encode(stream.row))])
        if self._topics.find(stream.row.topic) is None:
            raise UnknownStream(f"the topic of stream {stream.path[:300]!r} was deleted")

    async def undo_create(self, path: str, row: StreamRow | None, producers: Sequence[str]) -> None:
        """Remove a stream that was not completed."""
        if row is not None:
            with contextlib.suppress(UnknownTopic, UnknownTopicId):
                await self._topics.delete(row.topic, topic_id=row.topic_id)
        self._registry.remove(path, row, producers)
        await self._registry.settled()

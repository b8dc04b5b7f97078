"""All streams of a node: topics with one partition, and a row each that says what else they are.

Deleting a stream deletes its topic, and deleting its topic, through whichever door, deletes it. The
row follows; where a crash came between, it does when the node starts. An expired stream is gone at
once for whoever asks, and deleted soon after. Changes of one path happen one after the other, each
to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.counters import StreamCounters
from millstream.broker.streams.create_stream import DEFAULT_TYPE, CreateStream, check_same
from millstream.broker.streams.expiry import ExpiryClock, StreamDeadlines
from millstream.broker.streams.paths import check_path
from millstream.broker.streams.registry import StreamRegistry
from millstream.broker.streams.row import StoredStream, StreamRow, decode_all, encode, row_key
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.stream_creator import StreamCreator
from millstream.broker.topics.topic import KeyedLocks, TopicChange, TopicEvent
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock, Timers
from millstream.errors import (
    MillstreamError,
    StreamExists,
    StreamGone,
    UnknownStream,
    UnknownTopic,
    UnknownTopicId,
)

logger = logging.getLogger(__name__)


class DurableStreams:
    """The streams of a node. One event loop owns them."""

    def __init__(
        self, state: StateLog, topics: Topics, *, clock: Clock, timers: Timers, steady: ExpiryClock
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._steady = steady
        self._registry = StreamRegistry(state, clock=clock, steady=steady)
        self._making = StreamCreator(self._registry, topics, clock=clock)
        self._making.is_stopping = lambda: self.is_stopping
        self._turns = KeyedLocks()
        self._deadlines = StreamDeadlines(clock, timers, self._look)
        self._expiring: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[Callable[[], None]] = set()
        self._unhook: Callable[[], None] = lambda: None
        self.is_stopping = False
        self.counters = StreamCounters()

    # Opening and closing.

    async def open(self) -> None:
        """Read all rows, and finish what a crash left. The topics have to be open."""
        registry = self._registry
        lost: list[tuple[str, StreamRow, StoredStream]] = []
        for path, stored in decode_all(registry.state.entries).items():
            row = stored.row
            if row is None or row.state == "making":
                await self._making.unmake(path, row, list(stored.producers))
                continue
            registry.refer(path, row)
            topic = self._topics.find(row.topic)
            if row.state == "deleted":
                registry.deleted[path] = row
            elif topic is None or topic.id != row.topic_id:
                lost.append((path, row, stored))
            else:
                self._add(self._stream(path, row, stored))
        for path, row, stored in lost:
            registry.forget(path, row, list(stored.producers))
        for path in [path for path in registry.deleted if not registry.has_forks(path)]:
            if path in registry.deleted:
                registry.forget(path, registry.deleted[path], [])
        await registry.settled()
        self._unhook = self._topics.on_change(self._note_topic)

    def _stream(self, path: str, row: StreamRow, stored: StoredStream) -> DurableStream:
        partition = self._topics.get(row.topic).partition(0)
        state = self._registry.state
        return DurableStream(path, row, partition, state, clock=self._clock, stored=stored)

    def _add(self, stream: DurableStream) -> None:
        left = self._registry.add(stream).left()
        if left is not None:
            self._deadlines.set(stream.path, left)

    async def close(self) -> None:
        """Let changes come to their end, and put checkpoints: the next start then reads little."""
        self.end_waits()
        self._deadlines.stop()
        await self._turns.close()
        if self._expiring:
            await asyncio.wait(self._expiring.values())
        self._unhook()
        for stream in self._registry.streams.values():
            if stream.has_unsaved:
                try:
                    await stream.save()
                except MillstreamError as error:  # What a crash would leave is enough.
                    logger.warning("stream %r: no checkpoint was put: %s", stream.path, error)

    # Looking.

    def get(self, path: str) -> DurableStream:
        """Return a stream; raises `UnknownStream`, or `StreamGone` where it has forks."""
        stream = self._registry.streams.get(path)
        if stream is not None and not self._registry.lives[path].is_over:
            return stream
        if stream is not None:
            self._expire(path)
        if self._registry.has_forks(path):
            raise StreamGone(f"stream {path[:300]!r} was deleted or has expired, and has forks")
        raise UnknownStream(f"there is no stream {path[:300]!r}")

    def all(self) -> list[DurableStream]:
        """Return all streams, by their paths."""
        return [stream for _, stream in sorted(self._registry.streams.items())]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._registry.streams)

    @property
    def waiting_count(self) -> int:
        """How many readers wait for something new."""
        return len(self._waiting)

    def use(self, stream: DurableStream) -> None:
        """Take note that a stream was read or written: its time to live begins anew."""
        life = self._registry.lives.get(stream.path)
        if life is None or stream.is_gone or (touched_ms := life.touch()) is None:
            return
        stream.row = msgspec.structs.replace(stream.row, touched_ms=touched_ms)
        self._registry.put([(row_key(stream.path), encode(stream.row))])

    @contextlib.contextmanager
    def reading(self, stream: DurableStream, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` when something is new, or the node stops, for as long as the block lasts.

        A stream that is read so is in use, and does not expire for not being.
        """
        life = self._registry.lives.get(stream.path)
        if life is None:
            raise UnknownStream(f"there is no stream {stream.path[:300]!r}")
        life.readers += 1
        stream.watch(wake)
        self._waiting.add(wake)
        try:
            yield
        finally:
            self._waiting.discard(wake)
            stream.unwatch(wake)
            life.readers -= 1
            self.use(stream)

    def end_waits(self) -> None:
        """Have all who wait for something new return at once: the node stops."""
        self.is_stopping = True
        for wake in tuple(self._waiting):
            wake()

    # Creating.

    def content_type_of(self, path: str, asked: CreateStream) -> str:
        """Return the type that a stream has, or would have if it were created now."""
        if asked.content_type is not None:
            return asked.content_type
        for name in (path, asked.fork.source if asked.fork is not None else path):
            with contextlib.suppress(UnknownStream, StreamGone):
                return self.get(name).row.content_type
        return DEFAULT_TYPE

    async def create(
        self, path: str, asked: CreateStream, values: Sequence[bytes], *, message_bytes_max: int
    ) -> tuple[DurableStream, bool]:
        """Create a stream that begins with `values`; return it, and whether it is new.

        Where there is one that is what was asked for, nothing is appended to it; where it is
        something else, that raises `StreamExists`. Durable when this returns.
        """
        check_path(path)
        return await self._turns.run(path, self._create(path, asked, values, message_bytes_max))

    async def _create(
        self, path: str, asked: CreateStream, values: Sequence[bytes], message_bytes_max: int
    ) -> tuple[DurableStream, bool]:
        registry = self._registry
        if path in registry.streams and registry.lives[path].is_over:
            await self._delete(path)
        if path in registry.deleted:
            raise StreamExists(f"stream {path[:300]!r} was deleted, and has forks")
        if (there := registry.streams.get(path)) is not None:
            await there.open()
            check_same(there, asked)
            return there, False
        made = await self._making.make(
            path,
            asked,
            await self._source(asked),
            values,
            steady_ms=self._steady.now_ms(),
            message_bytes_max=message_bytes_max,
        )
        self._add(made)
        self.counters.created += 1
        await made.open()
        return made, True

    async def _source(self, asked: CreateStream) -> DurableStream | None:
        """Return what is to be forked, open."""
        if asked.fork is None:
            return None
        try:
            source = self.get(asked.fork.source)
        except StreamGone as error:
            raise StreamExists(str(error)) from None
        await source.open()
        return source

    # Deleting.

    async def delete(self, path: str) -> None:
        """Delete a stream and its records; durable when this returns."""
        self.get(path)
        await self._turns.run(path, self._delete_if_there(path))

    async def _delete_if_there(self, path: str) -> None:
        self.get(path)
        await self._delete(path)

    async def _delete(self, path: str) -> None:
        row = self._registry.streams[path].row
        with contextlib.suppress(UnknownTopic, UnknownTopicId):
            await self._topics.delete(row.topic, topic_id=row.topic_id)
        await self._registry.settled()

    def _note_topic(self, change: TopicChange) -> None:
        """Have a stream be gone whose topic is."""
        if change.event is not TopicEvent.DELETED:
            return
        stream = self._registry.of_topic(change.topic.name)
        if stream is not None and stream.row.topic_id == change.topic.id:
            self.counters.deleted += 1
            self._registry.forget(stream.path, stream.row, [])

    # Expiring.

    def _look(self, path: str) -> None:
        """Delete a stream that has expired, or look again later."""
        life = self._registry.lives.get(path)
        left = None if life is None else life.left()
        if left is None:
            return
        if left <= 0:
            self._expire(path)
        else:
            self._deadlines.set(path, left)

    def _expire(self, path: str) -> None:
        if path in self._expiring or self.is_stopping:
            return
        work = self._turns.run(path, self._delete_if_over(path))
        task = self._expiring[path] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._end_expiry(path, done))

    async def _delete_if_over(self, path: str) -> None:
        life = self._registry.lives.get(path)
        if life is not None and life.is_over:
            self.counters.expired += 1
            await self._delete(path)

    def _end_expiry(self, path: str, done: asyncio.Task[None]) -> None:
        del self._expiring[path]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("stream %r has expired, and is not deleted yet: %s", path, error)

"""The streams of a coordinator: topics with one partition, and a row with the other properties.

A lone node has one for all streams, and so has a cluster: the node that leads the internal
partition of streams (`stream_coordinators.py`). Forks tie streams of any paths together, so they
are not divided by a hash.

Deleting a stream deletes its topic, and deleting its topic, through any server, deletes the stream.
The row is deleted after the topic; after a crash in between, when the node starts. An expired
stream does not exist for requests any more, and is deleted soon after. Changes of one path happen
one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from millstream.broker.access.caller import Caller
from millstream.broker.fair_iteration import iterate_fairly
from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.state.state_clock import StateClock
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.counters import StreamCounters
from millstream.broker.streams.create_stream import DEFAULT_TYPE, CreateStream, check_matches
from millstream.broker.streams.expiry import CLOCK_SAVE_SECONDS, ExpiryClock, StreamDeadlines
from millstream.broker.streams.paths import check_path
from millstream.broker.streams.registry import StreamRegistry
from millstream.broker.streams.row import StoredStream, StreamRow, decode_entry, encode, row_key
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.stream_creator import StreamCreator
from millstream.broker.streams.stream_factory import StreamFactory
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock, Timer, Timers
from millstream.errors import (
    MillstreamError,
    StreamExists,
    StreamGone,
    Unavailable,
    UnknownStream,
    UnknownTopic,
    UnknownTopicId,
)

logger = logging.getLogger(__name__)


class DurableStreams:
    """The streams of a coordinator. Owned by one event loop."""

    def __init__(
        self,
        state: StateLog,
        topics: Topics,
        *,
        clock: Clock,
        timers: Timers,
        retention_clock: ExpiryClock,
        counters: StreamCounters | None = None,
        appends: RecordAppender | None = None,
        check_leading: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the streams.

        `check_leading` raises unless this node is sure to be their coordinator.
        """
        appends = appends or RecordAppender(clock)
        self._topics = topics
        self._clock = clock
        self._timers = timers
        self._saving: Timer | None = None
        self._retention_clock = retention_clock
        self._registry = StreamRegistry(state, clock=clock, retention_clock=retention_clock)
        self._factory = StreamFactory(
            state, clock=clock, appends=appends, check_leading=check_leading
        )
        self._creator = StreamCreator(
            self._registry, topics, clock=clock, appends=appends, factory=self._factory
        )
        self._creator.is_stopping = lambda: self.is_stopping
        self._locks = KeyedLocks()
        self._deadlines = StreamDeadlines(clock, timers, self._check_expiry)
        self._expiring: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[Callable[[], None]] = set()
        self._unwatch_topics: Callable[[], None] = lambda: None
        self.is_stopping = False
        self.counters = counters or StreamCounters()
        self._refusal: MillstreamError | None = None
        """Why requests are refused, once this node is not the coordinator any more."""

    # Opening and closing.

    async def start(self) -> None:
        """Read all rows, and complete what a crash interrupted. The topics have to be open."""
        registry = self._registry
        lost: list[tuple[str, StreamRow, StoredStream]] = []
        known: dict[str, StoredStream] = {}
        async for key, value in iterate_fairly(list(registry.state.entries.items())):
            decode_entry(known, key, value)
        async for path, stored in iterate_fairly(known.items()):
            row = stored.row
            if row is None or row.state == "making":
                await self._creator.undo_create(path, row, list(stored.producers))
                continue
            registry.add_fork(path, row)
            topic = self._topics.find(row.topic)
            if row.state == "deleted":
                registry.deleted[path] = row
            elif topic is not None and topic.id == row.topic_id:
                self._add(self._stream(path, row, stored))
            elif await self._topics.is_deleted(row.topic, row.topic_id):
                lost.append((path, row, stored))
            else:  # Another node has created it, and this one learns of it in a moment.
                raise Unavailable(f"topic {row.topic} of stream {path[:300]!r} is not known yet")
        for path, row, stored in lost:
            registry.remove(path, row, list(stored.producers))
        for path in [path for path in registry.deleted if not registry.has_forks(path)]:
            if path in registry.deleted:
                registry.remove(path, registry.deleted[path], [])
        await registry.settled()
        self._unwatch_topics = self._topics.on_change(self._on_topic_change)
        self._save_clock_later()

    def _stream(self, path: str, row: StreamRow, stored: StoredStream) -> DurableStream:
        partition = self._topics.get(row.topic).partition(0)
        return self._factory.make(path, row, partition, stored)

    def _add(self, stream: DurableStream) -> None:
        remaining = self._registry.add(stream).remaining()
        if remaining is not None:
            self._deadlines.set(stream.path, remaining)

    def depose(self, error: MillstreamError) -> None:
        """Refuse all requests, and wake those that wait: this node is not the coordinator."""
        self._refusal = error
        self.end_waits()
        self._stop_timers()
        self._unwatch_topics()
        self._unwatch_topics = lambda: None
        for stream in self._registry.streams.values():
            stream.detach(error)

    async def close(self) -> None:
        """Finish changes in progress, and store checkpoints, so that the next start is fast."""
        self.end_waits()
        self._stop_timers()
        await self._locks.close()
        if self._expiring:
            await asyncio.wait(self._expiring.values())
        self._unwatch_topics()
        for stream in self._registry.streams.values():
            if stream.has_unsaved and self._refusal is None:
                try:
                    await stream.save()
                except MillstreamError as error:  # The state after a crash is sufficient.
                    logger.warning(
                        "stream %r: the checkpoint was not stored: %s", stream.path, error
                    )
        if self._refusal is None:
            self._save_clock()

    def _stop_timers(self) -> None:
        self._deadlines.stop()
        if self._saving is not None:
            self._saving.cancel()

    # Lookup.

    def get(self, path: str) -> DurableStream:
        """Return a stream; raises `UnknownStream`, or `StreamGone` if it has forks."""
        self._check_led()
        stream = self._registry.streams.get(path)
        if stream is not None and not self._registry.lifetimes[path].is_expired:
            return stream
        if stream is not None:
            self._expire(path)
        if self._registry.has_forks(path):
            raise StreamGone(f"stream {path[:300]!r} was deleted or has expired, and has forks")
        raise UnknownStream(f"stream {path[:300]!r} does not exist")

    def _check_led(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def all(self) -> list[DurableStream]:
        """Return all streams, sorted by path."""
        return [stream for _, stream in sorted(self._registry.streams.items())]

    @property
    def count(self) -> int:
        return len(self._registry.streams)

    @property
    def waiting_count(self) -> int:
        """Number of readers that wait for new records."""
        return len(self._waiting)

    def use(self, stream: DurableStream) -> None:
        """Restart the time to live of a stream that was read or written."""
        lifetime = self._registry.lifetimes.get(stream.path)
        if lifetime is None or stream.is_deleted or self._refusal is not None:
            return
        if (touched_ms := lifetime.touch()) is None:
            return
        stream.row = msgspec.structs.replace(stream.row, touched_ms=touched_ms)
        self._registry.put([(row_key(stream.path), encode(stream.row))])

    @contextlib.contextmanager
    def reading(self, stream: DurableStream, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` when there is something new, or the node stops, while the block runs.

        The stream is in use while the block runs, and does not expire by its time to live.
        """
        lifetime = self._registry.lifetimes.get(stream.path)
        if lifetime is None:
            raise UnknownStream(f"stream {stream.path[:300]!r} does not exist")
        lifetime.readers += 1
        stream.watch(wake)
        self._waiting.add(wake)
        try:
            yield
        finally:
            self._waiting.discard(wake)
            stream.unwatch(wake)
            lifetime.readers -= 1
            self.use(stream)

    def end_waits(self) -> None:
        """Wake all waiting readers: the node is stopping."""
        self.is_stopping = True
        for wake in tuple(self._waiting):
            wake()

    # Creating.

    def content_type_of(self, path: str, request: CreateStream) -> str:
        """Return the type that a stream has, or would have if it were created now."""
        if request.content_type is not None:
            return request.content_type
        for name in (path, request.fork.source if request.fork is not None else path):
            with contextlib.suppress(UnknownStream, StreamGone):
                return self.get(name).row.content_type
        return DEFAULT_TYPE

    async def create(
        self,
        path: str,
        request: CreateStream,
        values: Sequence[bytes],
        *,
        message_bytes_max: int,
        creator: Caller | None = None,
    ) -> tuple[DurableStream, bool]:
        """Create a stream that starts with `values`; return it, and whether it is new.

        If a stream with the requested properties exists, nothing is appended to it; if its
        properties differ, raises `StreamExists`. Durable when this returns.
        """
        check_path(path)
        self._check_led()
        return await self._locks.run(
            path, self._create(path, request, values, message_bytes_max, creator)
        )

    async def _create(
        self,
        path: str,
        request: CreateStream,
        values: Sequence[bytes],
        message_bytes_max: int,
        creator: Caller | None,
    ) -> tuple[DurableStream, bool]:
        registry = self._registry
        if path in registry.streams and registry.lifetimes[path].is_expired:
            await self._delete(path)
        if path in registry.deleted:
            raise StreamExists(f"stream {path[:300]!r} was deleted, and has forks")
        if (existing := registry.streams.get(path)) is not None:
            await existing.open()
            await existing.catch_up()
            check_matches(existing, request)
            return existing, False
        created = await self._creator.create(
            path,
            request,
            await self._source(request),
            values,
            retention_ms=self._retention_clock.now_ms(),
            message_bytes_max=message_bytes_max,
            creator=creator,
        )
        self._add(created)
        self.counters.created += 1
        await created.open()
        return created, True

    async def _source(self, request: CreateStream) -> DurableStream | None:
        """Return the source of a fork, open."""
        if request.fork is None:
            return None
        try:
            source = self.get(request.fork.source)
        except StreamGone as error:
            raise StreamExists(str(error)) from None
        await source.open()
        await source.catch_up()
        return source

    # Deleting.

    async def delete(self, path: str) -> None:
        """Delete a stream and its records; durable when this returns."""
        self.get(path)
        await self._locks.run(path, self._delete_if_exists(path))

    async def _delete_if_exists(self, path: str) -> None:
        self.get(path)
        await self._delete(path)

    async def _delete(self, path: str) -> None:
        row = self._registry.streams[path].row
        with contextlib.suppress(UnknownTopic, UnknownTopicId):
            await self._topics.delete(row.topic, topic_id=row.topic_id)
        await self._registry.settled()

    def _on_topic_change(self, change: TopicChange) -> None:
        """Remove a stream whose topic was deleted."""
        if change.event is not TopicEvent.DELETED:
            return
        stream = self._registry.of_topic(change.topic.name)
        if stream is not None and stream.row.topic_id == change.topic.id:
            self.counters.deleted += 1
            self._registry.remove(stream.path, stream.row, [])

    # Expiring.

    def _save_clock_later(self) -> None:
        """Store the time by which streams age, again and again, if the state log keeps it.

        Otherwise a stream that nobody uses would have all of its time to live again after each
        change of the coordinator.
        """

        def due() -> None:
            self._save_clock()
            self._save_clock_later()

        if isinstance(self._retention_clock, StateClock):
            self._saving = self._timers.call_later(CLOCK_SAVE_SECONDS, due)

    def _save_clock(self) -> None:
        clock = self._retention_clock
        if isinstance(clock, StateClock) and self._registry.streams:
            self._registry.put([clock.entry()])

    def _check_expiry(self, path: str) -> None:
        """Delete a stream if it has expired, or check again later."""
        lifetime = self._registry.lifetimes.get(path)
        remaining = None if lifetime is None else lifetime.remaining()
        if remaining is None:
            return
        if remaining <= 0:
            self._expire(path)
        else:
            self._deadlines.set(path, remaining)

    def _expire(self, path: str) -> None:
        if path in self._expiring or self.is_stopping:
            return
        work = self._locks.run(path, self._delete_if_expired(path))
        task = self._expiring[path] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._end_expiry(path, done))

    async def _delete_if_expired(self, path: str) -> None:
        lifetime = self._registry.lifetimes.get(path)
        if lifetime is not None and lifetime.is_expired:
            self.counters.expired += 1
            await self._delete(path)

    def _end_expiry(self, path: str, done: asyncio.Task[None]) -> None:
        del self._expiring[path]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("stream %r has expired, and could not be deleted: %s", path, error)

"""One stream: the partition that stores its records, and the state of its writers.

Rules:

1. A write mark is checked in the order of the log, at the moment when its records get their offset;
   it is undone if the log takes the offset back.
2. An append that is refused because of a write in flight is answered when that write is committed.
3. A checkpoint contains what is committed, and nothing that is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.broker.access.caller import Caller
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import Appended
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.in_flight import InFlight, InFlightAppend
from millstream.broker.streams.row import StoredStream, StreamRow
from millstream.broker.streams.write_marks import mark_headers, read_marks
from millstream.broker.streams.writer_checkpoint import WriterCheckpoint
from millstream.broker.streams.writers import (
    DuplicateWrite,
    StreamClosure,
    StreamWriters,
    WriteMark,
    WriterPosition,
)
from millstream.broker.topics.record_appender import (
    APPEND_TIMEOUT_MS,
    AppendTimings,
    append_timings,
)
from millstream.clock import Clock
from millstream.errors import (
    DamagedRecords,
    MillstreamError,
    RequestError,
    StreamClosed,
    UnknownStream,
    again,
)
from millstream.records.build import build_batch
from millstream.records.record import Record

logger = logging.getLogger(__name__)

REPLAY_BYTES_MAX = 1024 * 1024
"""Size of one read of the log while its write marks are replayed."""

CHECKPOINT_RECORDS = 10_000
"""Records between two checkpoints: replaying their marks takes a fraction of a second."""


class StreamAppendResult(NamedTuple):
    """The outcome of an append."""

    next_offset: int
    """An offset of the stream."""
    is_duplicate: bool = False
    is_closed: bool = False
    position: WriterPosition | None = None
    """The position of its producer."""
    has_data: bool = True
    timings: AppendTimings | None = None
    """`None` if nothing was appended."""


class DurableStream:
    """A stream that can be written and read. Owned by one event loop."""

    def __init__(
        self,
        path: str,
        row: StreamRow,
        partition: Partition,
        state: StateLog,
        *,
        clock: Clock,
        stored: StoredStream | None = None,
    ) -> None:
        self.path = path
        self.row = row
        self.partition = partition
        self.source = partition.anywhere
        """The partition for reading."""
        self.is_deleted = False
        self._clock = clock
        stored = stored or StoredStream()
        self.writers = StreamWriters(
            path,
            producers=dict(stored.producers),
            sequence=stored.writers.sequence,
            closure=stored.writers.closure,
        )
        self._writer_checkpoint = WriterCheckpoint(path, state, stored)
        self._in_flight = InFlight(self.writers, self._writer_checkpoint.apply)
        self._closing: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._damage: DamagedRecords | None = None
        """Marks are lost, so the stream takes no appends; what is valid can be read."""
        self._watchers: dict[Callable[[], None], None] = {}
        self._refusal: MillstreamError | None = None
        """Why nothing can be written any more, once this node is not the coordinator."""
        partition.on_rewind = self._in_flight.rewind
        partition.before_removal = self._save_before_removal

    def detach(self, error: MillstreamError) -> None:
        """Refuse everything, because this node is not the coordinator of the stream any more.

        Appends that have their offset run to their end: the log of the topic decides about them,
        and the marks in it tell the next coordinator.
        """
        self._refusal = error
        self.partition.on_rewind = None
        self.partition.before_removal = None
        self._wake()

    # Opening.

    async def open(self) -> None:
        """Open the partition, and replay the marks after the checkpoint.

        Concurrent calls wait for the first.
        """
        self._check_exists()
        if self._is_open and self.source.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._end_opening)
        await asyncio.shield(self._opening)

    def _end_opening(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # Those who waited got it.

    async def _open(self) -> None:
        await self.source.open()
        if self._is_open:
            return
        end_offset = self.source.high_watermark
        if self._writer_checkpoint.saved_offset > end_offset:
            await self._truncate(end_offset)
        await self._replay(self._writer_checkpoint.saved_offset, end_offset)
        self._is_open = True
        self._save_if_worthwhile()

    async def _replay(self, cursor: int, end_offset: int) -> int:
        """Apply the marks from an offset on; return the offset up to which they are applied."""
        source = self.source
        cursor = max(cursor, source.log_start_offset)
        while cursor < end_offset:
            try:
                fetched = await source.reader.fetch(
                    cursor, size_max=REPLAY_BYTES_MAX, is_committed_only=False
                )
            except DamagedRecords as damage:
                self._damage = damage
                cursor = damage.to_offset + 1
                continue
            if not fetched.parts:
                break
            work = partial(read_marks, fetched, self.partition.topic_id)
            marks = await self.partition.opener.run(fetched.parts, work)
            for mark, next_offset in marks:
                if next_offset > cursor:
                    self.writers.apply(mark, next_offset)
                    self._writer_checkpoint.apply(mark, next_offset)
            cursor = fetched.next_offset
        return cursor

    async def _truncate(self, end_offset: int) -> None:
        """Recover from a power cut that lost records which the checkpoint covers.

        A topic of a class below `fsync` may lose what it acknowledged. The next records get the
        same offsets, and their marks must be replayed at the next start; so the checkpoint moves
        back.
        """
        self._writer_checkpoint.truncate(end_offset)
        self.writers.closure = self._writer_checkpoint.closure
        await self._writer_checkpoint.put(end_offset)

    # Position.

    @property
    def closure(self) -> StreamClosure | None:
        """Where the stream was closed, once that is committed."""
        return self._writer_checkpoint.closure

    @property
    def end_offset(self) -> int:
        """The offset after the last readable record, in its partition."""
        if self.closure is not None:
            return self.closure.end_offset
        return self.source.last_stable_offset

    async def catch_up(self) -> None:
        """Return when everything that was acknowledged before the call can be read here."""

    @property
    def next_offset(self) -> int:
        """The same, as an offset of the stream."""
        return self.end_offset + self.row.shift

    # Writing.

    async def append(
        self, values: Sequence[bytes], mark: WriteMark, caller: Caller | None = None
    ) -> StreamAppendResult:
        """Append one record for each value, all or none; durable when this returns.

        Raises if the mark is refused. A duplicate is not appended again. `caller` is the client
        that sends them, for the node that leads the partition if it is another one.
        """
        del caller  # This node leads, and has checked it.
        await self.open()
        headers = mark_headers(mark, self.row.topic_id)
        records = [Record(values[0], headers=headers), *map(Record, values[1:])]
        batch = build_batch(records, now_ms=self._clock.wall_ms())
        while True:
            while self._closing is not None:
                await asyncio.shield(self._closing)
            write, started = InFlightAppend(mark, len(values)), self._clock.monotonic()
            try:
                appended = await asyncio.shield(self._submit(batch, write))
            except (DuplicateWrite, RequestError) as refusal:
                if not isinstance(refusal, StreamClosing) and await self._in_flight.settled():
                    return self._refused(mark, refusal)
            else:
                ended = self._clock.monotonic()
                timings = append_timings(self.partition, started, write.admitted, ended)
                return self._outcome(mark, appended.last_offset + 1)._replace(timings=timings)

    async def check_open(self, mark: WriteMark) -> None:
        """Raise if an append with this mark would be refused because the stream is closed."""
        await self.open()
        if self.closure is None:
            return
        try:
            self.writers.check(mark)
        except (DuplicateWrite, RequestError) as refusal:
            self._refused(mark, refusal)

    def _submit(self, batch: bytes, write: InFlightAppend) -> asyncio.Future[Appended]:
        self._check_exists()
        self._check_marks()
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.partition.appender.append(
            batch, future, timeout_ms=APPEND_TIMEOUT_MS, on_admit=partial(self._admit, write)
        )
        future.add_done_callback(partial(self._settle, write))
        return future

    def _check_marks(self) -> None:
        """Raise if it is not known what was written: a retried append would be stored twice."""
        if self._damage is not None:
            raise again(self._damage)

    def _check_exists(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self.is_deleted:
            raise UnknownStream(f"stream {self.path[:300]!r} does not exist")

    def _admit(self, write: InFlightAppend, offset: int) -> None:
        """Check a mark against all before it in the log; raises to refuse it."""
        self._check_exists()
        if self._closing is not None:
            raise StreamClosing
        self._in_flight.admit(write, offset, self._clock.monotonic())

    def _settle(self, write: InFlightAppend, done: asyncio.Future[Appended]) -> None:
        """Handle the end of an append. Those before it in the log ended before it did."""
        is_refused = done.cancelled() or done.exception() is not None
        if not write.is_in_flight:
            return
        if is_refused:
            self._in_flight.rewind(write.offset)
            return
        self._in_flight.commit(write)
        self._save_if_worthwhile()
        if write.mark.is_closing:
            self._wake()

    def _refused(self, mark: WriteMark, refusal: MillstreamError) -> StreamAppendResult:
        self._check_exists()
        if isinstance(refusal, DuplicateWrite):
            return self._outcome(mark, self.end_offset, is_duplicate=True)
        if isinstance(refusal, StreamClosed):
            end_offset = self.next_offset
            raise StreamClosed(self.path, end_offset, self.row.mark_at(end_offset))
        raise refusal

    def _outcome(
        self, mark: WriteMark, end_offset: int, *, is_duplicate: bool = False
    ) -> StreamAppendResult:
        position = None if mark.producer is None else self.writers.producers.get(mark.producer)
        return StreamAppendResult(
            end_offset + self.row.shift, is_duplicate, self.closure is not None, position
        )

    # Closing.

    async def close(self, mark: WriteMark) -> StreamAppendResult:
        """Close the stream at its present end; durable when this returns.

        Closing a closed stream succeeds.
        """
        await self.open()
        while self._closing is not None:
            await asyncio.shield(self._closing)
        self._closing = asyncio.get_running_loop().create_future()
        closing = asyncio.get_running_loop().create_task(self._close(mark))
        closing.add_done_callback(self._end_closing)
        return await asyncio.shield(closing)

    def _end_closing(self, done: asyncio.Task[StreamAppendResult]) -> None:
        closing, self._closing = self._closing, None
        assert closing is not None
        closing.set_result(None)
        if not done.cancelled():
            done.exception()  # The caller got it.

    async def _close(self, mark: WriteMark) -> StreamAppendResult:
        """Close the stream, while nothing new is admitted."""
        end_offset = await self._settled_end()
        self._check_marks()
        try:
            self.writers.check(mark, has_data=False)
        except DuplicateWrite as refusal:
            return self._refused(mark, refusal)
        self._check_exists()
        await self._writer_checkpoint.put(self._checkpoint_offset(), mark, end_offset)
        self._writer_checkpoint.apply(mark, end_offset)
        self.writers.apply(mark, end_offset)
        self._wake()
        return self._outcome(mark, end_offset)._replace(has_data=False)

    async def _settled_end(self) -> int:
        """Return the end of the partition, once nothing is in flight."""
        await self._in_flight.settled()
        await self.partition.settle()
        return self.partition.high_watermark

    # Checkpoints.

    async def save(self) -> None:
        """Store a checkpoint, so that no record before the end has to be replayed."""
        if self.is_deleted:
            return
        await self.open()
        while self._closing is not None:
            await asyncio.shield(self._closing)
        if not self.is_deleted and self._damage is None:
            await self._writer_checkpoint.put(self._checkpoint_offset())

    async def _save_before_removal(self) -> None:
        """Store a checkpoint before records with marks are deleted.

        If that fails, they are deleted all the same: a full disk must not keep them. An append that
        a producer retries after a crash may then be stored twice.
        """
        try:
            await self.save()
        except MillstreamError as error:
            logger.warning(
                "stream %r: write marks are deleted without a checkpoint: %s", self.path, error
            )

    @property
    def has_unsaved(self) -> bool:
        """Whether a checkpoint would shorten the next replay."""
        return (
            self._is_open
            and not self.is_deleted
            and self._damage is None
            and self._checkpoint_offset() > self._writer_checkpoint.saved_offset
        )

    def _checkpoint_offset(self) -> int:
        """Return the offset before which all marks are committed."""
        if self._in_flight:
            return self._in_flight.first_offset
        return self.partition.high_watermark

    def _save_if_worthwhile(self) -> None:
        unsaved = self._checkpoint_offset() - self._writer_checkpoint.saved_offset
        if not self.is_deleted and self._damage is None and unsaved >= CHECKPOINT_RECORDS:
            self._writer_checkpoint.put(self._checkpoint_offset()).add_done_callback(_ignore)

    # Watching.

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when records were added, or the stream was closed or deleted."""
        self._watchers[callback] = None
        self.source.watch(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)
        self.source.unwatch(callback)

    def mark_deleted(self) -> None:
        """Refuse all requests from now on, and wake the watchers."""
        self.is_deleted = True
        self.partition.on_rewind = self.partition.before_removal = None
        self._wake()

    def _wake(self) -> None:
        for callback in tuple(self._watchers):
            callback()


class StreamClosing(RequestError):
    """The stream is being closed; the outcome of that decides."""


def _ignore(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()  # Another checkpoint follows later.

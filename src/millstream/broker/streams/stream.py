"""One stream: the partition that keeps its records, and who wrote them.

Rules that everything here keeps:

1. A mark is checked in the order of the log, at the moment that its records get their offset; what
   was applied is undone when the log takes the offset back.
2. What is refused because of a write that is in flight is answered when that is committed.
3. A checkpoint says what is committed, and nothing that is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import inline_or_in_thread
from millstream.broker.partition.results import Appended
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.in_flight import InFlight, InFlightAppend
from millstream.broker.streams.row import StoredStream, StreamRow
from millstream.broker.streams.write_marks import mark_headers, marks_in
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
from millstream.errors import MillstreamError, RequestError, StreamClosed, UnknownStream
from millstream.records.build import build_batch
from millstream.records.record import Record

logger = logging.getLogger(__name__)

REPLAY_BYTES_MAX = 1024 * 1024
"""What is read of a log in one go while its marks are looked for."""

CHECKPOINT_RECORDS = 10_000
"""After so many records a checkpoint is put: reading as many marks takes a fraction of a second."""


class StreamAppendResult(NamedTuple):
    """What came of an append."""

    next_offset: int
    """As the stream counts."""
    is_duplicate: bool = False
    is_closed: bool = False
    written: WriterPosition | None = None
    """How far its producer is."""
    has_data: bool = True
    cost: AppendTimings | None = None
    """What it cost to append something, where something was appended."""


class DurableStream:
    """A stream that can be written and read. One event loop owns it."""

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
        self.is_gone = False
        self._clock = clock
        stored = stored or StoredStream()
        self.writers = StreamWriters(
            path,
            producers=dict(stored.producers),
            sequence=stored.writers.sequence,
            closure=stored.writers.closure,
        )
        self._known = WriterCheckpoint(path, state, stored)
        self._flight = InFlight(self.writers, self._known.note)
        self._closing: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._watchers: dict[Callable[[], None], None] = {}
        partition.on_rewind = self._flight.rewind
        partition.before_removal = self._save_before_removal

    # Opening.

    async def open(self) -> None:
        """Open the partition, and read the marks after the checkpoint. Others wait for that."""
        if self.is_gone:
            raise UnknownStream(f"there is no stream {self.path[:300]!r}")
        if self._is_open and self.partition.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._end_opening)
        await asyncio.shield(self._opening)

    def _end_opening(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # Whoever waited has it; where nobody did, nobody minds.

    async def _open(self) -> None:
        await self.partition.open()
        if self._is_open:
            return
        partition = self.partition
        end_offset = partition.high_watermark
        if self._known.saved_offset > end_offset:
            await self._fall_back(end_offset)
        cursor = max(self._known.saved_offset, partition.log_start_offset)
        while cursor < end_offset:
            fetched = partition.reader.read(cursor, size_max=REPLAY_BYTES_MAX)
            if not fetched.parts:
                break
            work = partial(lambda got: list(marks_in(got, partition.topic_id)), fetched)
            marks = await inline_or_in_thread(fetched, work)
            for mark, next_offset in marks:
                self.writers.apply(mark, next_offset)
                self._known.note(mark, next_offset)
            cursor = fetched.next_offset
        self._is_open = True
        self._save_if_worthwhile()

    async def _fall_back(self, end_offset: int) -> None:
        """Take note that a power cut took records that a checkpoint knows of.

        A topic of a class below `fsync` may lose what it acknowledged. What comes next gets the
        same offsets, and its marks must be read after the next start; so the checkpoint goes back.
        """
        self._known.fall_back(end_offset)
        self.writers.closure = self._known.closure
        await self._known.put(end_offset)

    # Where it stands.

    @property
    def closure(self) -> StreamClosure | None:
        """Where it ended, once that is committed."""
        return self._known.closure

    @property
    def end_offset(self) -> int:
        """The offset after the last record that can be read, as its partition counts."""
        if self.closure is not None:
            return self.closure.end_offset
        return self.partition.last_stable_offset

    @property
    def next_offset(self) -> int:
        """The same, as the stream counts."""
        return self.end_offset + self.row.shift

    # Writing.

    async def append(self, values: Sequence[bytes], mark: WriteMark) -> StreamAppendResult:
        """Append one record for each value, all or none; durable when this returns.

        Raises what the mark is refused for. What was appended before is not appended again.
        """
        await self.open()
        headers = mark_headers(mark, self.row.topic_id)
        records = [Record(values[0], headers=headers), *map(Record, values[1:])]
        batch = build_batch(records, now_ms=self._clock.wall_ms())
        while True:
            while self._closing is not None:
                await asyncio.shield(self._closing)
            write, begun = InFlightAppend(mark, len(values)), self._clock.monotonic()
            try:
                appended = await asyncio.shield(self._submit(batch, write))
            except (DuplicateWrite, RequestError) as refusal:
                if not isinstance(refusal, _StreamClosing) and await self._flight.settled():
                    return self._refused(mark, refusal)
            else:
                ended = self._clock.monotonic()
                cost = append_timings(self.partition, begun, write.admitted, ended)
                return self._outcome(mark, appended.last_offset + 1)._replace(cost=cost)

    async def check_open(self, mark: WriteMark) -> None:
        """Raise what an append with this mark is refused for because the stream is closed."""
        await self.open()
        if self.closure is None:
            return
        try:
            self.writers.check(mark)
        except (DuplicateWrite, RequestError) as refusal:
            self._refused(mark, refusal)

    def _submit(self, batch: bytes, write: InFlightAppend) -> asyncio.Future[Appended]:
        self._check_there()
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.partition.appender.append(
            batch, future, timeout_ms=APPEND_TIMEOUT_MS, on_admit=partial(self._admit, write)
        )
        future.add_done_callback(partial(self._settle, write))
        return future

    def _check_there(self) -> None:
        if self.is_gone:
            raise UnknownStream(f"there is no stream {self.path[:300]!r}")

    def _admit(self, write: InFlightAppend, offset: int) -> None:
        """Check a mark against all that lies before it in the log; raises to refuse it."""
        self._check_there()
        if self._closing is not None:
            raise _StreamClosing
        self._flight.admit(write, offset, self._clock.monotonic())

    def _settle(self, write: InFlightAppend, done: asyncio.Future[Appended]) -> None:
        """Take note of how an append ended. Those before it in the log ended before it did."""
        is_refused = done.cancelled() or done.exception() is not None
        if not write.is_in_flight:
            return
        if is_refused:
            self._flight.rewind(write.offset)
            return
        self._flight.land(write)
        self._save_if_worthwhile()
        if write.mark.is_closing:
            self._wake()

    def _refused(self, mark: WriteMark, refusal: MillstreamError) -> StreamAppendResult:
        self._check_there()
        if isinstance(refusal, DuplicateWrite):
            return self._outcome(mark, self.end_offset, is_duplicate=True)
        if isinstance(refusal, StreamClosed):
            raise StreamClosed(self.path, self.next_offset)
        raise refusal

    def _outcome(
        self, mark: WriteMark, end_offset: int, *, is_duplicate: bool = False
    ) -> StreamAppendResult:
        written = None if mark.producer is None else self.writers.producers.get(mark.producer)
        return StreamAppendResult(
            end_offset + self.row.shift, is_duplicate, self.closure is not None, written
        )

    # Closing.

    async def close(self, mark: WriteMark) -> StreamAppendResult:
        """Close the stream where it ends now; durable when this returns.

        Closing one that is closed is fine.
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
            done.exception()  # Who asked has it.

    async def _close(self, mark: WriteMark) -> StreamAppendResult:
        """Close it, while nothing new is admitted."""
        await self._flight.settled()
        try:
            self.writers.check(mark, has_data=False)
        except DuplicateWrite as refusal:
            return self._refused(mark, refusal)
        await self.partition.settle()
        self._check_there()
        end_offset = self.partition.high_watermark
        await self._known.put(self._checkpoint(), mark, end_offset)
        self._known.note(mark, end_offset)
        self.writers.apply(mark, end_offset)
        self._wake()
        return self._outcome(mark, end_offset)._replace(has_data=False)

    # Checkpoints.

    async def save(self) -> None:
        """Put a checkpoint, so that no record before the end is needed any more."""
        if self.is_gone:
            return
        await self.open()
        while self._closing is not None:
            await asyncio.shield(self._closing)
        if not self.is_gone:
            await self._known.put(self._checkpoint())

    async def _save_before_removal(self) -> None:
        """Put a checkpoint before records go that have marks.

        Where that fails, they go all the same: a full disk must not keep them. What a producer
        retries after a crash may then be stored once more.
        """
        try:
            await self.save()
        except MillstreamError as error:
            logger.warning("stream %r: marks go that are in no checkpoint: %s", self.path, error)

    @property
    def has_unsaved(self) -> bool:
        """Whether a checkpoint would save anybody from reading marks."""
        return self._is_open and not self.is_gone and self._checkpoint() > self._known.saved_offset

    def _checkpoint(self) -> int:
        """Return the offset before which all marks are committed and known."""
        if self._flight:
            return self._flight.first_offset
        return self.partition.high_watermark

    def _save_if_worthwhile(self) -> None:
        unsaved = self._checkpoint() - self._known.saved_offset
        if not self.is_gone and unsaved >= CHECKPOINT_RECORDS:
            self._known.put(self._checkpoint()).add_done_callback(_ignore)

    # Who waits for something to happen.

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there is something new, or the stream ends."""
        self._watchers[callback] = None
        self.partition.watch(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.pop(callback, None)
        self.partition.unwatch(callback)

    def end(self) -> None:
        """Take note that the stream is gone."""
        self.is_gone = True
        self.partition.on_rewind = self.partition.before_removal = None
        self._wake()

    def _wake(self) -> None:
        for callback in tuple(self._watchers):
            callback()


class _StreamClosing(RequestError):
    """The stream is being closed; how that ends decides."""


def _ignore(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()  # A checkpoint that was not put is put later.

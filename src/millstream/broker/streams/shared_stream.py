"""A stream of a cluster: its coordinator appends wherever the leader of its partition is.

    mark checked against all marks known ──► batch, "append at offset 42" ──► leader
                  ▲                                                             │
                  └── read the marks that were missed ◄── it does not end there ┘

The writers' state covers the log up to an offset. Each batch is appended only if the leader's log
ends at exactly the offset up to which the state, and the batches in flight, cover it. So nothing
can be in the log that the check of a mark did not take into account: not what an earlier
coordinator sent before it was deposed, nor a batch whose outcome was unknown, nor what a Kafka
client wrote. If the log ends elsewhere, nothing was appended; the marks that were missed are read,
and the mark is checked again.

Batches may follow each other without waiting: the second names the offset after the first, and is
refused if the first is not there.

A success is answered only by a node that still leads the internal partition of streams, by its
lease. A coordinator that takes over reads up to the leader's end first; what was answered before
is included in everything that it decides, such as where the stream is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from millstream.broker.access.caller import Caller
from millstream.broker.partition.partition import Partition
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.in_flight import InFlightAppend
from millstream.broker.streams.row import StoredStream, StreamRow
from millstream.broker.streams.stream import DurableStream, StreamAppendResult, StreamClosing
from millstream.broker.streams.write_marks import mark_headers
from millstream.broker.streams.writers import DuplicateWrite, WriteMark
from millstream.broker.topics.record_appender import PartitionAppend, RecordAppender
from millstream.clock import Clock
from millstream.errors import (
    Busy,
    NotCoordinator,
    NotCoordinatorAnymore,
    NotLeader,
    PeerUnavailable,
    RequestError,
    Unavailable,
)
from millstream.records.build import build_batch
from millstream.records.record import Record

ELECTION_SECONDS_MAX = 10.0
"""How long an append waits for a leader of the partition, or for batches of others to be committed:
longer than it takes to replace a node."""

RETRY_SECONDS = 0.05


class SharedStream(DurableStream):
    """A stream whose partition any node may lead. Owned by one event loop."""

    def __init__(
        self,
        path: str,
        row: StreamRow,
        partition: Partition,
        state: StateLog,
        *,
        clock: Clock,
        appends: RecordAppender,
        check_leading: Callable[[], None],
        stored: StoredStream | None = None,
    ) -> None:
        super().__init__(path, row, partition, state, clock=clock, stored=stored)
        partition.on_rewind = None  # The leader tells by refusing the batch.
        self._appends = appends
        self._check_leading = check_leading
        self._applied_end = 0
        """The offset before which all marks are applied and committed."""
        self._expected_end = 0
        """The offset after the batches in flight: where the log has to end for the next one."""
        self._is_behind = False
        """Whether there may be marks in the log that were not read."""
        self._reading = asyncio.Lock()

    # Position.

    async def _open(self) -> None:
        """Open the stream; the partition of one that was just created may have no leader yet."""
        deadline = self._clock.monotonic() + ELECTION_SECONDS_MAX
        while True:
            try:
                await self.source.open()
                if not self._is_open:
                    await self.source.catch_up()
                await super()._open()
            except (NotLeader, PeerUnavailable) as error:
                if self._is_open or self._clock.monotonic() >= deadline:
                    raise Unavailable(f"stream {self.path[:300]!r}: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _replay(self, cursor: int, end_offset: int) -> int:
        self._applied_end = self._expected_end = await super()._replay(cursor, end_offset)
        return self._applied_end

    async def catch_up(self) -> None:
        """Return when everything that was acknowledged before the call can be read here."""
        await self.source.catch_up()

    @property
    def end_offset(self) -> int:
        if self.closure is not None:
            return self.closure.end_offset
        return max(self.source.last_stable_offset, self._applied_end)

    def _checkpoint_offset(self) -> int:
        return self._in_flight.first_offset if self._in_flight else self._applied_end

    async def _read_missed(self) -> None:
        """Read the marks in the log that are not applied, once nothing is in flight."""
        async with self._reading:
            while self._is_behind:
                await self._in_flight.settled()
                if self._in_flight:
                    continue
                self._is_behind = False
                try:
                    await self.source.catch_up()
                    await self._replay(self._applied_end, self.source.high_watermark)
                except BaseException:
                    self._is_behind = True
                    raise

    # Writing.

    async def append(
        self, values: Sequence[bytes], mark: WriteMark, caller: Caller | None = None
    ) -> StreamAppendResult:
        """Append one record for each value, all or none; durable when this returns.

        Raises if the mark is refused. A duplicate is not appended again.
        """
        headers = mark_headers(mark, self.row.topic_id)
        records = [Record(values[0], headers=headers), *map(Record, values[1:])]
        batch = build_batch(records, now_ms=self._clock.wall_ms())
        deadline = self._clock.monotonic() + ELECTION_SECONDS_MAX
        while True:
            try:
                await self._usable()
                return await self._append(batch, mark, len(values), caller)
            except (NotLeader, Busy, StreamClosing, PeerUnavailable) as error:
                # Nothing was appended.
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(f"stream {self.path[:300]!r}: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)

    async def _usable(self) -> None:
        """Return when a mark can be checked; in the same turn of the loop it has to be."""
        await self.open()
        while self._closing is not None or self._is_behind or self._reading.locked():
            if self._closing is not None:
                await asyncio.shield(self._closing)
            else:
                await self._read_missed()

    async def _append(
        self, batch: bytes, mark: WriteMark, count: int, caller: Caller | None
    ) -> StreamAppendResult:
        write, started = InFlightAppend(mark, count), self._clock.monotonic()
        try:
            sent = self._send(batch, write, caller)
        except (DuplicateWrite, RequestError):
            return await self._refuse(mark)
        appended = await asyncio.shield(sent)
        self._check_answer()
        timings = appended.timings._replace(
            commit_ms=round((self._clock.monotonic() - started) * 1000, 3)
        )
        return self._outcome(mark, appended.offset + count)._replace(timings=timings)

    def _send(
        self, batch: bytes, write: InFlightAppend, caller: Caller | None
    ) -> asyncio.Task[PartitionAppend]:
        """Check a mark against all before it, and send its batch."""
        self._check_exists()
        self._check_marks()
        offset = self._expected_end
        self._in_flight.admit(write, offset, self._clock.monotonic())
        self._expected_end = offset + write.count
        sending = asyncio.get_running_loop().create_task(
            self._appends.append_batch(self.partition, batch, expected_offset=offset, caller=caller)
        )
        sending.add_done_callback(partial(self._ended, write))
        return sending

    def _ended(self, write: InFlightAppend, sent: asyncio.Task[PartitionAppend]) -> None:
        """Handle the end of an append; those after it may have ended before."""
        if sent.cancelled() or sent.exception() is not None:
            self._is_behind = True  # It may be in the log nonetheless.
            if write.is_in_flight:
                self._in_flight.rewind(write.offset)
            return
        if not write.is_in_flight:  # One before it failed, and this one was undone with it.
            self._is_behind = True
            return
        self._in_flight.commit(write)
        self._applied_end = max(self._applied_end, write.offset + write.count)
        self._save_if_worthwhile()
        if write.mark.is_closing:
            self._wake()

    async def _refuse(self, mark: WriteMark) -> StreamAppendResult:
        """Answer a mark that is refused, by a state that lacks nothing that is in the log."""
        self._is_behind = True
        await self._read_missed()
        try:
            self.writers.check(mark)
        except (DuplicateWrite, RequestError) as refusal:
            self._check_answer()
            return self._refused(mark, refusal)
        raise Busy(f"stream {self.path[:300]!r} was written to by another coordinator")

    def _check_answer(self) -> None:
        """Raise if another node may coordinate the stream by now: it decides what is valid."""
        try:
            self._check_exists()
            self._check_leading()
        except (NotLeader, NotCoordinator) as error:
            raise NotCoordinatorAnymore(
                f"stream {self.path[:300]!r} got another coordinator meanwhile: {error}"
            ) from error

    # Closing.

    async def _settled_end(self) -> int:
        """Return the end of the partition, with all marks before it applied."""
        await self._in_flight.settled()
        self._is_behind = True
        await self._read_missed()
        return self._applied_end

"""Batched writes to the log of a state: the part that `StateLog` and `EventLog` share.

    write -> gathered -----------------> in flight -----------------> durable, or refused
             all writes of one turn of   submitted to the log, which
             the event loop, or more     commits it with what else
             if a batch is in flight     it has to sync

A batch is stored completely or not at all, and a write is never split over two batches.

In a cluster, only the leader of the log writes. A writer whose node stops leading is *fenced*:
writes that are not known to be durable fail, whatever the log says about them later, and so do all
new ones, even if the node leads the log again: then somebody else may have written in between.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.clock import Clock
from millstream.config.schema import MIB
from millstream.errors import (
    CorruptData,
    LogClosed,
    MillstreamError,
    NotCoordinator,
    NotCoordinatorAnymore,
    NotLeader,
    NotLeaderAnymore,
    again,
)
from millstream.records.build import build_batch
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.append.pending_append import Appended
from millstream.storage.log import Log

SEGMENT_BYTES_MAX = 16 * MIB
"""Space is reclaimed by whole segments, so those of a log that is rewritten often are small."""

BATCH_BYTES_MAX = 1 * MIB
"""Writes share a batch up to this size; a single write may be larger."""


@dataclass(slots=True, eq=False)
class Write:
    """Records that are written together."""

    records: Sequence[Record]
    size: int
    future: asyncio.Future[None]
    is_alone: bool = False
    """Whether these records get a batch of their own."""


class StateWriter(ABC):
    """Writes records to one log. Owned by one event loop.

    With `in_flight_max` 1, nothing is submitted before the batch before it is durable: then a
    refused batch is the last one in the log.
    """

    def __init__(self, log: Log, clock: Clock, *, in_flight_max: float) -> None:
        self.log = log
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._gathered: deque[Write] = deque()
        self._in_flight: deque[list[Write]] = deque()
        self._is_flush_scheduled = False
        self._is_closed = False
        self._fence: MillstreamError | None = None
        """Why nothing is written any more, once the node does not lead the log."""
        self._batch_ended: asyncio.Future[None] | None = None

    def fence(self, error: MillstreamError) -> None:
        """Refuse writes with `error`, and fail those that are not known to be durable.

        Call this when the node does not lead the log any more.
        """
        if self._fence is None:
            self._fence = error
        gathered, self._gathered = list(self._gathered), deque()
        unknown = NotCoordinatorAnymore(str(error))
        fail_writes([write for batch in self._in_flight for write in batch], unknown)
        fail_writes(gathered, error)

    @property
    def _may_write(self) -> bool:
        return self._fence is None and not self._is_closed

    def _stored_records(self) -> Iterator[StoredRecord]:
        return stored_records(self.log)

    def _write(
        self, records: Sequence[Record], size: int, *, is_alone: bool = False
    ) -> asyncio.Future[None]:
        """Write `records`; the future ends when they are durable, with all writes before them."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._fence is not None or self._is_closed:
            future.set_exception(self._fence or LogClosed(f"{self.log.name} is closed"))
            return future
        self._gathered.append(Write(records, size, future, is_alone))
        if not self._is_flush_scheduled and len(self._in_flight) < self._in_flight_max:
            self._is_flush_scheduled = True
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        """Submit what was gathered, in as few batches as the limits allow."""
        self._is_flush_scheduled = False
        while self._gathered and len(self._in_flight) < self._in_flight_max:
            self._submit(self._next_batch())

    def _next_batch(self) -> list[Write]:
        gathered = self._gathered
        batch = [gathered.popleft()]
        size = batch[0].size
        while gathered and not (batch[0].is_alone or gathered[0].is_alone):
            size += gathered[0].size
            if size > BATCH_BYTES_MAX:
                break
            batch.append(gathered.popleft())
        return batch

    def _submit(self, batch: list[Write]) -> None:
        if self._fence is not None:
            self._on_refused(batch, self._fence)
            return
        records = [record for write in batch for record in write.records]
        try:
            data = build_batch(records, now_ms=self._clock.wall_ms())
            future = self.log.submit(data, is_checked=True)
        except MillstreamError as error:
            self._on_refused(batch, self._refusal_of(error))
            return
        self._in_flight.append(batch)
        future.add_done_callback(lambda done: self._on_done(batch, done))

    def _on_done(self, batch: list[Write], done: asyncio.Future[Appended]) -> None:
        """End a batch. The log commits, and the loop calls back, in the order of offsets."""
        self._in_flight.remove(batch)
        error = LogClosed("the append was cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self._on_refused(batch, self._refusal_of(error))
        elif self._fence is None:  # Otherwise its writes have failed.
            self._on_durable(batch, done.result())
            for write in batch:
                if not write.future.done():
                    write.future.set_result(None)
        if self._batch_ended is not None:
            self._batch_ended.set_result(None)
            self._batch_ended = None
        self._flush()

    def _refusal_of(self, error: BaseException) -> BaseException:
        """Return the error of a write that the log refused; fence the writer if it is not led."""
        refusal = error
        if isinstance(error, NotLeader):
            refusal = NotCoordinator(str(error), coordinator=error.leader)
        elif isinstance(error, NotLeaderAnymore):
            refusal = NotCoordinatorAnymore(str(error))
        if refusal is not error and self._fence is None:
            self._fence = NotCoordinator(str(error), coordinator=getattr(error, "leader", -1))
        return refusal

    @abstractmethod
    def _on_durable(self, batch: list[Write], appended: Appended) -> None:
        """Take note of a batch that is durable, before its futures end."""

    @abstractmethod
    def _on_refused(self, batch: list[Write], error: BaseException) -> None:
        """Fail the futures of a batch that was not written."""

    async def _wait_for_batch(self) -> None:
        """Return when a batch that is in flight now is durable or refused."""
        self._flush()
        if self._in_flight:
            if self._batch_ended is None:
                self._batch_ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._batch_ended)

    async def close(self) -> None:
        """Refuse new writes and finish the others. The store closes the log."""
        self._is_closed = True
        self._flush()
        while self._in_flight and self._fence is None:
            await self._wait_for_batch()


def stored_records(log: Log) -> Iterator[StoredRecord]:
    """Go over all records; raises if some are damaged or missing, as a state needs them all."""
    if log.offline:
        raise again(log.offline)
    if log.recovered.damage:
        raise log.recovered.damage[0]
    for record in log.records():
        if isinstance(record, Gap):
            raise CorruptData(
                f"{log.name}: offsets {record.from_offset} to {record.to_offset} are missing"
            )
        yield record


def fail_writes(writes: Sequence[Write], error: BaseException) -> None:
    """Raise `error` for everyone who waits for one of `writes`."""
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)

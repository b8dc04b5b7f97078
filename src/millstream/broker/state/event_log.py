r"""A sequence of events with snapshots, kept in a log.

    | event | event | ... | snapshot | event | event ...
    \__ deleted once the snapshot __/
        is durable

The owner applies an event to its state when it appends it, so an event builds on all events before
it. Therefore only one batch is in flight at a time: if it is refused, nothing that came after it is
in the log. All events that are not durable then fail together, and the owner replays the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from millstream.broker.state.state_writer import StateWriter, Write, fail_writes
from millstream.clock import Clock
from millstream.errors import CorruptData, MillstreamError, StorageFailed
from millstream.records.record import Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.log import Log

E = TypeVar("E")

logger = logging.getLogger(__name__)

_RECORD_OVERHEAD = 16


class EventLog(StateWriter):
    """The events of one state machine, durable in the class of the log.

    `on_failure` is called, before any future fails, when events were refused: the owner's state is
    ahead of the log and has to be replayed.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        on_failure: Callable[[MillstreamError], None],
        events_bytes_min: int,
    ) -> None:
        super().__init__(log, clock, in_flight_max=1)
        self.snapshots = 0
        """Snapshots written since the log was opened."""
        self._events_bytes = 0
        """Size of the events since the last snapshot."""
        self._snapshot_bytes = 0
        self._on_failure = on_failure
        self._events_bytes_min = events_bytes_min
        self._acked_offset = log.end_offset
        self._trimming: asyncio.Task[None] | None = None
        log.on_rewind = self._on_rewind

    def replay(self, decode: Callable[[bytes], E], snapshot_type: type) -> Iterator[E]:
        """Go over the stored events; raises `CorruptData` if one is missing or damaged."""
        start = expected = self.log.start_offset
        events_bytes = snapshot_bytes = 0
        for record in self._stored_records():
            if record.offset != expected or record.value is None:
                raise CorruptData(
                    f"{self.log.name}: expected an event at offset {expected},"
                    f" found record {record.offset}"
                )
            event = decode(record.value)
            if isinstance(event, snapshot_type):
                events_bytes, snapshot_bytes = 0, len(record.value)
            elif expected == start > 0:
                raise CorruptData(f"{self.log.name} starts at offset {start} without a snapshot")
            else:
                events_bytes += len(record.value) + _RECORD_OVERHEAD
            yield event
            expected += 1
        self._events_bytes, self._snapshot_bytes = events_bytes, snapshot_bytes

    def append(self, event: bytes) -> asyncio.Future[None]:
        """Write an event; the future ends when it is durable, with all events before it."""
        self._events_bytes += len(event) + _RECORD_OVERHEAD
        return self._append(event, is_snapshot=False)

    def append_snapshot(self, snapshot: bytes) -> asyncio.Future[None]:
        """Write a snapshot, and delete what is before it once it is durable."""
        self._events_bytes, self._snapshot_bytes = 0, len(snapshot)
        return self._append(snapshot, is_snapshot=True)

    def _append(self, data: bytes, *, is_snapshot: bool) -> asyncio.Future[None]:
        future = self._write([Record(data)], len(data), is_alone=is_snapshot)
        # The error is known to `on_failure`: nobody has to wait for this future.
        future.add_done_callback(_mark_retrieved)
        return future

    @property
    def pending(self) -> asyncio.Future[None] | None:
        """Ends when all events appended so far are durable; `None` if they are."""
        if self._gathered:
            return self._gathered[-1].future
        return self._in_flight[-1][-1].future if self._in_flight else None

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the events are larger than the state that they describe."""
        return self._events_bytes > max(self._events_bytes_min, 2 * self._snapshot_bytes)

    def _on_durable(self, batch: list[Write], appended: Appended) -> None:
        self._acked_offset = appended.last_offset + 1
        if batch[0].is_alone:
            self.snapshots += 1
            self._trim(appended.offset)

    def _on_refused(self, batch: list[Write], error: BaseException) -> None:
        refused = [*batch, *self._gathered]
        self._gathered.clear()
        reason = error if isinstance(error, MillstreamError) else StorageFailed(repr(error))
        self._on_failure(reason)
        fail_writes(refused, reason)

    def _on_rewind(self, offset: int) -> None:
        """Handle the loss of acknowledged records, which classes below `fsync` permit."""
        if offset < self._acked_offset:
            self._acked_offset = offset
            error = StorageFailed(f"{self.log.name}: events from offset {offset} on were lost")
            self._on_refused([write for batch in self._in_flight for write in batch], error)

    def _trim(self, offset: int) -> None:
        if self._trimming is None and not self._is_closed:
            self._trimming = asyncio.get_running_loop().create_task(self._delete_before(offset))

    async def _delete_before(self, offset: int) -> None:
        try:
            await self.log.delete_before(offset)
        except MillstreamError as error:  # The next snapshot tries again.
            logger.warning(
                "%s: cannot delete events before offset %d: %s", self.log.name, offset, error
            )
        finally:
            self._trimming = None

    async def close(self) -> None:
        """Refuse new events and finish the others. The store closes the log."""
        await super().close()
        self.log.on_rewind = None
        if self._trimming is not None:
            await asyncio.wait([self._trimming])


def _mark_retrieved(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()

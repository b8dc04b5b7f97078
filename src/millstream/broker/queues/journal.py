r"""The log of a queue: its events, durable in the class of its topic.

    submit -> gathered ----------------> in flight -----------> durable: who waits is told
              while a batch is in        one batch at a time
              flight, others gather

One batch at a time, because an event builds on those before it: where one is refused, nothing that
came after it may be in the log. Then all that wait are told, and the state has to be read again.

    | event | event | ... | snapshot | event | event ...
    \__ deleted once the snapshot __/
        is durable
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from millstream.broker.queues.events import (
    QueueEvent,
    QueueStateSnapshot,
    decode_event,
    encode_event,
)
from millstream.broker.queues.snapshot import restore_state
from millstream.broker.queues.state import QueueStateMachine
from millstream.clock import Clock
from millstream.config.schema import MIB
from millstream.errors import CorruptData, LogClosed, MillstreamError, StorageFailed
from millstream.records.build import build_batch
from millstream.records.record import Gap, Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.log import Log

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = 1 * MIB
"""Events that gathered share a batch up to this size."""

_RECORD_OVERHEAD = 16


class JournalReplay(NamedTuple):
    """What a log says."""

    state: QueueStateMachine
    events_bytes: int
    """Bytes of events since the last snapshot."""
    snapshot_bytes: int


def replay(log: Log, *, ended_max: int) -> JournalReplay:
    """Read a log from its start; raises `CorruptData` where something is missing or damaged."""
    state = QueueStateMachine(ended_max=ended_max)
    events_bytes = snapshot_bytes = 0
    expected = log.start_offset
    for record in log.records():
        if isinstance(record, Gap):
            raise CorruptData(
                f"{log.name}: offsets {record.from_offset} to {record.to_offset} are gone"
            )
        if record.offset != expected or record.value is None:
            raise CorruptData(f"{log.name}: found record {record.offset}, expected {expected}")
        event = decode_event(record.value)
        if (
            expected == log.start_offset
            and expected > 0
            and not isinstance(event, QueueStateSnapshot)
        ):
            raise CorruptData(f"{log.name} begins at {expected} without a snapshot")
        if isinstance(event, QueueStateSnapshot):
            state = _restored(log, event, ended_max)
            events_bytes, snapshot_bytes = 0, len(record.value)
        else:
            state.apply(event)
            events_bytes += len(record.value) + _RECORD_OVERHEAD
        expected += 1
    return JournalReplay(state, events_bytes, snapshot_bytes)


def _restored(log: Log, snapshot: QueueStateSnapshot, ended_max: int) -> QueueStateMachine:
    try:
        return restore_state(snapshot, ended_max=ended_max)
    except (ValueError, IndexError) as error:
        raise CorruptData(f"{log.name}: a snapshot is none: {error}") from error


class QueueJournal:
    """Writes the events of one queue. Lives on the loop of its log.

    `on_failure` is called, before anyone is told, when events were refused: the state that they
    were applied to is not what the log says.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        on_failure: Callable[[MillstreamError], None],
        events_bytes_min: int,
    ) -> None:
        self.log = log
        self.events_bytes = 0
        """Bytes of events since the last snapshot."""
        self.snapshot_bytes = 0
        self.snapshots = 0
        """How many were written since this was made."""
        self._clock = clock
        self._on_failure = on_failure
        self._events_bytes_min = events_bytes_min
        self._gathered: list[tuple[bytes, bool]] = []
        self._ticket: asyncio.Future[None] | None = None
        """Of what is gathered."""
        self._flight: asyncio.Future[None] | None = None
        """Of what is in flight."""
        self._acked_offset = log.end_offset
        self._is_scheduled = False
        self._is_closed = False
        self._trimming: asyncio.Task[None] | None = None
        log.on_rewind = self._on_rewind

    def submit(self, event: QueueEvent) -> asyncio.Future[None]:
        """Have an event written; returns what ends when it is durable, with all before it."""
        data = encode_event(event)
        is_snapshot = isinstance(event, QueueStateSnapshot)
        if is_snapshot:
            self.events_bytes, self.snapshot_bytes = 0, len(data)
        else:
            self.events_bytes += len(data) + _RECORD_OVERHEAD
        self._gathered.append((data, is_snapshot))
        if self._ticket is None:
            self._ticket = asyncio.get_running_loop().create_future()
            self._ticket.add_done_callback(_retrieve)
        if self._flight is None and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return self._ticket

    @property
    def ticket(self) -> asyncio.Future[None] | None:
        """What ends when all that was submitted up to now is durable; `None` where it is."""
        return self._ticket or self._flight

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the events outgrew the state."""
        return self.events_bytes > max(self._events_bytes_min, 2 * self.snapshot_bytes)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._flight is not None or self._ticket is None:
            return
        self._flight, self._ticket = self._ticket, None
        gathered, self._gathered = self._gathered, []
        self._send(gathered)

    def _send(self, gathered: list[tuple[bytes, bool]]) -> None:
        """Append the first of what gathered, as one batch; a snapshot has one of its own."""
        end, size = 0, 0
        for data, is_snapshot in gathered:
            if end and (is_snapshot or size + len(data) > BATCH_BYTES_MAX):
                break
            end, size = end + 1, size + len(data)
            if is_snapshot:
                break
        records = [Record(data) for data, _ in gathered[:end]]
        has_snapshot = gathered[0][1]
        try:
            if self._is_closed:
                raise LogClosed(f"{self.log.name} is closed")
            batch = build_batch(records, now_ms=self._clock.wall_ms())
            future = self.log.submit(batch, is_checked=True)
        except MillstreamError as error:
            self._fail(error)
            return

        def on_done(done: asyncio.Future[Appended]) -> None:
            self._on_done(done, gathered[end:], has_snapshot=has_snapshot)

        future.add_done_callback(on_done)

    def _on_done(
        self,
        done: asyncio.Future[Appended],
        rest: list[tuple[bytes, bool]],
        *,
        has_snapshot: bool,
    ) -> None:
        error = LogClosed("the append was called off") if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)
            return
        appended = done.result()
        self._acked_offset = appended.last_offset + 1
        if has_snapshot:
            self.snapshots += 1
            self._trim(appended.offset)
        if rest:
            self._send(rest)
            return
        flight, self._flight = self._flight, None
        if flight is not None and not flight.done():
            flight.set_result(None)
        self._flush()

    def _fail(self, error: BaseException) -> None:
        """Let nothing that was submitted count."""
        told = error if isinstance(error, MillstreamError) else StorageFailed(repr(error))
        tickets = [ticket for ticket in (self._flight, self._ticket) if ticket is not None]
        self._flight = self._ticket = None
        self._gathered = []
        self._on_failure(told)
        for ticket in tickets:
            if not ticket.done():
                ticket.set_exception(told)

    def _on_rewind(self, offset: int) -> None:
        """Take note that the log lost what it had acknowledged, as weak classes may."""
        if offset < self._acked_offset:
            self._acked_offset = offset
            self._fail(StorageFailed(f"{self.log.name}: events from {offset} on were not written"))

    def _trim(self, offset: int) -> None:
        if self._trimming is None and not self._is_closed:
            self._trimming = asyncio.get_running_loop().create_task(self._delete_before(offset))

    async def _delete_before(self, offset: int) -> None:
        try:
            await self.log.delete_before(offset)
        except MillstreamError as error:  # The next snapshot takes it along.
            logger.warning("%s: events before %d stay: %s", self.log.name, offset, error)
        finally:
            self._trimming = None

    async def close(self) -> None:
        """Finish what was submitted. The log stays with its store, which closes it."""
        self._flush()
        while (ticket := self.ticket) is not None:
            await asyncio.wait([ticket])
        self._is_closed = True
        self.log.on_rewind = None
        if self._trimming is not None:
            await asyncio.wait([self._trimming])


def _retrieve(ticket: asyncio.Future[None]) -> None:
    if not ticket.cancelled():
        ticket.exception()  # Whoever waits has it; where nobody does, nobody minds.

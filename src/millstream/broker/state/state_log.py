"""A map kept in a log: what was put last under a key is its value.

    put -> gathered ----------------> in flight -----------------> applied to `entries`
           all puts of one turn of    the log commits it, with     and the put's future ends
           the loop, one batch        what else it has to sync

The batch is the unit of all or nothing, in the log and so here: the entries of one put are never
parted. Opening reads the log from its start; a record without a value deletes its key.

Compaction keeps the log in proportion to what is live. It remembers where the log ended when it
began, writes every entry that was put before that point once more at the end, and then has the log
forget all before the point. Rules that make this safe at any moment:

1. An entry is rewritten with the value that it has when the rewriting batch is submitted, and only
   while no other put of the same key is in flight: the log's order is then the order of the map.
2. A key that was put anew since the point needs no rewriting, for its record lies after the point.
3. Nothing is forgotten before every rewritten entry is durable. A crash before leaves entries
   twice with equal values, and the next start compacts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from millstream.clock import Clock, SystemClock
from millstream.config.schema import MIB, Durability
from millstream.errors import BatchTooLarge, CorruptData, LogClosed, MillstreamError
from millstream.records.batch import HEADER_SIZE
from millstream.records.build import build_batch
from millstream.records.record import Gap, Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.log import Log
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

StateEntry = tuple[bytes, bytes | None]

SEGMENT_BYTES_MAX = 16 * MIB
"""The log gives space back by whole segments, so those of a map that is rewritten are small."""

GATHERED_BYTES_MAX = 1 * MIB
"""Puts of one turn share a batch up to this size; one put alone may be as large as a batch."""

REWRITE_BYTES_MAX = 1 * MIB
REWRITE_ENTRIES_MAX = 2_000
"""What compaction encodes in one go: a few milliseconds in which the loop does nothing else."""

DEAD_BYTES_MIN = 4 * MIB
"""Less than this is never worth rewriting anything."""

_RECORD_OVERHEAD = 32
"""The most that a record takes beside its key and value: its varints, all at their longest."""


@dataclass(slots=True, eq=False)
class _PendingPut:
    entries: Sequence[StateEntry]
    size: int
    future: asyncio.Future[None]


@dataclass(slots=True)
class _Compaction:
    """One compaction under way."""

    point: int
    """Where the log ended when this began: what lies before is going to be forgotten."""
    todo: set[bytes]
    """Keys whose last durable record lies before the point."""
    kept_bytes: int = 0
    """Bytes that were applied from the point on."""


@dataclass(slots=True, eq=False)
class _PutBatch:
    """Puts on their way to the disk together."""

    puts: list[_PendingPut] = field(default_factory=list)
    size: int = HEADER_SIZE

    def entries(self) -> Iterator[StateEntry]:
        for put in self.puts:
            yield from put.entries


class StateLog:
    """A durable map of bytes to bytes, owned by one event loop.

    `entries` is what is durable: a put shows there when its future ends, and not at all when it
    fails. Puts take effect in the order in which they were made.
    """

    def __init__(self, log: Log, clock: Clock, *, dead_bytes_min: int = DEAD_BYTES_MIN) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.compactions = 0
        """How often the log was rewritten since it was opened."""
        self._log = log
        self._clock = clock
        self._dead_bytes_min = dead_bytes_min
        self._gathered: list[_PendingPut] = []
        self._in_flight: deque[_PutBatch] = deque()
        self._is_flush_scheduled = False
        self._is_closed = False
        self._settled: asyncio.Future[None] | None = None

        # Sizes of entries, by `_size_of`: of all records in the log, and of those that count.
        self._logged_bytes = 0
        self._live_bytes = 0
        self._logged_bytes_min = 0
        self._compaction: _Compaction | None = None
        self._compacting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        store: Store,
        name: str,
        *,
        clock: Clock | None = None,
        dead_bytes_min: int = DEAD_BYTES_MIN,
    ) -> StateLog:
        """Open the map that `store` keeps under `name`, or begin one, and read it whole.

        A log with damage is refused with what is damaged: a map that lacks entries must not pass
        for a whole one.
        """
        config = replace(
            store.log_config,
            durability=Durability.FSYNC,
            segment_bytes_max=min(SEGMENT_BYTES_MAX, store.log_config.segment_bytes_max),
        )
        log = await store.log(name, config=config)
        if log.offline:
            raise log.offline
        if log.recovered.damage:
            raise log.recovered.damage[0]
        made = cls(log, clock or SystemClock(), dead_bytes_min=dead_bytes_min)
        made._replay()
        return made

    def _replay(self) -> None:
        for record in self._log.records():
            if isinstance(record, Gap):
                raise CorruptData(
                    f"{self._log.name}: offsets {record.from_offset} to {record.to_offset} are gone"
                )
            if record.key is None:
                raise CorruptData(f"{self._log.name}: record {record.offset} has no key")
            self._apply_entry(record.key, record.value)
        self._compact_if_worthwhile()

    @property
    def offline(self) -> MillstreamError | None:
        """Why the map takes no puts, if it does not."""
        return self._log.offline

    # Putting.

    def put(self, entries: Sequence[StateEntry]) -> asyncio.Future[None]:
        """Set or, with `None`, delete keys: all of `entries` or none. Durable when done.

        Later entries win over earlier ones of the same key. Call it on the loop; that nobody
        awaits the future, or that it is cancelled, does not call the put off.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        size = sum(_size_of(key, value) for key, value in entries)
        limit = self._log.config.batch_size_max - HEADER_SIZE
        if self._is_closed:
            future.set_exception(LogClosed(f"{self._log.name} is closed"))
        elif size > limit:
            reason = f"{len(entries)} entries have {size} bytes, limit of one put is {limit}"
            future.set_exception(BatchTooLarge(f"{self._log.name}: {reason}"))
        elif not entries:
            future.set_result(None)
        else:
            self._gathered.append(_PendingPut(entries, size, future))
            self._schedule_flush()
        return future

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Hand what was gathered to the log, in as few batches as its limits allow."""
        self._is_flush_scheduled = False
        gathered, self._gathered = self._gathered, []
        batch = _PutBatch()
        for put in gathered:
            if batch.puts and batch.size + put.size > GATHERED_BYTES_MAX:
                self._submit(batch)
                batch = _PutBatch()
            batch.puts.append(put)
            batch.size += put.size
        if batch.puts:
            self._submit(batch)

    def _submit(self, batch: _PutBatch) -> None:
        records = [Record(value, key) for key, value in batch.entries()]
        try:
            data = build_batch(records, now_ms=self._clock.wall_ms())
            future = self._log.submit(data, is_checked=True)
        except MillstreamError as error:
            _fail_batch(batch, error)
            return
        self._in_flight.append(batch)
        future.add_done_callback(lambda done: self._on_done(batch, done))

    def _on_done(self, batch: _PutBatch, done: asyncio.Future[Appended]) -> None:
        """Apply a batch that is durable, or refuse one that is not.

        The log commits in the order of offsets, and a loop calls back in the order of completion,
        so what was applied last is what lies last in the log.
        """
        self._in_flight.remove(batch)
        error = LogClosed("the append was called off") if done.cancelled() else done.exception()
        if error is not None:
            _fail_batch(batch, error)
        else:
            self._apply(batch, done.result().offset)
            for put in batch.puts:
                if not put.future.done():
                    put.future.set_result(None)
        if self._settled is not None:
            settled, self._settled = self._settled, None
            settled.set_result(None)
        self._compact_if_worthwhile()

    def _apply(self, batch: _PutBatch, offset: int) -> None:
        compaction = self._compaction
        for key, value in batch.entries():
            self._apply_entry(key, value)
            if compaction is None:
                continue
            if offset < compaction.point:  # It was durable already, and is only now applied.
                compaction.todo.add(key)
            else:
                compaction.todo.discard(key)
                compaction.kept_bytes += _size_of(key, value)

    def _apply_entry(self, key: bytes, value: bytes | None) -> None:
        self._logged_bytes += _size_of(key, value)
        if (former := self.entries.pop(key, None)) is not None:
            self._live_bytes -= _size_of(key, former)
        if value is not None:
            self.entries[key] = value
            self._live_bytes += _size_of(key, value)

    # Compaction.

    def _compact_if_worthwhile(self) -> None:
        dead = self._logged_bytes - self._live_bytes
        if dead <= max(self._dead_bytes_min, 2 * self._live_bytes) or self._compacting:
            return
        if self._logged_bytes < self._logged_bytes_min or self._is_closed or self._log.offline:
            return
        self._compacting = asyncio.get_running_loop().create_task(self._compact())

    async def _compact(self) -> None:
        compaction = _Compaction(self._log.end_offset, set(self.entries))
        self._compaction = compaction
        try:
            while compaction.todo and not self._is_closed:
                if not await self._rewrite(compaction):
                    await self._settle()
            if not self._is_closed:
                await self._log.delete_before(compaction.point)
                self._logged_bytes = compaction.kept_bytes
                self.compactions += 1
        except MillstreamError as error:
            logger.warning("%s: not compacted: %s", self._log.name, error)
        finally:
            # Where that failed, it is tried again when some more is worth it.
            self._logged_bytes_min = self._logged_bytes + self._dead_bytes_min // 4
            self._compaction = self._compacting = None

    async def _rewrite(self, compaction: _Compaction) -> int:
        """Write once more all that is left to do and not in flight; returns how many that were."""
        count = 0
        keys = deque(compaction.todo)
        while not self._is_closed and (chunk := self._chunk(keys, compaction.todo)):
            count += len(chunk)
            await self.put(chunk)
        return count

    def _chunk(self, keys: deque[bytes], todo: set[bytes]) -> list[StateEntry]:
        """Take from `keys` what one batch may rewrite, with its present value."""
        busy = {key for put in self._gathered for key, _ in put.entries}
        busy.update(key for batch in self._in_flight for key, _ in batch.entries())
        chunk: list[StateEntry] = []
        size = 0
        while keys and len(chunk) < REWRITE_ENTRIES_MAX:
            key, value = keys[0], self.entries.get(keys[0])
            if value is None:
                todo.discard(key)
            elif key in todo and key not in busy:
                size += _size_of(key, value)
                if chunk and size > REWRITE_BYTES_MAX:
                    break
                chunk.append((key, value))
            keys.popleft()
        return chunk

    async def _settle(self) -> None:
        """Return when a batch that is in flight now has been applied or refused."""
        self._flush()
        if self._in_flight:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    # Ending.

    async def close(self) -> None:
        """Finish the puts that were made. The log stays with its store, which closes it."""
        self._is_closed = True
        self._flush()
        while self._in_flight:
            await self._settle()
        if self._compacting:
            await self._compacting


def _size_of(key: bytes, value: bytes | None) -> int:
    """Return what an entry takes in a batch, at the most."""
    return len(key) + len(value or b"") + _RECORD_OVERHEAD


def _fail_batch(batch: _PutBatch, error: BaseException) -> None:
    for put in batch.puts:
        if not put.future.done():
            put.future.set_exception(error)

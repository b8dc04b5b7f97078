"""A map kept in a log: the value of a key is the one that was put last.

    put -> gathered ----------------> in flight -----------------> applied to `entries`,
           all puts of one turn of    the log commits it, with     and the put's future ends
           the loop, one batch        what else it has to sync

The entries of one put are in one batch, so they are stored all or none. Opening reads the log from
its start; a record without a value deletes its key.

Compaction keeps the log in proportion to what is live. It remembers the end of the log, the point,
writes every entry that was put before the point again at the end, and then deletes all before the
point. Rules that make this safe at any moment:

1. An entry is rewritten with the value that it has when the rewriting batch is submitted, and only
   while no other put of the same key is in flight: the order in the log is then the order of the
   map.
2. A key that was put again since the point needs no rewriting: its record is after the point.
3. Nothing is deleted before every rewritten entry is durable. A crash before that leaves entries
   twice with equal values, and the next start compacts again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from millstream.broker.state.state_writer import (
    SEGMENT_BYTES_MAX,
    StateWriter,
    Write,
    fail_writes,
)
from millstream.clock import Clock, SystemClock
from millstream.config.schema import MIB, Durability, LogConfig
from millstream.errors import BatchTooLarge, CorruptData, LogClosed, MillstreamError
from millstream.records.batch import HEADER_SIZE
from millstream.records.record import Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

StateEntry = tuple[bytes, bytes | None]

REWRITE_BYTES_MAX = 1 * MIB
REWRITE_ENTRIES_MAX = 2_000
"""Entries that compaction encodes at once: a few milliseconds of the loop."""

DEAD_BYTES_MIN = 4 * MIB
"""With fewer dead bytes, no compaction is started."""

_RECORD_OVERHEAD = 32
"""Largest size of a record besides its key and value: its varints, all at their longest."""


@dataclass(slots=True)
class _Compaction:
    """A compaction in progress."""

    point: int
    """End of the log when the compaction started: all before it is going to be deleted."""
    todo: set[bytes]
    """Keys whose last durable record is before the point."""
    kept_bytes: int = 0
    """Bytes applied from the point on."""


class StateLog(StateWriter):
    """A durable map of bytes to bytes, owned by one event loop.

    `entries` holds what is durable: a put is visible there when its future ends, and never if it
    fails. Puts take effect in the order in which they were made.
    """

    def __init__(self, log: Log, clock: Clock, *, dead_bytes_min: int = DEAD_BYTES_MIN) -> None:
        super().__init__(log, clock, in_flight_max=math.inf)
        self.entries: dict[bytes, bytes] = {}
        self.compactions = 0
        """Compactions since the log was opened."""
        self._dead_bytes_min = dead_bytes_min

        # Sizes of entries, by `_size_of`: of all records in the log, and of those that are live.
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
        """Open the map stored as log `name`, or create an empty one.

        Raises if the log is damaged: a map that lacks entries must not be used.
        """
        log = await store.log(name, config=state_log_config(store.log_config))
        opened = cls(log, clock or SystemClock(), dead_bytes_min=dead_bytes_min)
        opened._replay()
        opened._compact_if_worthwhile()
        return opened

    @classmethod
    async def load(cls, log: Log, *, clock: Clock, background: Executor) -> StateLog:
        """Read the map that a log stores, in `background`. Raises as `open` does."""
        loaded = cls(log, clock)
        await background.run(loaded._replay)
        loaded._compact_if_worthwhile()
        return loaded

    @classmethod
    def read(cls, log: Log, clock: Clock) -> dict[bytes, bytes]:
        """Return the map that a log stores, and leave the log as it is. Raises as `open` does."""
        loaded = cls(log, clock)
        loaded._replay()
        return loaded.entries

    def _replay(self) -> None:
        for record in self._stored_records():
            if record.key is None:
                raise CorruptData(f"{self.log.name}: record {record.offset} has no key")
            self._apply_entry(record.key, record.value)

    @property
    def offline(self) -> MillstreamError | None:
        """Why the map refuses puts, if it does."""
        return self.log.offline

    # Putting.

    def put(self, entries: Sequence[StateEntry]) -> asyncio.Future[None]:
        """Set or, with `None`, delete keys: all of `entries` or none. Durable when done.

        Later entries win over earlier ones of the same key. Call it on the loop; cancelling the
        future does not cancel the put.
        """
        size = sum(_size_of(key, value) for key, value in entries)
        limit = self.log.config.batch_size_max - HEADER_SIZE
        if entries and size <= limit:
            return self._write([Record(value, key) for key, value in entries], size)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(LogClosed(f"{self.log.name} is closed"))
        elif entries:
            reason = f"a put must have at most {limit} bytes, got {size} in {len(entries)} entries"
            future.set_exception(BatchTooLarge(f"{self.log.name}: {reason}"))
        else:
            future.set_result(None)
        return future

    def _on_refused(self, batch: list[Write], error: BaseException) -> None:
        fail_writes(batch, error)

    def _on_durable(self, batch: list[Write], appended: Appended) -> None:
        compaction = self._compaction
        for key, value in _entries_of(batch):
            self._apply_entry(key, value)
            if compaction is None:
                continue
            if (
                appended.offset < compaction.point
            ):  # It was durable before, and is only now applied.
                compaction.todo.add(key)
            else:
                compaction.todo.discard(key)
                compaction.kept_bytes += _size_of(key, value)
        self._compact_if_worthwhile()

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
        if self._logged_bytes < self._logged_bytes_min or self.log.offline or not self._may_write:
            return
        self._compacting = asyncio.get_running_loop().create_task(self._compact())

    async def _compact(self) -> None:
        compaction = _Compaction(self.log.end_offset, set(self.entries))
        self._compaction = compaction
        try:
            while compaction.todo and self._may_write:
                if not await self._rewrite(compaction):
                    await self._wait_for_batch()
            if self._may_write:
                await self.log.delete_before(compaction.point)
                self._logged_bytes = compaction.kept_bytes
                self.compactions += 1
        except MillstreamError as error:
            logger.warning("%s: not compacted: %s", self.log.name, error)
        finally:
            # After a failure, wait for more garbage before the next attempt.
            self._logged_bytes_min = self._logged_bytes + self._dead_bytes_min // 4
            self._compaction = self._compacting = None

    async def _rewrite(self, compaction: _Compaction) -> int:
        """Rewrite all keys in `todo` that are not in flight; returns how many."""
        count = 0
        keys = deque(compaction.todo)
        while self._may_write and (chunk := self._chunk(keys, compaction.todo)):
            count += len(chunk)
            await self.put(chunk)
        return count

    def _chunk(self, keys: deque[bytes], todo: set[bytes]) -> list[StateEntry]:
        """Take from `keys` what one batch may rewrite, with the present values."""
        busy = {key for key, _ in _entries_of(self._gathered)}
        busy.update(key for batch in self._in_flight for key, _ in _entries_of(batch))
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

    # Closing.

    async def close(self) -> None:
        """Refuse new puts and finish the others. The store closes the log."""
        await super().close()
        if self._compacting:
            await self._compacting


def state_log_config(base: LogConfig) -> LogConfig:
    """Return the config of the log of a map, in a store with the config `base`."""
    return replace(
        base,
        durability=Durability.FSYNC,
        segment_bytes_max=min(SEGMENT_BYTES_MAX, base.segment_bytes_max),
    )


def _size_of(key: bytes, value: bytes | None) -> int:
    """Return the largest size that an entry can have in a batch."""
    return len(key) + len(value or b"") + _RECORD_OVERHEAD


def _entries_of(writes: Iterable[Write]) -> Iterator[StateEntry]:
    for write in writes:
        for record in write.records:
            yield cast("bytes", record.key), record.value

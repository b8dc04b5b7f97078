"""Append side of one partition: from a client's batch to its acknowledgement.

    append ── validate: size, format, checksum, timestamps, keys ──► log ── assign the offset,
              nothing is written yet                                        check the sequence ──►
      ──► commit ──► acknowledge

Invariants:

1. A batch is rejected before anything of it is written.
2. Sequences are checked in log order, at the moment an offset is assigned. If the log takes the
   offset back, the producer's state is rolled back with it.
3. A duplicate is acknowledged when the batch that it repeats is committed, and not before. A batch
   that only has the sequences of an earlier one is rejected; nothing is acknowledged unstored.
4. Batches get their offsets in the order in which they arrived, although the records of some have
   to be inspected in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from millstream.broker.partition.batch_opener import INLINE_BYTES_MAX, BatchOpener, sizes_of
from millstream.broker.partition.batch_validator import BatchValidator
from millstream.broker.partition.producers.entry import NOTHING, AppendedBatch
from millstream.broker.partition.producers.states import (
    DuplicateBatch,
    ProducerStates,
    ReusedSequence,
)
from millstream.broker.partition.replica import EarlyWaiter, PartitionReplica
from millstream.broker.partition.results import Appended, ProducerDescription, TimestampedAppend
from millstream.clock import Clock
from millstream.config.schema import Durability
from millstream.errors import (
    CorruptBatch,
    DamagedRecords,
    LogFull,
    MillstreamError,
    OffsetOutOfRange,
    Unavailable,
    again,
)
from millstream.records.batch import BatchHeader, Bytes, decode_header, with_append_time
from millstream.records.compression import OversizedBody
from millstream.records.control import Marker, build_marker
from millstream.records.iterate import read_all
from millstream.storage.append.pending_append import AppendWaiter, OnAdmit
from millstream.storage.log import Log

INLINE_SIZE_MAX = 16 * 1024
"""Batches up to this size are inspected on the event loop if their topic requires inspection, and
if they are not much larger without compression: that takes no longer than to wake a thread."""


class _ClientBatch:
    """A client's batch on its way to the log, which notifies it in place of the client's waiter.

    It exists for batches of idempotent producers, and for topics that inspect or change batches.
    To the log, a duplicate is a rejected batch; to the client it is a success.
    """

    __slots__ = (
        "_appender",
        "_expected_marker_offset",
        "_on_admit",
        "_waiter",
        "append_time_ms",
        "arrived_ms",
        "batch",
        "header",
        "is_early",
        "timeout",
    )

    def __init__(  # noqa: PLR0917 - created once for each batch.
        self,
        appender: PartitionAppender,
        header: BatchHeader,
        waiter: AppendWaiter,
        arrived_ms: int,
        timeout: float | None,
        is_early: bool,  # noqa: FBT001 - as above.
        expected_marker_offset: int | None,
        on_admit: OnAdmit | None,
    ) -> None:
        self._appender = appender
        self._waiter = waiter
        self._expected_marker_offset = expected_marker_offset
        self._on_admit = on_admit
        self.header = header
        self.batch: Bytes = b""
        """The batch as it is to be stored, once it is handed to the log."""
        self.arrived_ms = arrived_ms
        self.timeout = timeout
        self.is_early = is_early
        self.append_time_ms: int | None = None
        """The timestamp that the broker gave the records, if the topic uses log append time."""

    def admit(self, base_offset: int) -> None:
        """Check the batch against its producer's state and record it there, or raise."""
        appender = self._appender
        if self.header.producer_id >= 0:
            appender.states.admit(
                self.header,
                base_offset,
                now_ms=int(appender.clock.monotonic() * 1000),
                expected_marker_offset=self._expected_marker_offset,
            )
        if self._on_admit is not None:
            self._on_admit(base_offset)

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, result: Appended, /) -> None:
        if self.append_time_ms is not None:
            result = TimestampedAppend.of(result, self.append_time_ms)
        self._waiter.set_result(result)

    def set_exception(self, exception: Exception, /) -> None:
        first: AppendedBatch | None = None
        if isinstance(exception, DuplicateBatch):
            first = exception.first
        elif isinstance(exception, LogFull):  # A duplicate needs no space: it is stored already.
            first = self._appender.states.find_duplicate(self.header)
        elif isinstance(exception, ReusedSequence):
            self._appender.compare_with_first(self.batch, exception, self._waiter)
            return
        if first is not None:
            self._appender.acknowledge_duplicate(first, self._waiter)
        else:
            self._waiter.set_exception(exception)


def _inspect_inline(
    validator: BatchValidator, header: BatchHeader, batch: Bytes
) -> tuple[BatchHeader, Bytes] | None:
    """Inspect the records on the event loop; return `None` if that would take long."""
    if len(batch) > INLINE_SIZE_MAX or not sizes_of([(header, batch)]).is_inline:
        return None
    if not validator.may_inspect_inline:
        return None
    try:
        return validator.inspect(header, batch, size_max=INLINE_BYTES_MAX)
    except OversizedBody:  # It is larger than it says.
        return None


class _QueuedBatch(NamedTuple):
    """A batch whose records are being inspected, or which arrived after such a batch."""

    prepared: asyncio.Future[tuple[BatchHeader, Bytes]]
    batch: _ClientBatch


class _PendingDuplicate(NamedTuple):
    """A duplicate of a batch that is not committed yet."""

    last_offset: int
    waiter: AppendWaiter
    result: Appended


class PartitionAppender:
    """Appends client batches and transaction markers to the log of one partition."""

    def __init__(
        self,
        log: Log,
        states: ProducerStates,
        validator: BatchValidator,
        *,
        clock: Clock,
        opener: BatchOpener,
        refusal: MillstreamError | None = None,
    ) -> None:
        self._log = log
        self._opener = opener
        self._queue: deque[_QueuedBatch] = deque()
        self._duplicates: list[_PendingDuplicate] = []
        self._comparisons: set[asyncio.Task[None]] = set()
        self.states = states
        self.clock = clock
        self.validator = validator
        """Applies the topic's settings to each batch; may be replaced at any time."""
        self._refusal = refusal
        """The reason why appends are rejected, once they are."""
        self.replica: PartitionReplica | None = None
        """Asked before each append, in a cluster."""

    @property
    def next_offset(self) -> int:
        """The offset that the next batch gets."""
        return self._log.next_offset

    @property
    def offline(self) -> MillstreamError | None:
        """The reason why appends are rejected, or None."""
        return self._log.offline or self._refusal

    @property
    def last_sync_seconds(self) -> float | None:
        """Duration of the last sync, or None if acknowledgements do not wait for the disk."""
        log = self._log
        is_synced = log.config.durability is Durability.FSYNC
        return log.counters.last_sync_seconds if is_synced else None

    # Client batches.

    def append(
        self,
        batch: Bytes,
        waiter: AppendWaiter,
        *,
        timeout_ms: int | None = None,
        is_early: bool = False,
        expected_marker_offset: int | None = None,
        on_admit: OnAdmit | None = None,
        is_built: bool = False,
    ) -> None:
        """Append a client's batch and notify `waiter`, which may be a future.

        An invalid batch is either raised here or reported to `waiter`. `waiter` gets its result
        once the topic's durability class is met; for a duplicate, with the offsets of the first
        one. `batch` must not change before that.

        If too many bytes wait for the disk, the batch waits to be admitted, for at most
        `timeout_ms`; `DeadlineExceeded` then means that nothing was written. With `is_early` the
        result comes once the batch is written, although a power failure may still undo that;
        readers see the batch no earlier.

        `expected_marker_offset` is the value of `marker_offset_of` from before the coordinator was
        asked about the batch's transaction: if that was ended since, the batch is rejected.
        `on_admit` is called with the offset at the moment the batch gets it. With `is_built`, this
        node built the batch from single records.
        """
        if self._refusal is not None:
            raise again(self._refusal)
        if self.replica is not None:
            self.replica.check_append(is_all=not is_early)
            if is_early:
                waiter = EarlyWaiter(self.replica, waiter)
        now_ms = self.clock.wall_ms()
        validator = self.validator
        header = validator.check(batch, now_ms)
        timeout = None if timeout_ms is None else max(0, timeout_ms) / 1000
        if header.producer_id < 0 and validator.is_header_enough and not self._queue:
            # The hot path: no producer state to keep, and the batch is stored as it came.
            self._log.submit_for(
                waiter, batch, header, timeout=timeout, is_early=is_early, on_admit=on_admit
            )
            return
        client_batch = _ClientBatch(
            self, header, waiter, now_ms, timeout, is_early, expected_marker_offset, on_admit
        )
        must_inspect = validator.must_inspect(header, is_built=is_built)
        if not must_inspect and not self._queue:
            self._submit(client_batch, header, batch)
        elif self._queue or (inspected := _inspect_inline(validator, header, batch)) is None:
            self._enqueue(client_batch, batch, must_inspect=must_inspect)
        else:
            self._submit(client_batch, *inspected)

    def _enqueue(self, client_batch: _ClientBatch, batch: Bytes, *, must_inspect: bool) -> None:
        """Inspect the records in a thread; submit the batch after all that arrived before it."""
        header = client_batch.header
        prepared: asyncio.Future[tuple[BatchHeader, Bytes]]
        if must_inspect:
            prepared = asyncio.ensure_future(self._inspect(self.validator, header, batch))
        else:
            prepared = asyncio.get_running_loop().create_future()
            prepared.set_result((header, batch))
        self._queue.append(_QueuedBatch(prepared, client_batch))
        prepared.add_done_callback(self._submit_prepared)

    async def _inspect(
        self, validator: BatchValidator, header: BatchHeader, batch: Bytes
    ) -> tuple[BatchHeader, Bytes]:
        """Inspect the records in a thread."""

        def inspect(size_max: int) -> tuple[BatchHeader, Bytes]:
            return validator.inspect(header, batch, size_max=size_max)

        return await self._opener.run_in_thread(sizes_of([(header, batch)]), inspect)

    def _submit_prepared(self, _: asyncio.Future[tuple[BatchHeader, Bytes]]) -> None:
        while self._queue and self._queue[0].prepared.done():
            prepared, client_batch = self._queue.popleft()
            try:
                self._submit(client_batch, *prepared.result())
            except MillstreamError as error:
                _fail(client_batch, error)

    def _submit(self, client_batch: _ClientBatch, header: BatchHeader, batch: Bytes) -> None:
        """Hand a validated batch to the log."""
        if self._refusal is not None:  # It may have come while the records were inspected.
            raise again(self._refusal)
        if self.replica is not None:
            self.replica.check_append(is_all=not client_batch.is_early)
        if self.validator.is_append_time:
            client_batch.append_time_ms = client_batch.arrived_ms
            batch = with_append_time(batch, client_batch.arrived_ms)
            header = decode_header(batch)
        client_batch.header, client_batch.batch = header, batch
        self._log.submit_for(
            client_batch,
            batch,
            header,
            timeout=client_batch.timeout,
            is_early=client_batch.is_early,
            on_admit=client_batch.admit,
        )

    def acknowledge_duplicate(self, first: AppendedBatch, waiter: AppendWaiter) -> None:
        """Acknowledge a duplicate once the batch that it repeats is committed."""
        if self._log.config.durability is Durability.MEMORY:  # It is acknowledged before that.
            waiter.set_result(self._result_of(first))
        else:
            self._notify_when_committed(first, waiter)

    def _result_of(self, first: AppendedBatch) -> Appended:
        result = Appended(first.first_offset, first.last_offset, None)
        if self.validator.is_append_time:
            return TimestampedAppend.of(result, first.timestamp_ms)
        return result

    def _notify_when_committed(self, first: AppendedBatch, waiter: AppendWaiter) -> None:
        result = self._result_of(first)
        if first.last_offset < self._log.end_offset:
            waiter.set_result(result)
        elif self._refusal is not None:
            waiter.set_exception(self._refusal)
        else:
            self._duplicates.append(_PendingDuplicate(first.last_offset, waiter, result))

    def compare_with_first(
        self, batch: Bytes, reused: ReusedSequence, waiter: AppendWaiter
    ) -> None:
        """Acknowledge a batch as a duplicate if it has the records of the first one, or reject it.

        It has its sequences and another checksum, so the first one is read from the log.
        """
        task = asyncio.get_running_loop().create_task(self._compare(batch, reused, waiter))
        self._comparisons.add(task)
        task.add_done_callback(self._comparisons.discard)

    async def _compare(self, batch: Bytes, reused: ReusedSequence, waiter: AppendWaiter) -> None:
        first = reused.first
        committed: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._notify_when_committed(first, committed)  # It cannot be read before.
        size_max = self.validator.decompressed_max
        try:
            result = await committed
            is_same = await self._opener.run_large(
                partial(_is_stored, self._log, first, batch, size_max=size_max)
            )
        except MillstreamError as error:
            _fail(waiter, error)
            return
        if not is_same:
            _fail(waiter, reused)
        elif not waiter.done():
            waiter.set_result(result)

    # Transactions and producers.

    def marker_offset_of(self, producer_id: int) -> int:
        """Return the offset of the marker that ended the producer's last transaction, or -1."""
        entry = self.states.get(producer_id)
        return NOTHING if entry is None else entry.marker_offset

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has a transaction of this epoch open here."""
        entry = self.states.get(producer_id)
        return entry is not None and entry.is_in_transaction and entry.epoch == producer_epoch

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int
    ) -> int:
        """End a producer's transaction; return the marker's offset once it is committed.

        The marker is written even if no transaction is open: after a crash the coordinator may
        not know whether it was, and a marker fences batches of older epochs that are in flight.
        """
        if self._refusal is not None:
            raise again(self._refusal)
        if self.replica is not None:
            self.replica.check_append(is_all=True)
        batch = build_marker(
            producer_id,
            producer_epoch,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
            now_ms=self.clock.wall_ms(),
        )
        header, marker = decode_header(batch), Marker(is_commit, coordinator_epoch)

        def admit(offset: int) -> None:
            now_ms = int(self.clock.monotonic() * 1000)
            self.states.admit_marker(header, marker, offset, now_ms=now_ms)

        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._log.submit_for(future, batch, header, on_admit=admit)
        return (await future).offset

    def producers(self) -> list[ProducerDescription]:
        """Describe the producers that are remembered, in order of their ids."""
        return [
            ProducerDescription(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp_ms,
                entry.coordinator_epoch,
                entry.first_offset,
            )
            for producer_id, entry in sorted(self.states.all().items())
        ]

    def expire_producers(self) -> None:
        """Forget producers that were idle for too long."""
        self.states.expire(int(self.clock.monotonic() * 1000))

    # Events of the log.

    def note_commit(self) -> None:
        """React to a commit: the log's end offset has moved."""
        end_offset = self._log.end_offset
        if self.states.has_uncommitted:
            self.states.committed(end_offset)
        if self._duplicates:
            pending = []
            for duplicate in self._duplicates:
                if duplicate.last_offset >= end_offset:
                    pending.append(duplicate)
                elif not duplicate.waiter.done():
                    duplicate.waiter.set_result(duplicate.result)
            self._duplicates = pending

    def rewind(self, offset: int) -> None:
        """Roll back producer state: the log has taken back all offsets from `offset` on."""
        self.states.rewind(offset)
        error = Unavailable(f"{self._log.name}: the batch was taken back; it may be sent again")
        rejected = [item for item in self._duplicates if item.last_offset >= offset]
        self._duplicates = [item for item in self._duplicates if item.last_offset < offset]
        for duplicate in rejected:
            _fail(duplicate.waiter, error)

    def close(self, refusal: MillstreamError) -> None:
        """Reject appends from now on; batches that have an offset run to their end."""
        self._refusal = refusal
        for duplicate in self._duplicates:
            _fail(duplicate.waiter, refusal)
        self._duplicates.clear()


def _is_stored(log: Log, first: AppendedBatch, batch: Bytes, *, size_max: int) -> bool:
    """Return whether `batch` has the records that were stored at the offsets of `first`.

    Timestamps are not compared: a client may date its records again, and so may the broker. Runs in
    a thread.
    """
    try:
        stored = log.read(first.first_offset, size_max=0).data
        pairs = zip_longest(read_all(stored, size_max=size_max), read_all(batch, size_max=size_max))
        return all(
            old is not None
            and new is not None
            and (old.key, old.value, old.headers) == (new.key, new.value, new.headers)
            for old, new in pairs
        )
    except (CorruptBatch, DamagedRecords, OffsetOutOfRange):  # Deleted by now, or not readable.
        return False


def _fail(waiter: AppendWaiter, error: MillstreamError) -> None:
    if not waiter.done():
        waiter.set_exception(error)

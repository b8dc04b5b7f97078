"""Append queue: holds a batch until it is admitted or its deadline passes, and gives it an offset.

    submit -> waiting ------> pending -------------> ActiveSegments.flush
              no capacity     admitted, has an       one write for all that
              yet             offset                 one turn of the loop brought

Backpressure: only so many bytes may be admitted and not yet committed, for one log
(`unflushed_bytes_max`) and for all logs of the store (`ByteBudget`). Beyond that, batches wait in
the order in which they came; none overtakes another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    BackpressureKind,
    DeadlineExceeded,
    LogFull,
    MillstreamError,
    Unavailable,
    WouldBlock,
)
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.pending_append import PendingAppend
from millstream.storage.retention.size_limit import SizeLimit, has_size_limit
from millstream.storage.segment.log_context import LogContext

logger = logging.getLogger(__name__)


class AppendQueue:
    """The batches of one log that are not written yet.

    `flush` writes what is pending. `is_stalled` says whether that has to wait for a segment to be
    sealed. `on_rewind` is called with an offset when the offsets from it on are taken back.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        config: LogConfig,
        budget: ByteBudget,
        flush: Callable[[], None],
        is_stalled: Callable[[], bool],
        on_rewind: Callable[[int], None],
    ) -> None:
        self._name = context.name
        self._state = context.state
        self._counters = context.counters
        self._budget = budget
        self._flush = flush
        self._is_stalled = is_stalled
        self._on_rewind = on_rewind
        self._is_flush_scheduled = False
        self._waiting: deque[PendingAppend] = deque()
        self.pending: deque[PendingAppend] = deque()
        """Admitted batches that are not written yet, in the order of their offsets."""
        self.next_offset = self._state.durable_offset
        """The offset of the next admitted batch."""
        self.unflushed_bytes = 0
        """Bytes that were admitted and are not committed yet."""
        self._refusal: MillstreamError | None = None
        self._is_replica = False
        self._blocked: MillstreamError | None = None
        """Why an append is refused at once: the log is offline or closed, or a replica."""
        self._config = config
        self._configure(config)

    def apply_config(self, config: LogConfig) -> None:
        self._configure(config)
        self.admit_waiting()

    @property
    def refusal(self) -> MillstreamError | None:
        """Why no batch is accepted any more: the log is offline or closed."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: MillstreamError | None) -> None:
        self._refusal = self._blocked = refusal
        if refusal is None and self._is_replica:
            self._blocked = _replica_refusal(self._name)

    @property
    def is_replica(self) -> bool:
        """Whether batches come from the leader of the log, and no other are accepted."""
        return self._is_replica

    @is_replica.setter
    def is_replica(self, is_replica: bool) -> None:
        self._is_replica = is_replica
        self.refusal = self._refusal
        self._configure(self._config)

    def _configure(self, config: LogConfig) -> None:
        self._config = config
        self.batch_size_max = config.batch_size_max
        self._unflushed_bytes_max = config.unflushed_bytes_max
        self._is_memory = config.durability is Durability.MEMORY
        has_limit = has_size_limit(config) and not self._is_replica  # The leader had room.
        self._size_limit = SizeLimit(self._name, self._state, config) if has_limit else None

    def check_writable(self) -> None:
        """Raise `LogClosed` or `LogOffline` if the log accepts nothing any more."""
        if self._refusal is not None:
            # Without this, each raise would add its frames, and the batches in them, to the error.
            raise self._refusal.with_traceback(None)

    def check_accepts(self) -> None:
        """Raise if an append is refused: `LogClosed`, `LogOffline`, or because of a replica."""
        if self._blocked is not None:
            raise self._blocked.with_traceback(None)

    # Admission.

    def submit(self, append: PendingAppend, timeout: float | None) -> None:
        """Admit a batch, now or in its turn; refuse it if it waits for `timeout` seconds."""
        if self._blocked is not None:
            self.check_accepts()
        if self._waiting or self._why_over_capacity(append.size) is not None:
            self._wait(append, timeout)
        else:
            self._admit(append)

    def submit_slice(self, append: PendingAppend, timeout: float | None) -> None:
        """Admit what the leader of a replica sent, like a batch."""
        self.check_writable()
        if self._waiting or self._why_over_capacity(append.size) is not None:
            self._wait(append, timeout)
        else:
            self._admit(append)

    def submit_now(self, append: PendingAppend) -> None:
        """Admit a batch now, or raise `WouldBlock` with the reason."""
        self.check_accepts()
        if self._waiting or self._why_over_capacity(append.size) is not None:
            kind, reason = self._why_wait(append.size)
            self._counters.refusals[kind] += 1
            raise WouldBlock("other batches wait before it" if self._waiting else reason, kind)
        self._admit(append)

    def admit_waiting(self) -> None:
        """Admit the batches that wait, as far as there is capacity."""
        while self._waiting:
            append = self._waiting[0]
            is_abandoned = append.waiter.done()
            if not is_abandoned and self._why_over_capacity(append.size) is not None:
                self._budget.wait(self)
                return
            self._waiting.popleft()
            append.cancel_deadline()
            if not is_abandoned:
                self._admit(append)

    def release(self, size: int) -> None:
        """Give back the capacity of bytes that were committed or refused."""
        self.unflushed_bytes -= size
        self._budget.release(size)
        if self._waiting:
            self.admit_waiting()

    def _admit(self, append: PendingAppend) -> None:
        """Give a batch its offset, unless the log is full or the appender refuses the offset."""
        header, offset = append.header, self.next_offset
        try:
            # A full log still accepts the markers that end transactions: without them, readers of
            # committed records would wait forever.
            if self._size_limit is not None and not header.is_control:
                self._size_limit.check(
                    unflushed=self.unflushed_bytes,
                    next_offset=offset,
                    size=append.size,
                    records=header.record_count,
                )
            if append.on_admit is not None:
                append.on_admit(offset)
                append.on_admit = None  # It may refer to the append: a cycle keeps its memory.
        except Exception as error:  # noqa: BLE001 - passed on to the appender, who may have raised it.
            if isinstance(error, LogFull):
                self._counters.refusals["limit"] += 1
            append.refuse(error)
            return
        append.offset = offset
        append.next_offset = self.next_offset = offset + header.last_offset_delta + 1
        self.pending.append(append)
        self.unflushed_bytes += append.size
        self._budget.acquire(append.size)
        if self._is_memory and not self._is_replica:  # Which tells its leader what is written.
            # The caller may reuse its buffer once the batch is acknowledged.
            append.batch = bytes(append.batch)
            append.acknowledge()
        if not self._is_flush_scheduled:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """Write what is pending at the end of this turn of the loop, in one write."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_flush)

    def _run_flush(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    # Waiting.

    def _wait(self, append: PendingAppend, timeout: float | None) -> None:
        kind, _ = self._why_wait(append.size)
        self._counters.waits[kind] += 1
        self._waiting.append(append)
        self._budget.wait(self)
        if timeout is not None:
            loop = asyncio.get_running_loop()
            append.deadline = loop.call_later(timeout, self._expire, append, timeout)

    def _expire(self, append: PendingAppend, timeout: float) -> None:
        """Refuse a batch whose deadline passed before it was admitted."""
        if append.waiter.done():
            return
        kind, reason = self._why_wait(append.size)
        self._waiting.remove(append)
        self._counters.refusals[kind] += 1
        append.refuse(DeadlineExceeded(f"not admitted within {timeout} s: {reason}", kind))

    def _why_wait(self, size: int) -> tuple[BackpressureKind, str]:
        """Return why a batch of `size` bytes has to wait, for programs and for people.

        A batch that only waits behind others waits for its log.
        """
        why = self._why_over_capacity(size)
        return why or ("log", "other batches wait before it")

    def _why_over_capacity(self, size: int) -> tuple[BackpressureKind, str] | None:
        """Return why a batch of `size` bytes cannot be admitted now; None if it can."""
        # A single batch larger than the limit is admitted when nothing else is unflushed.
        unflushed = self.unflushed_bytes
        if unflushed and unflushed + size > self._unflushed_bytes_max:
            limit = self._unflushed_bytes_max
            return "log", f"{unflushed} bytes are unflushed, limit is {limit}"
        budget = self._budget
        if not budget.has_capacity(size):
            return (
                "store",
                f"{budget.used} bytes of all logs are unflushed, limit is {budget.bytes_max}",
            )
        if self.pending and self._is_stalled():
            return "sealing", "two segments wait to be sealed"
        return None

    # Refusal.

    def rewind(self, offset: int) -> None:
        """Take back the offsets from `offset` on, if any were given."""
        if self.next_offset > offset:
            self.next_offset = offset
            self._on_rewind(offset)

    def refuse_waiting(self, error: MillstreamError) -> None:
        """Refuse all batches that have no offset yet."""
        refused, self._waiting = self._waiting, deque()
        for append in refused:
            append.cancel_deadline()
            append.refuse(error)

    def refuse_pending(self, error: MillstreamError) -> None:
        """Refuse all batches that have an offset and are not written."""
        self.refuse_all(self.pending, error)

    def refuse_all(self, appends: deque[PendingAppend], error: MillstreamError) -> None:
        """Refuse admitted batches, remove them from `appends` and give back their capacity."""
        refused = list(appends)
        appends.clear()  # First: `release` may admit others.
        for append in refused:
            append.refuse(error)
        if refused:
            self.release(sum(append.size for append in refused))


def _replica_refusal(name: str) -> Unavailable:
    return Unavailable(f"{name} is a replica: only its leader takes batches")

"""Backpressure: who may append now, who has to wait, and who is told so.

A bounded number of bytes may be on their way to the disk, for one log and for all logs of the
store. Beyond that appenders wait in the order in which they came; nobody overtakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millstream.errors import DeadlineExceeded, MillstreamError, WouldBlock
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.pending_append import AppendWaiter, PendingAppend
from millstream.storage.segment.counters import LogCounters


class Admission:
    """The gate of one log.

    `admit` is called with each batch that may pass, in order, and says whether it was taken: its
    appender may refuse it at the last moment, and then it counts for nothing.
    """

    def __init__(
        self,
        *,
        unflushed_bytes_max: int,
        budget: ByteBudget,
        admit: Callable[[PendingAppend], bool],
        why_stalled: Callable[[], str | None],
        counters: LogCounters | None = None,
    ) -> None:
        self._counters = counters or LogCounters()
        self.unflushed_bytes_max = unflushed_bytes_max
        self._budget = budget
        self._admit = admit
        self._why_stalled = why_stalled
        self._waiting: deque[PendingAppend] = deque()
        self.unflushed = 0

    def enter(self, append: PendingAppend) -> None:
        """Admit a batch, now or when its turn comes."""
        if self._why_wait(append.size):
            self._count_wait(append.size)
            self._waiting.append(append)
            self._budget.wait(self)
        else:
            self._pass(append)

    def enter_now(self, append: PendingAppend) -> None:
        """Admit a batch now, or raise `WouldBlock`."""
        if reason := self._why_wait(append.size):
            raise WouldBlock(reason)
        self._pass(append)

    def give_up(self, waiter: AppendWaiter, seconds: float) -> None:
        """Refuse the batch of `waiter` if it has not been admitted after `seconds`."""
        for append in self._waiting:
            if append.waiter is waiter:
                reason = self._why_no_room(append.size) or "others wait before it"
                self._waiting.remove(append)
                append.refuse(DeadlineExceeded(f"not admitted within {seconds} s: {reason}"))
                return

    def admit_waiting(self) -> None:
        """Admit those who wait, as far as there is room."""
        while self._waiting:
            append = self._waiting[0]
            if not append.waiter.done() and self._why_no_room(append.size):
                self._budget.wait(self)
                return
            self._waiting.popleft()
            if not append.waiter.done():
                self._pass(append)

    def leave(self, size: int) -> None:
        """Count bytes that were flushed or refused, and admit those who waited for that."""
        self.unflushed -= size
        self._budget.give(size)
        if self._waiting:
            self.admit_waiting()

    def refuse_waiting(self, error: MillstreamError) -> None:
        """Refuse all who wait."""
        doomed, self._waiting = self._waiting, deque()
        for append in doomed:
            append.refuse(error)

    def _pass(self, append: PendingAppend) -> None:
        if self._admit(append):
            self.unflushed += append.size
            self._budget.take(append.size)

    def _count_wait(self, size: int) -> None:
        """Count a batch that waits: for this log, for all logs, or for a segment to be sealed."""
        counters = self._counters
        is_full = self.unflushed and self.unflushed + size > self.unflushed_bytes_max
        if not is_full and not self._budget.has_room(size):
            counters.waits_store += 1
        elif not is_full and self._why_stalled() is not None:
            counters.waits_sealing += 1
        else:  # Whoever waits behind others of the log waits for the log.
            counters.waits_log += 1

    def _why_wait(self, size: int) -> str | None:
        if self._waiting:
            return "others wait before it"
        return self._why_no_room(size)

    def _why_no_room(self, size: int) -> str | None:
        if self.unflushed and self.unflushed + size > self.unflushed_bytes_max:
            return f"{self.unflushed} bytes are unflushed, limit is {self.unflushed_bytes_max}"
        if not self._budget.has_room(size):
            budget = self._budget
            return f"{budget.used} bytes of all logs are unflushed, limit is {budget.bytes_max}"
        return self._why_stalled()

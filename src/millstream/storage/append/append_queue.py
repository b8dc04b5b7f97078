"""How batches come to a log: checked, let in when there is room, given up when that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.errors import Unavailable
from millstream.records.batch import BatchHeader, Bytes
from millstream.storage.append.admission import Admission
from millstream.storage.append.pending_append import (
    Appended,
    AppendWaiter,
    OnAdmit,
    PendingAppend,
    validate_batch,
)
from millstream.storage.segment.counters import LogCounters


class AppendQueue:
    """The way into one log. `check` raises where it takes nothing any more."""

    def __init__(
        self,
        admission: Admission,
        *,
        batch_size_max: int,
        counters: LogCounters,
        check: Callable[[], None],
    ) -> None:
        self.batch_size_max = batch_size_max
        self._admission = admission
        self._counters = counters
        self._check = check

    def submit(
        self,
        batch: Bytes,
        *,
        is_checked: bool,
        on_admit: OnAdmit | None = None,
        timeout: float | None = None,
        is_early: bool = False,
        header: BatchHeader | None = None,
    ) -> asyncio.Future[Appended]:
        """Take a batch in, now or when there is room; the future ends with its commit.

        Where `is_early`, it ends when the batch is written, if that comes first. A caller that
        gives the `header` has checked the batch as `validate_batch` would.
        """
        self._check()
        if header is None:
            header = validate_batch(batch, size_max=self.batch_size_max, is_checked=is_checked)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        append = PendingAppend(header, batch, future, on_admit, is_early=is_early)
        self._admission.enter(append)
        if (alarm := self._alarm(append, timeout)) is not None:
            future.add_done_callback(lambda _: alarm.cancel())
        return future

    def submit_for(
        self,
        waiter: AppendWaiter,
        batch: Bytes,
        header: BatchHeader,
        *,
        timeout: float | None,
        is_early: bool,
    ) -> None:
        """Append a batch that passed `validate_batch`, and notify `waiter` of its commit."""
        self._check()
        append = PendingAppend(header, batch, waiter, is_early=is_early)
        self._admission.enter(append)
        if append.offset < 0:
            self._alarm(append, timeout)

    def submit_now(self, batch: Bytes, *, is_checked: bool) -> asyncio.Future[Appended]:
        """Take a batch in now, or raise `WouldBlock`."""
        self._check()
        header = validate_batch(batch, size_max=self.batch_size_max, is_checked=is_checked)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            self._admission.enter_now(PendingAppend(header, batch, future))
        except Unavailable:
            self._counters.refusals_busy += 1
            raise
        return future

    def _alarm(self, append: PendingAppend, timeout: float | None) -> asyncio.TimerHandle | None:
        """Have a batch refused that still has not been admitted after `timeout` seconds."""
        if timeout is None or append.offset >= 0 or append.waiter.done():
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(timeout, self._give_up_waiting, append, timeout)

    def _give_up_waiting(self, append: PendingAppend, seconds: float) -> None:
        if append.offset < 0 and not append.waiter.done():
            self._admission.give_up(append.waiter, seconds)
            self._counters.refusals_busy += append.waiter.done()

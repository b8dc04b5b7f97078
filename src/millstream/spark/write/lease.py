"""Lease of a write: its transactions stay open as long as one of its tasks runs.

    task 0    writes ─────────► done
    task 1    writes ──────────────────────────► done     driver: publish
    lease     renewed, for all tasks of the write ──►┐────────┘
                                                     └─ expires after transactionLeaseMs

A task that has finished cannot keep its own transaction open, because its process serves others by
then. So each running task renews all transactions of the write. What a killed job leaves expires
soon, and a write that runs for long does not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
"""Renewals that a lease allows to fail, and one."""

RETRY_S = 2.0
"""Pause after a renewal that failed: shorter than the time that a node that was restarted gives to
open transactions."""


class TransactionLease:
    """Calls `renew` in a thread while the block runs, for at most `duration_ms_max`.

    The first call comes after a quarter of the lease, so a short task makes none.
    """

    def __init__(
        self,
        renew: Callable[[], object],
        *,
        lease_ms: int,
        duration_ms_max: int,
        clock: Clock | None = None,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """Make a lease; `wait` waits for an event or for some seconds."""
        self._renew = renew
        self._interval_s = lease_ms / 1000 / RENEWALS_PER_LEASE
        self._duration_s = duration_ms_max / 1000
        self._clock = clock or SystemClock()
        self._wait = wait
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transaction-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()

    def _run(self) -> None:
        end = self._clock.monotonic() + self._duration_s
        pause_s = self._interval_s
        while not self._wait(self._is_over, pause_s) and self._clock.monotonic() < end:
            pause_s = self._interval_s
            try:
                self._renew()
            except MillstreamError as error:
                logger.warning("the transactions of this write could not be renewed: %s", error)
                pause_s = min(RETRY_S, self._interval_s)

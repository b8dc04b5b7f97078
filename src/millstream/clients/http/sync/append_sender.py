"""Appends of all threads of a client: one thread sends for all that wait for a partition.

A thread that finds a partition idle sends everything that waits for it, including its own records;
the others wait. When the request is done, each thread gets the outcome of its records, and the
first of those that arrived meanwhile sends next. So no thread sends for others longer than its own
records take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from millstream.clients.http.core.append.appender import (
    Appender,
    AppendOutcome,
    Rows,
    merge_outcomes,
)
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.append.partition_appends import PartitionAppends, RecordGroup
from millstream.clients.http.core.steps import Steps
from millstream.clients.http.core.values import Placed
from millstream.errors import NodeUnreachable


class _Ticket:
    """Wait handle of one thread."""

    __slots__ = ("is_sender", "outcome", "wakeup")

    def __init__(self) -> None:
        self.wakeup = threading.Event()
        self.outcome: AppendOutcome | None = None
        self.is_sender = False
        """Whether this thread sends next."""


class AppendSender:
    """Sends the appends of all threads of a client."""

    def __init__(self, appender: Appender, run: Callable[[Steps[Any]], Any]) -> None:
        self._appender = appender
        self._run = run
        self._lock = threading.Lock()

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        """Append records and return where each of them was stored."""
        rows: Rows | None = self._run(self._appender.place(topic, records))
        if rows is None:
            placed: list[Placed] = self._run(self._appender.append_unplaced(topic, records))
            self._appender.record_unplaced(topic, records, placed)
            return placed
        return self._deliver_rows(topic, rows, len(records))

    def close(self) -> None:
        """Do nothing: closing the connections fails the appends of other threads."""

    def _deliver_rows(self, topic: str, rows: Rows, count: int) -> list[Placed]:
        """Append rows to their partitions and return the positions of the `count` records."""
        outcomes = {
            partition: self._deliver(self._appender.partition_appends(topic, partition), texts)
            for partition, (_, texts) in rows.items()
        }
        self._appender.record(topic, rows, outcomes)
        return merge_outcomes(rows, outcomes, count)

    def _deliver(self, appends: PartitionAppends, texts: list[bytes]) -> AppendOutcome:
        ticket = _Ticket()
        group = self._appender.record_group(texts, ticket)
        with self._lock:
            appends.waiting.append(group)
            ticket.is_sender = not appends.is_busy
            appends.is_busy = True
        if not ticket.is_sender:
            self._wait(appends, group)
        if ticket.is_sender:
            self._send(appends)
        assert ticket.outcome is not None
        return ticket.outcome

    def _wait(self, appends: PartitionAppends, group: RecordGroup) -> None:
        ticket: _Ticket = group.ticket
        try:
            ticket.wakeup.wait()
        except BaseException:  # Interrupted: the others must not wait for this thread.
            with self._lock:
                if group in appends.waiting:
                    appends.waiting.remove(group)
                if ticket.is_sender:
                    self._hand_over(appends)
            raise

    def _send(self, appends: PartitionAppends) -> None:
        """Send the waiting groups; the caller's own is the first."""
        with self._lock:
            groups = appends.take()
        interrupted = NodeUnreachable("client", "the append was interrupted", may_be_done=True)
        outcomes: list[AppendOutcome] = [interrupted] * len(groups)
        try:
            outcomes = self._run(self._appender.deliver(appends, groups))
        finally:
            with self._lock:
                for group, outcome in zip(groups, outcomes, strict=True):
                    group.ticket.outcome = outcome
                    group.ticket.wakeup.set()
                self._hand_over(appends)

    def _hand_over(self, appends: PartitionAppends) -> None:
        """Make the next waiting thread the sender, if there is one."""
        appends.is_busy = bool(appends.waiting)
        if appends.waiting:
            following: _Ticket = appends.waiting[0].ticket
            following.is_sender = True
            following.wakeup.set()

"""Appends of several threads: one of those that wait for a partition sends for all of them.

Whoever finds a lane idle sends what waits there, its own among it. Others wait. When the request is
done, each is told what became of its records, and the first of those that came meanwhile sends
next. So no thread sends for others for longer than its own records take.
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
    """What a thread waits by."""

    __slots__ = ("is_called", "outcome", "sends")

    def __init__(self) -> None:
        self.is_called = threading.Event()
        self.outcome: AppendOutcome | None = None
        self.sends = False
        """Whether it is the one that sends now."""


class AppendSender:
    """The appends of all threads of a client."""

    def __init__(self, appender: Appender, run: Callable[[Steps[Any]], Any]) -> None:
        self._appending = appender
        self._run = run
        self._guard = threading.Lock()

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        """Append records and return where each of them was stored."""
        rows: Rows | None = self._run(self._appending.place(topic, records))
        if rows is None:
            placed: list[Placed] = self._run(self._appending.append_unplaced(topic, records))
            self._appending.note_unplaced(topic, records, placed)
            return placed
        return self._deliver_rows(topic, rows, len(records))

    def close(self) -> None:
        """Do nothing: closing the connections fails the appends of other threads."""

    def _deliver_rows(self, topic: str, rows: Rows, count: int) -> list[Placed]:
        """Append rows to their partitions; return where each of the `count` records went."""
        outcomes = {
            partition: self._deliver(self._appending.lane(topic, partition), texts)
            for partition, (_, texts) in rows.items()
        }
        self._appending.note(topic, rows, outcomes)
        return merge_outcomes(rows, outcomes, count)

    def _deliver(self, lane: PartitionAppends, texts: list[bytes]) -> AppendOutcome:
        ticket = _Ticket()
        parcel = self._appending.parcel(texts, ticket)
        with self._guard:
            lane.waiting.append(parcel)
            ticket.sends = not lane.is_busy
            lane.is_busy = True
        if not ticket.sends:
            self._wait(lane, parcel)
        if ticket.sends:
            self._send(lane)
        assert ticket.outcome is not None
        return ticket.outcome

    def _wait(self, lane: PartitionAppends, parcel: RecordGroup) -> None:
        ticket: _Ticket = parcel.ticket
        try:
            ticket.is_called.wait()
        except BaseException:  # An interrupt: the others must not wait for this thread.
            with self._guard:
                if parcel in lane.waiting:
                    lane.waiting.remove(parcel)
                if ticket.sends:
                    self._pass_on(lane)
            raise

    def _send(self, lane: PartitionAppends) -> None:
        """Send what waits, with the caller's own parcel at its front."""
        with self._guard:
            parcels = lane.take()
        called_off = NodeUnreachable("client", "the append was called off", may_be_done=True)
        outcomes: list[AppendOutcome] = [called_off] * len(parcels)
        try:
            outcomes = self._run(self._appending.deliver(lane, parcels))
        finally:
            with self._guard:
                for parcel, outcome in zip(parcels, outcomes, strict=True):
                    parcel.ticket.outcome = outcome
                    parcel.ticket.is_called.set()
                self._pass_on(lane)

    def _pass_on(self, lane: PartitionAppends) -> None:
        """Have the next thread send, where one waits."""
        lane.is_busy = bool(lane.waiting)
        if lane.waiting:
            following: _Ticket = lane.waiting[0].ticket
            following.sends = True
            following.is_called.set()

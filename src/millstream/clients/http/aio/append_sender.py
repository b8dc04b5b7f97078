"""Appends of several tasks: those that wait for the same partition share the next request.

What is not answered yet is bounded by its bytes, all partitions together. Beyond that, who
appends waits before its records are taken in, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
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


class AsyncAppendSender:
    """The appends of all tasks of a client."""

    def __init__(self, appender: Appender, run: Callable[[Steps[Any]], Awaitable[Any]]) -> None:
        self._appending = appender
        self._run = run
        self._waiting_bytes_max = appender.config.waiting_bytes_max
        self._partition_count_lock = asyncio.Lock()
        self._waiting_bytes = 0
        self._doors: deque[tuple[asyncio.Future[None], int]] = deque()
        """Those who wait to be taken in, with how much."""
        self._senders: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        """Append records and return where each of them was stored."""
        rows = await self._place(topic, records)
        if rows is None:
            placed: list[Placed] = await self._run(self._appending.append_unplaced(topic, records))
            if self._appending.is_noting:
                await asyncio.to_thread(self._appending.note_unplaced, topic, records, placed)
            return placed
        return await self._deliver(topic, rows, len(records))

    async def _place(self, topic: str, records: Sequence[NewRecord]) -> Rows | None:
        """Choose a partition for each record.

        The partition count may have to be fetched from the node. Then one task fetches it and the
        others wait for the lock.
        """
        steps = self._appending.place(topic, records)
        rows: Rows | None
        if (
            self._appending.known_count(topic) is not None
            and not self._partition_count_lock.locked()
        ):
            rows = await self._run(steps)
        else:
            async with self._partition_count_lock:
                rows = await self._run(steps)
        return rows

    async def _deliver(self, topic: str, rows: Rows, count: int) -> list[Placed]:
        """Append rows to their partitions; return where each of the `count` records went."""
        await self._be_taken_in(sum(len(text) for _, texts in rows.values() for text in texts))
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[AppendOutcome]] = {}
        for partition, (_, texts) in rows.items():
            futures[partition] = loop.create_future()
            parcel = self._appending.parcel(texts, futures[partition])
            self._add(self._appending.lane(topic, partition), parcel)
        # Who is called off stops waiting; the records are on their way.
        outcomes = {partition: await future for partition, future in futures.items()}
        if self._appending.is_noting:
            await asyncio.to_thread(self._appending.note, topic, rows, outcomes)
        return merge_outcomes(rows, outcomes, count)

    async def close(self) -> None:
        """Send nothing more: what waits, or is under way, fails."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        for lane in self._appending.lanes():  # A sender may not have come to its first step.
            self._give_up(lane, [], "the client was closed")
            lane.is_busy = False

    # Who may wait.

    async def _be_taken_in(self, size: int) -> None:
        """Return when there is room for so many bytes more, which are counted from then on."""
        if self._waiting_bytes < self._waiting_bytes_max and not self._doors:
            self._waiting_bytes += size
            return
        door: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._doors.append((door, size))
        try:
            await door
        except BaseException:
            if (door, size) in self._doors:
                self._doors.remove((door, size))
            elif not door.cancelled():
                self._release(size)  # It was let in at the same moment.
            raise

    def _release(self, size: int) -> None:
        """Count bytes no more, and let in who waits for the room."""
        self._waiting_bytes -= size
        while self._doors and self._waiting_bytes < self._waiting_bytes_max:
            door, wanted = self._doors.popleft()
            if not door.done():
                self._waiting_bytes += wanted
                door.set_result(None)

    # Sending.

    def _add(self, lane: PartitionAppends, parcel: RecordGroup) -> None:
        lane.waiting.append(parcel)
        if not lane.is_busy:
            lane.is_busy = True
            sender = asyncio.get_running_loop().create_task(self._send_all(lane))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send_all(self, lane: PartitionAppends) -> None:
        """Send what waits in a lane, until nothing does."""
        parcels: list[RecordGroup] = []
        try:
            while parcels := lane.take():
                outcomes: list[AppendOutcome] = await self._run(
                    self._appending.deliver(lane, parcels)
                )
                for parcel, outcome in zip(parcels, outcomes, strict=True):
                    self._tell(parcel, outcome)
        except BaseException as error:
            self._give_up(lane, parcels, f"the append was called off: {error!r}")
            raise
        finally:
            lane.is_busy = False

    def _give_up(self, lane: PartitionAppends, sent: list[RecordGroup], reason: str) -> None:
        for parcel in sent:
            self._tell(parcel, NodeUnreachable("client", reason, may_be_done=True))
        while lane.waiting:
            parcel = lane.waiting.popleft()
            self._tell(parcel, NodeUnreachable("client", reason, may_be_done=False))

    def _tell(self, parcel: RecordGroup, outcome: AppendOutcome) -> None:
        future: asyncio.Future[AppendOutcome] = parcel.ticket
        if not future.done():
            future.set_result(outcome)
        self._release(parcel.size)

"""Appends of all tasks of a client: those that wait for the same partition share the next request.

The bytes of unacknowledged appends are limited, for all partitions together. Beyond the limit,
appends wait for capacity in the order in which they came.
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
    """Sends the appends of all tasks of a client."""

    def __init__(self, appender: Appender, run: Callable[[Steps[Any]], Awaitable[Any]]) -> None:
        self._appender = appender
        self._run = run
        self._waiting_bytes_max = appender.config.waiting_bytes_max
        self._partition_count_lock = asyncio.Lock()
        self._waiting_bytes = 0
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        """Appends that wait for capacity, with their sizes."""
        self._senders: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        """Append records and return where each of them was stored."""
        rows = await self._place(topic, records)
        if rows is None:
            placed: list[Placed] = await self._run(self._appender.append_unplaced(topic, records))
            if self._appender.is_recording:
                await asyncio.to_thread(self._appender.record_unplaced, topic, records, placed)
            return placed
        return await self._deliver(topic, rows, len(records))

    async def _place(self, topic: str, records: Sequence[NewRecord]) -> Rows | None:
        """Choose a partition for each record.

        The partition count may have to be fetched from the node. Then one task fetches it and the
        others wait for the lock.
        """
        steps = self._appender.place(topic, records)
        rows: Rows | None
        if (
            self._appender.known_count(topic) is not None
            and not self._partition_count_lock.locked()
        ):
            rows = await self._run(steps)
        else:
            async with self._partition_count_lock:
                rows = await self._run(steps)
        return rows

    async def _deliver(self, topic: str, rows: Rows, count: int) -> list[Placed]:
        """Append rows to their partitions and return the positions of the `count` records."""
        await self._wait_for_capacity(
            sum(len(text) for _, texts in rows.values() for text in texts)
        )
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[AppendOutcome]] = {}
        for partition, (_, texts) in rows.items():
            futures[partition] = loop.create_future()
            group = self._appender.record_group(texts, futures[partition])
            self._add(self._appender.partition_appends(topic, partition), group)
        # A caller that is cancelled stops waiting; its records are sent all the same.
        outcomes = {partition: await future for partition, future in futures.items()}
        if self._appender.is_recording:
            await asyncio.to_thread(self._appender.record, topic, rows, outcomes)
        return merge_outcomes(rows, outcomes, count)

    async def close(self) -> None:
        """Fail all appends that are waiting or in flight."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        # A sender that was cancelled before its first step has not failed its appends.
        for appends in self._appender.all_partition_appends():
            self._fail_all(appends, [], "the client was closed")
            appends.is_busy = False

    # Capacity.

    async def _wait_for_capacity(self, size: int) -> None:
        """Wait until `size` more bytes are allowed, and count them."""
        if self._waiting_bytes < self._waiting_bytes_max and not self._waiters:
            self._waiting_bytes += size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((waiter, size))
        try:
            await waiter
        except BaseException:
            if (waiter, size) in self._waiters:
                self._waiters.remove((waiter, size))
            elif not waiter.cancelled():
                self._release(size)  # It was admitted and cancelled at the same time.
            raise

    def _release(self, size: int) -> None:
        """Release the capacity of an append and admit waiters."""
        self._waiting_bytes -= size
        while self._waiters and self._waiting_bytes < self._waiting_bytes_max:
            waiter, wanted = self._waiters.popleft()
            if not waiter.done():
                self._waiting_bytes += wanted
                waiter.set_result(None)

    # Sending.

    def _add(self, appends: PartitionAppends, group: RecordGroup) -> None:
        appends.waiting.append(group)
        if not appends.is_busy:
            appends.is_busy = True
            sender = asyncio.get_running_loop().create_task(self._send_all(appends))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send_all(self, appends: PartitionAppends) -> None:
        """Send the waiting groups of a partition until there are none."""
        groups: list[RecordGroup] = []
        try:
            while groups := appends.take():
                outcomes: list[AppendOutcome] = await self._run(
                    self._appender.deliver(appends, groups)
                )
                for group, outcome in zip(groups, outcomes, strict=True):
                    self._complete(group, outcome)
        except BaseException as error:
            self._fail_all(appends, groups, f"the append was cancelled: {error!r}")
            raise
        finally:
            appends.is_busy = False

    def _fail_all(self, appends: PartitionAppends, sent: list[RecordGroup], reason: str) -> None:
        for group in sent:
            self._complete(group, NodeUnreachable("client", reason, may_be_done=True))
        while appends.waiting:
            group = appends.waiting.popleft()
            self._complete(group, NodeUnreachable("client", reason, may_be_done=False))

    def _complete(self, group: RecordGroup, outcome: AppendOutcome) -> None:
        future: asyncio.Future[AppendOutcome] = group.ticket
        if not future.done():
            future.set_result(outcome)
        self._release(group.size)

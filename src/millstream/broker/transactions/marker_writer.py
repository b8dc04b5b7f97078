"""Marker writer: tells the partitions and groups of a transaction its outcome.

The outcome is durable before the first marker is written, so writing can only go forward. On any
obstacle (a full disk, a partition that is offline or has another leader now) it waits and tries
again, also after a restart. Every step may be repeated: a second marker ends nothing, and changes
nothing for readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from millstream.broker.transactions.marker_sender import MarkerSender, ProducerMarker
from millstream.broker.transactions.transaction import TransactionMetadata
from millstream.clock import Timers
from millstream.errors import InvalidProducerEpoch, MillstreamError, UnknownLog, UnknownTopic
from millstream.records.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
"""Between attempts, doubled each time. Writes have to resume within 10 s after disk space is
freed."""


class MarkedGroups(Protocol):
    """The part of `GroupCoordinators` that this module needs."""

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """Commit or drop the offsets that the producer staged; return when that is durable."""
        ...


class MarkerWriter:
    """Writes the outcome of transactions to partitions and groups."""

    def __init__(
        self, sender: MarkerSender, groups: MarkedGroups, timers: Timers, *, coordinator_epoch: int
    ) -> None:
        self._sender = sender
        self._groups = groups
        self._timers = timers
        self._coordinator_epoch = coordinator_epoch

    async def write(self, transaction: TransactionMetadata, unmarked: set[TopicPartition]) -> None:
        """Return when all partitions in `unmarked` and all groups know the outcome, durably.

        Removes each partition from the set when it is done. A topic that was deleted in the
        meantime counts as done.
        """
        async with asyncio.TaskGroup() as tasks:
            for partition in tuple(unmarked):
                tasks.create_task(self._mark(transaction, partition, unmarked))
            if transaction.groups:
                tasks.create_task(self._finish_groups(transaction))

    async def _mark(
        self,
        transaction: TransactionMetadata,
        partition: TopicPartition,
        unmarked: set[TopicPartition],
    ) -> None:
        marker = ProducerMarker(
            transaction.producer.id,
            transaction.producer.epoch,
            self._coordinator_epoch,
            transaction.is_commit,
        )

        async def mark() -> None:
            try:
                await self._sender.write(partition, marker)
            except (UnknownTopic, UnknownLog):
                return  # The topic was deleted, and its part of the transaction with it.
            except InvalidProducerEpoch:
                return  # The partition has a newer epoch: this transaction is not open there.

        await self._retry(f"{partition.topic}-{partition.partition}", mark)
        unmarked.discard(partition)

    async def _finish_groups(self, transaction: TransactionMetadata) -> None:
        async def finish() -> None:
            await self._groups.finish_transaction(
                transaction.producer.id,
                transaction.producer.epoch,
                transaction.groups,
                is_commit=transaction.is_commit,
            )

        await self._retry(f"groups of {transaction.transactional_id!r}", finish)

    async def _retry(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` until it succeeds."""
        retry_s = RETRY_S_MIN
        while True:
            try:
                return await work()
            except MillstreamError as error:
                is_first = retry_s == RETRY_S_MIN
                level = logging.WARNING if is_first else logging.DEBUG
                logger.log(
                    level,
                    "%s: cannot write the outcome of a transaction, retrying: %s",
                    what,
                    error,
                )
            except asyncio.CancelledError:
                # If it is something that this waits for that was cancelled, nothing is written yet.
                # A group of tasks would take it for the end of this one, and the outcome for told.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                logger.exception("%s: the outcome of a transaction is written again", what)
            except Exception:
                # Else the id would wait for the end of this transaction until the next start.
                logger.exception("%s: cannot write the outcome of a transaction, retrying", what)
            await sleep_on_timers(self._timers, retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)


async def sleep_on_timers(timers: Timers, seconds: float) -> None:
    """Return after `seconds`."""
    passed = asyncio.Event()
    timer = timers.call_later(seconds, passed.set)
    try:
        await passed.wait()
    finally:
        timer.cancel()

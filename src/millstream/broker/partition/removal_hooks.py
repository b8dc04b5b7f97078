"""Hooks through which a partition tells its log which records may be removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from millstream.broker.partition.producers.states import ProducerStates
from millstream.broker.partition.reader import PartitionReader
from millstream.records.filter.rules import AbortedOffsets


class RetentionHold(Protocol):
    """Keeps records from being deleted by retention, such as the unfinished jobs of a queue."""

    def needed_offset(self) -> int:
        """Return the first offset that is still needed, by the decisions made so far."""
        ...

    async def settle(self) -> None:
        """Wait until the decisions made so far are durable; raise if they will not be."""
        ...


class PartitionRemovalHooks:
    """The removal hooks of one partition; see `RemovalHooks` in `storage`."""

    def __init__(
        self,
        reader: PartitionReader,
        states: ProducerStates,
        *,
        save: Callable[[], Awaitable[None]],
        retention_hold: Callable[[], RetentionHold | None],
        lake_position: Callable[[], int | None],
    ) -> None:
        self._reader = reader
        self._states = states
        self._save = save
        self._retention_hold = retention_hold
        self._lake_position = lake_position

    def stable_offset(self) -> int:
        """Return the last stable offset: all transactions before it have ended, durably."""
        return self._reader.last_stable_offset

    def aborted(self, first: int, end: int) -> list[AbortedOffsets]:
        """Return the aborted transactions that overlap the offsets from `first` to before `end`."""
        return [
            AbortedOffsets(
                producer_id=aborted.producer_id,
                first_offset=aborted.first_offset,
                last_offset=aborted.last_offset,
            )
            for aborted in self._states.aborted.ranges(first, end)
        ]

    def needed_offset(self) -> int | None:
        """Return the first offset that must be kept, or None if nothing needs one."""
        hold, lake = self._retention_hold(), self._lake_position()
        if hold is None:
            return lake
        return hold.needed_offset() if lake is None else min(lake, hold.needed_offset())

    async def before_removal(self) -> None:
        """Make durable what the retention hold no longer needs, then save the producer states.

        If saving the producer states fails, the records are removed all the same: a full disk must
        not keep them. After a crash, producers whose records are gone are then unknown.
        """
        if (hold := self._retention_hold()) is not None:
            await hold.settle()
        await self._save()

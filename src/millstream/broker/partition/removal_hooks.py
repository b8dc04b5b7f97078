"""What a partition knows of the records in its log, for those who remove some of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from millstream.broker.partition.producers.states import ProducerStates
from millstream.broker.partition.reader import PartitionReader
from millstream.records.filter.rules import AbortedOffsets


class RetentionHold(Protocol):
    """Someone who needs records whatever retention says, as a queue does its jobs."""

    def needed_offset(self) -> int:
        """Return the first offset that is still needed, by what is decided up to now."""
        ...

    async def settle(self) -> None:
        """Return when what was decided up to now is durable; raises where it will not be."""
        ...


class PartitionRemovalHooks:
    """Guards the log of one partition: see `storage.guard.Guard`."""

    def __init__(
        self,
        reader: PartitionReader,
        states: ProducerStates,
        *,
        save: Callable[[], Awaitable[None]],
        retention_hold: Callable[[], RetentionHold | None],
    ) -> None:
        self._reader = reader
        self._states = states
        self._save = save
        self._retention_hold = retention_hold

    def stable_offset(self) -> int:
        """Return the last stable offset: all transactions before it have ended, durably."""
        return self._reader.last_stable_offset

    def aborted(self, first: int, end: int) -> list[AbortedOffsets]:
        """Return the aborted transactions that overlap the offsets from `first` to before `end`."""
        return [
            AbortedOffsets(
                producer_id=found.producer_id,
                first_offset=found.first_offset,
                last_offset=found.last_offset,
            )
            for found in self._states.aborted.ranges(first, end)
        ]

    def needed_offset(self) -> int | None:
        """Return the first offset that must stay; `None` where nobody needs any."""
        hold = self._retention_hold()
        return None if hold is None else hold.needed_offset()

    async def before_removal(self) -> None:
        """Write down what is known of the producers.

        Where that fails, records go all the same: a full disk must not keep them. Producers whose
        records are gone are then told, after a crash, that they are not known any more. Whoever
        needs records first makes durable that it needs some no more.
        """
        if (hold := self._retention_hold()) is not None:
            await hold.settle()
        await self._save()

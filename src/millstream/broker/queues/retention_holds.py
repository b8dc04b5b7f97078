"""Who keeps retention from jobs that are not done: see `broker.guard.Keeper`."""

from __future__ import annotations

from typing import Protocol

from millstream.broker.queues.state import QueueStateMachine


class HeldQueue(Protocol):
    """What a keeper has to know of a queue."""

    @property
    def state(self) -> QueueStateMachine:
        """What is known of its jobs."""
        ...

    @property
    def is_usable(self) -> bool:
        """Whether the state is what the log says, or is about to say."""
        ...

    async def settle(self) -> None:
        """Return when all that was decided up to now is durable."""
        ...


class UnfinishedJobsHold:
    """Keeps the jobs of one partition that are not done."""

    def __init__(self, ledger: HeldQueue, index: int) -> None:
        self._ledger = ledger
        self._index = index

    def needed_offset(self) -> int:
        """Return the first offset that is not done; the first of all where that is not known."""
        if not self._ledger.is_usable:
            return 0
        lane = self._ledger.state.lanes.get(self._index)
        return 0 if lane is None else lane.needed_offset

    async def settle(self) -> None:
        """Return when it is durable what is done."""
        await self._ledger.settle()


class HoldEverything:
    """Keeps every record: nobody can say which jobs of a refused queue are done."""

    def needed_offset(self) -> int:
        """Return the first offset that there can be."""
        return 0

    async def settle(self) -> None:
        """Nothing is undecided."""

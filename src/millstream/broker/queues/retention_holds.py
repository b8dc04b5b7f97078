"""Retention holds of queues: unfinished jobs are kept. See `partition.removal_hooks`."""

from __future__ import annotations

from typing import Protocol

from millstream.broker.queues.state import QueueStateMachine


class HeldQueue(Protocol):
    """The part of a queue that a hold needs."""

    @property
    def state(self) -> QueueStateMachine: ...

    @property
    def is_usable(self) -> bool:
        """Whether the state matches the log, including the events in flight."""
        ...

    async def settle(self) -> None:
        """Return when all decisions made so far are durable."""
        ...


class UnfinishedJobsHold:
    """Holds the unfinished jobs of one partition."""

    def __init__(self, store: HeldQueue, index: int) -> None:
        self._store = store
        self._index = index

    def needed_offset(self) -> int:
        """Return the first offset that is not finished; 0 if that is not known."""
        if not self._store.is_usable:
            return 0
        partition_jobs = self._store.state.partitions.get(self._index)
        return 0 if partition_jobs is None else partition_jobs.needed_offset

    async def settle(self) -> None:
        """Return when it is durable which jobs are finished."""
        await self._store.settle()


class ReportedHold:
    """Holds the unfinished jobs of a queue that another node coordinates.

    Its coordinator tells from time to time which jobs are finished. Jobs that are finished stay so,
    and the first one that is not only rises: a report that is late or lost keeps records longer.
    """

    def __init__(self) -> None:
        self._needed_offset = 0

    def advance(self, needed_offset: int) -> None:
        """Note that all jobs before an offset are finished, durably."""
        self._needed_offset = max(self._needed_offset, needed_offset)

    def needed_offset(self) -> int:
        return self._needed_offset

    async def settle(self) -> None:
        """Do nothing: the coordinator tells only what is durable."""


class HoldEverything:
    """Holds every record of a refused queue, as it is not known which jobs are finished."""

    def needed_offset(self) -> int:
        return 0

    async def settle(self) -> None:
        """Do nothing: there are no decisions."""

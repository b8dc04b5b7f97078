"""What a partition knows of the records in its log, for those who remove some of them."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.producer_saving import SnapshotSaving
from millstream.broker.producers import ProducerStates
from millstream.records.rules import Aborted


class PartitionGuard:
    """Guards the log of one partition: see `storage.guard.Guard`."""

    def __init__(
        self,
        *,
        stable_offset: Callable[[], int],
        states: ProducerStates,
        saving: SnapshotSaving,
    ) -> None:
        self.stable_offset = stable_offset
        """Returns the last stable offset: all before it was decided, durably."""
        self._states = states
        self._saving = saving

    def aborted(self, first: int, end: int) -> list[Aborted]:
        """Return the aborted transactions that overlap the offsets from `first` to before `end`."""
        return [
            Aborted(
                producer_id=found.producer_id,
                first_offset=found.first_offset,
                last_offset=found.last_offset,
            )
            for found in self._states.aborted.ranges(first, end)
        ]

    async def before_removal(self) -> None:
        """Write down what is known of the producers.

        Where that fails, records go all the same: a full disk must not keep them. Producers whose
        records are gone are then told, after a crash, that they are not known any more.
        """
        await self._saving.save()

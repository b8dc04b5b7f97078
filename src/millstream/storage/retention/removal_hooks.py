"""What whoever uses a log knows of its records, and the log does not.

A log stores batches and does not follow transactions or producers. Who does, as the broker, guards
the log: it says which records are settled, and is asked before records go that it may still need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.records.filter.batch_filter import AbortedOffsets


class RemovalHooks(Protocol):
    """The guard of one log. A log without one has no transactions that anybody follows.

    Called on the event loop of the log.
    """

    def stable_offset(self) -> int:
        """Return an offset before which no record belongs to an open transaction."""
        ...

    def aborted(self, first: int, end: int) -> list[AbortedOffsets]:
        """Return the aborted transactions that overlap the offsets from `first` to before `end`.

        All of them that anybody was ever told of, where `end` is at or before the stable offset.
        """
        ...

    def needed_offset(self) -> int | None:
        """Return the first offset that must not be evicted; `None` where all may be.

        It holds once `before_removal`, called after it, has returned.
        """
        ...

    async def before_removal(self) -> None:
        """Make durable what records that are about to go are the last witness of.

        What it raises keeps the records from going.
        """
        ...

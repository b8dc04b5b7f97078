"""Hooks through which the broker tells a log which records may be removed.

A log stores batches and does not track transactions or producers. The broker does: it says which
records are settled, and is called before records are removed that it may still need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.records.filter.batch_filter import AbortedOffsets


class RemovalHooks(Protocol):
    """The hooks of one log. A log without hooks has no tracked transactions.

    Called on the event loop of the log.
    """

    def stable_offset(self) -> int:
        """Return an offset before which no record belongs to an open transaction."""
        ...

    def aborted(self, first: int, end: int) -> list[AbortedOffsets]:
        """Return the aborted transactions that overlap the offsets from `first` to `end` - 1.

        Complete if `end` is at or before the stable offset.
        """
        ...

    def needed_offset(self) -> int | None:
        """Return the first offset that must not be evicted; `None` if all may be.

        Valid once `before_removal`, called after it, has returned.
        """
        ...

    async def before_removal(self) -> None:
        """Make state durable that otherwise only the records to be removed hold.

        An exception keeps the records from being removed.
        """
        ...

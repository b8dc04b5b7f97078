"""Rules for the removal of records, as far as batch headers decide.

`remaining.py` and the kernels decide by the records themselves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from millstream.records.batch import BatchHeader

if TYPE_CHECKING:
    from millstream.records.filter.keys.table import KeyTable

_HORIZON_MAX = 2**62
"""Horizon of tombstones that are kept forever: beyond any clock; deltas to it fit into 64 bits."""

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedOffsets:
    """The offsets of an aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Which records to remove. The defaults remove nothing.

    `start_offset` and `deleted` apply to data only: control batches stay, except for commit markers
    if `aborted` is given, and for old cleaning decisions.
    """

    start_offset: int = 0
    """Records before it are removed."""

    deleted: array[int] = field(default_factory=lambda: array("q"))
    """Sorted offsets of records to remove."""

    key_table: KeyTable | None = None
    """A record is removed if the table has a later offset for its key; one without a key stays."""

    aborted: Sequence[AbortedOffsets] | None = None
    """`None`: transactions stay as they are. Otherwise all transactions are resolved: the records
    of these are removed; all other transactional batches were committed, so their transactional
    bit is cleared, and commit markers are removed. Abort markers stay, for readers that know of
    the abort.
    """

    now_ms: int = 0
    """Time of the retention clock, by which tombstones expire."""

    tombstone_ms: int | None = None
    """How long a tombstone stays after its first filter pass. `None`: tombstones stay forever."""

    tombstones_before: int | None = None
    """If given, tombstones of batches before this offset are removed, and no others: the leader of
    the log, which decided that, knows their age. Horizons only tell where tombstones are left.
    """

    cleanings_before: int = 0
    """Cleaning decisions before this offset are removed: a later one holds instead."""

    producers: frozenset[int] = frozenset()
    """Base offsets of batches that stay, as headers without records if none remains. They hold the
    last sequence and epoch of a producer.
    """

    _transactions: dict[int, list[tuple[int, int]]] = field(init=False, repr=False, compare=False)
    """First and last offsets of the aborted transactions of each producer, ascending."""

    def __post_init__(self) -> None:
        transactions: dict[int, list[tuple[int, int]]] = {}
        for transaction in sorted(self.aborted or (), key=attrgetter("first_offset")):
            offsets = transactions.setdefault(transaction.producer_id, [])
            offsets.append((transaction.first_offset, transaction.last_offset))
        object.__setattr__(self, "_transactions", transactions)

    def clears_transaction(self, header: BatchHeader) -> bool:
        """Whether the transactional bit of a data batch is cleared."""
        return self.aborted is not None and header.is_transactional

    def removes_all(self, header: BatchHeader) -> bool:
        """Whether all records of a data batch are removed, by its header alone."""
        return header.last_offset < self.start_offset or self._is_aborted(header)

    def may_remove_some(self, header: BatchHeader) -> bool:
        """Whether the records of a data batch have to be decoded."""
        return (
            header.base_offset < self.start_offset
            or self.tombstone_ms is not None
            or (self.tombstones_before is not None and header.last_offset < self.tombstones_before)
            or (self.key_table is not None and self.key_table.count > 0)
            or self.removes_some_offsets(header)
        )

    def removes_offset(self, offset: int) -> bool:
        """Whether a data record is removed because of its offset."""
        index = bisect_left(self.deleted, offset)
        is_deleted = index < len(self.deleted) and self.deleted[index] == offset
        return is_deleted or offset < self.start_offset

    def removes_some_offsets(self, header: BatchHeader) -> bool:
        """Whether `deleted` contains offsets of this batch."""
        index = bisect_left(self.deleted, header.base_offset)
        return index < len(self.deleted) and self.deleted[index] <= header.last_offset

    def removes_tombstones(self, header: BatchHeader) -> bool:
        """Whether the tombstones of this batch have expired."""
        if self.tombstones_before is not None:
            return header.last_offset < self.tombstones_before
        return (
            self.tombstone_ms is not None
            and header.has_horizon
            and self.now_ms >= header.base_timestamp
        )

    def horizon(self, header: BatchHeader) -> int | None:
        """Return the horizon that a batch gets if it keeps tombstones; `None` if it gets none.

        It replaces the base timestamp. If the difference of the two does not fit into 64 bits,
        there is no horizon, and the tombstones stay.
        """
        if self.tombstone_ms is None or header.has_horizon:
            return None
        horizon = min(self.now_ms + self.tombstone_ms, _HORIZON_MAX)
        return horizon if header.base_timestamp - horizon in _INT64 else None

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.producer_id not in self._transactions:
            return False
        transactions = self._transactions[header.producer_id]
        index = bisect_right(transactions, header.base_offset, key=itemgetter(0))
        return index > 0 and transactions[index - 1][1] >= header.base_offset

"""Which records go when batches are sifted, as far as a batch's header tells.

What only the records tell is decided in `rest.py` and by the kernels.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.records.batch import BatchHeader

if TYPE_CHECKING:
    from millstream.records.filter.keys.table import KeyTable

_HORIZON_MAX = 2**62
"""For who keeps tombstones forever: beyond any clock, and any delta to it still has 64 bits."""

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedOffsets:
    """A transaction that was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Which records go. The defaults remove nothing.

    `start_offset` and `deleted` are about data only: control batches stay, save that commit markers
    go where `aborted` is given.
    """

    start_offset: int = 0
    """Records before it go."""

    deleted: array[int] = field(default_factory=lambda: array("q"))
    """Sorted offsets of records that go."""

    latest: KeyTable | None = None
    """A record goes if the table knows a later offset of its key; one without a key stays."""

    aborted: Sequence[AbortedOffsets] | None = None
    """`None`: transactions are left as they are. Otherwise all batches are settled: the records of
    these transactions go; all other transactional batches were committed, so they lose the bit that
    says so, and commit markers go. Abort markers stay, for the readers that know of them."""

    now_ms: int = 0
    """Steady time, which tombstones are measured by."""

    tombstone_ms: int | None = None
    """How long a tombstone stays after it was first sifted. `None`: tombstones stay untouched."""

    producers: frozenset[int] = frozenset()
    """Base offsets of batches that stay, as headers without records where no record is left. They
    tell the last sequence and epoch of a producer."""

    _transactions: dict[int, list[tuple[int, int]]] = field(init=False, repr=False, compare=False)
    """First and last offsets of the aborted transactions of each producer, rising."""

    def __post_init__(self) -> None:
        transactions: dict[int, list[tuple[int, int]]] = {}
        for each in sorted(self.aborted or (), key=lambda each: each.first_offset):
            found = transactions.setdefault(each.producer_id, [])
            found.append((each.first_offset, each.last_offset))
        object.__setattr__(self, "_transactions", transactions)

    def settles(self, header: BatchHeader) -> bool:
        """Whether a batch of data loses its transactional bit."""
        return self.aborted is not None and header.is_transactional

    def remove_all(self, header: BatchHeader) -> bool:
        """Whether all records of a batch of data go, whatever they are."""
        return header.last_offset < self.start_offset or self._is_aborted(header)

    def may_remove_some(self, header: BatchHeader) -> bool:
        """Whether the records of a batch of data have to be looked at."""
        return (
            header.base_offset < self.start_offset
            or self.tombstone_ms is not None
            or (self.latest is not None and self.latest.count > 0)
            or self.name_some(header)
        )

    def name(self, offset: int) -> bool:
        """Whether a record of data goes because of where it lies."""
        index = bisect_left(self.deleted, offset)
        is_deleted = index < len(self.deleted) and self.deleted[index] == offset
        return is_deleted or offset < self.start_offset

    def name_some(self, header: BatchHeader) -> bool:
        """Whether `deleted` has offsets of this batch."""
        index = bisect_left(self.deleted, header.base_offset)
        return index < len(self.deleted) and self.deleted[index] <= header.last_offset

    def remove_tombstones(self, header: BatchHeader) -> bool:
        """Whether the time of this batch's tombstones is over."""
        return (
            self.tombstone_ms is not None
            and header.has_horizon
            and self.now_ms >= header.base_timestamp
        )

    def horizon(self, header: BatchHeader) -> int | None:
        """The horizon that a batch gets if it keeps tombstones; `None` if it gets none.

        It takes the place of the base timestamp. Where that lies so far away that the difference
        has more than 64 bits there is no horizon, and the tombstones stay.
        """
        if self.tombstone_ms is None or header.has_horizon:
            return None
        horizon = min(self.now_ms + self.tombstone_ms, _HORIZON_MAX)
        return horizon if header.base_timestamp - horizon in _INT64 else None

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.producer_id not in self._transactions:
            return False
        transactions = self._transactions[header.producer_id]
        index = bisect_right(transactions, header.base_offset, key=lambda each: each[0])
        return index > 0 and transactions[index - 1][1] >= header.base_offset

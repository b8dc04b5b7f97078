"""Which records compaction was right to take: those whose key came again.

Nothing is left of a record that was compacted away. But a later record of its key has to be there,
or a tombstone of its key was acknowledged later, whose time may be over too. All keys of a
partition do not fit into memory, so they are sorted: by key, the latest first.

     0         8               16
    +---------+---------------+------------------------------------------+
    | key sum | 2^64 - 1      | entry of `books.py`, where it is missing;|
    |         | - offset      | zeros, where a record is there           |
    +---------+---------------+------------------------------------------+

A record of an aborted transaction counts here as one that is there. So that a record was lost is
overlooked where one of the same key, later and aborted, is still in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from millstream.audit.verification.ack_index import ENTRY_SIZE, AckIndex, IndexedAck
from millstream.audit.verification.external_sort import ENTRIES_MAX, ExternalSort

_PLACE = struct.Struct(">QQ")
_THERE = bytes(ENTRY_SIZE)
_OFFSET_END = 2**64 - 1


class SupersededKeys:
    """The keys of one partition: of records that are missing, and of those that are there."""

    def __init__(self, books: AckIndex, *, entries_max: int = ENTRIES_MAX) -> None:
        self._books = books
        self._sort = ExternalSort(_PLACE.size + ENTRY_SIZE, entries_max=entries_max)
        self.has_missing = False
        """Whether any record is missing so far. Before the first, no other can have replaced it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sort.close()

    def add_missing(self, noted: IndexedAck) -> None:
        """Take a record that is missing, and that has a key."""
        assert noted.key is not None, "compaction keeps what has no key"
        self.has_missing = True
        self._sort.add(_PLACE.pack(noted.key, _OFFSET_END - noted.offset) + noted.entry)

    def add_there(self, key: int, offset: int) -> None:
        """Take a record that is there."""
        self._sort.add(_PLACE.pack(key, _OFFSET_END - offset) + _THERE)

    def missing(self) -> Iterator[tuple[IndexedAck, bool]]:
        """Go over the missing records, and say of each whether it may be gone."""
        key_before, is_covered = None, False
        for entry in self._sort.entries():
            key, rest = entry[:8], entry[_PLACE.size :]
            if key != key_before:
                key_before, is_covered = key, False
            if rest == _THERE:
                is_covered = True
                continue
            noted = self._books.noted(rest)
            is_covered = is_covered or noted.value is None
            yield noted, is_covered

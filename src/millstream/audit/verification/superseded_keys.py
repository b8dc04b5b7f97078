"""Missing records that compaction was allowed to delete, because their key was written again.

Nothing is left of a record that was compacted away. But there must be a later record of its key, or
an acknowledged later tombstone of its key, which may itself have been deleted. The keys of a
partition do not fit into memory, so they are sorted on disk: by key, latest offset first.

     0         8               16
    +---------+---------------+------------------------------------------+
    | key     | 2^64 - 1      | entry of `ack_index.py` if it is missing;|
    | checksum| - offset      | zeros if the record is present           |
    +---------+---------------+------------------------------------------+

A record of an aborted transaction counts as present. So a lost record is overlooked if a later,
aborted record of the same key is still in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Self

from millstream.audit.verification.ack_index import ENTRY_SIZE, AckIndex, IndexedAck
from millstream.audit.verification.external_sort import ENTRIES_MAX, ExternalSort

_KEY_AND_OFFSET = struct.Struct(">QQ")
_PRESENT = bytes(ENTRY_SIZE)
_OFFSET_END = 2**64 - 1


class SupersededKeys:
    """Keys of one partition: of missing records and of present ones."""

    def __init__(self, ack_index: AckIndex, *, entries_max: int = ENTRIES_MAX) -> None:
        self._ack_index = ack_index
        self._sort = ExternalSort(_KEY_AND_OFFSET.size + ENTRY_SIZE, entries_max=entries_max)
        self.has_missing = False
        """Whether any record is missing so far. Records before it cannot supersede it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sort.close()

    def add_missing(self, ack: IndexedAck) -> None:
        """Add a missing record, which must have a key."""
        assert ack.key is not None, "compaction keeps records without a key"
        self.has_missing = True
        self._sort.add(_KEY_AND_OFFSET.pack(ack.key, _OFFSET_END - ack.offset) + ack.entry)

    def add_present(self, key: int, offset: int) -> None:
        """Add a record that is present."""
        self._sort.add(_KEY_AND_OFFSET.pack(key, _OFFSET_END - offset) + _PRESENT)

    def missing(self) -> Iterator[tuple[IndexedAck, bool]]:
        """Yield the missing records, each with whether it was superseded."""
        key_before, is_covered = None, False
        for entry in self._sort.entries():
            key, entry_data = entry[:8], entry[_KEY_AND_OFFSET.size :]
            if key != key_before:
                key_before, is_covered = key, False
            if entry_data == _PRESENT:
                is_covered = True
                continue
            ack = self._ack_index.decode(entry_data)
            is_covered = is_covered or ack.value is None
            yield ack, is_covered

"""Cache of batches without the records that were deleted from them by key.

A record that was deleted by key stays in its file until that is rewritten; until then a *mask*
lists the offsets of a segment that no reader may see. A batch with such records is rebuilt without
them when it is read. That decodes all of its records, so the last few results are cached: readers
that follow each other through a log pay once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from millstream.records.batch import BatchHeader, Bytes
from millstream.records.filter.batch_filter import remove_offsets

STRIPPED_BYTES_MAX = 4 * 1024 * 1024
"""Size of the cache of one log: a few reads ahead of the slower of two readers."""


class StrippedBatchCache:
    """The last stripped batches of one log. Threads may share it."""

    def __init__(self, bytes_max: int = STRIPPED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._cache: OrderedDict[tuple[str, int, bytes], memoryview] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes in the cache."""
        return self._size

    def get(self, path: str, position: int, batch: Bytes, deleted: array[int]) -> memoryview:
        """Return `batch`, which is at `position` of a segment, without the `deleted` records."""
        key = (path, position, deleted.tobytes())
        with self._lock:
            if cached := self._cache.get(key):
                self._cache.move_to_end(key)
                return cached
        stripped = memoryview(remove_offsets(batch, deleted))
        with self._lock:
            self._keep(key, stripped)
        return stripped

    def _keep(self, key: tuple[str, int, bytes], stripped: memoryview) -> None:
        if key in self._cache or len(stripped) > self._bytes_max:
            return
        self._cache[key] = stripped
        self._size += len(stripped)
        while self._size > self._bytes_max:
            _, oldest = self._cache.popitem(last=False)
            self._size -= len(oldest)


class DeletedRecordFilter(NamedTuple):
    """The deleted offsets of one segment, and the cache of its batches without them."""

    offsets: array[int]
    """Sorted."""
    stripped: StrippedBatchCache

    def next_at(self, offset: int) -> int | None:
        """Return the first deleted offset at or after `offset`."""
        index = bisect_left(self.offsets, offset)
        return self.offsets[index] if index < len(self.offsets) else None

    def within(self, header: BatchHeader) -> array[int]:
        """Return the deleted offsets of one batch."""
        first = bisect_left(self.offsets, header.base_offset)
        return self.offsets[first : bisect_right(self.offsets, header.last_offset, lo=first)]

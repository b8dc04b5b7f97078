"""LRU cache of memory-mapped sealed files.

A map costs no descriptor, only address space, so thousands of segments can be open for reading.
Dropping a map from the cache does not affect a reader: the memory is released with the last view of
it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from millstream.storage.disk.filesystem import Filesystem

T = TypeVar("T")


class FileCache(Generic[T]):
    """The most recently used values by path, at most `count_max` of them. Threads may share it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, path: str, load: Callable[[], T]) -> T:
        """Return the value for `path`; load it if it is not cached."""
        with self._lock:
            if path in self._values:
                self._values.move_to_end(path)
                return self._values[path]
            forgotten = self._forgotten
        value = load()
        with self._lock:
            if forgotten != self._forgotten:
                return value  # It may be the old value that was to be dropped.
            self._values[path] = value
            while len(self._values) > self._count_max:
                self._values.popitem(last=False)
        return value

    def peek(self, path: str) -> T | None:
        """Return the value for `path` if it is cached; does not count as a use.

        Takes no lock: a single lookup is atomic.
        """
        return self._values.get(path)

    def forget(self, path: str) -> None:
        """Drop the value for `path`, because the file was changed or removed."""
        with self._lock:
            self._values.pop(path, None)
            self._forgotten += 1

    def forget_below(self, directory: str) -> None:
        """Drop the values for all paths in a directory, because it was removed."""
        with self._lock:
            for path in [path for path in self._values if path.startswith(f"{directory}/")]:
                del self._values[path]
            self._forgotten += 1


def map_file(filesystem: Filesystem, path: str) -> memoryview:
    """Map a whole file that is not written any more."""
    file = filesystem.open_readonly(path)
    try:
        return file.map(file.size())
    finally:
        file.close()

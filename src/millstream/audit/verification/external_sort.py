"""External merge sort of fixed-size entries: sorted runs on disk that are merged."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Self

from millstream.errors import StorageFailed

ENTRIES_MAX = 250_000
"""Entries that are sorted in memory: about 30 MB."""

RUNS_MAX = 64
"""Open files; when there are more runs, they are merged into one."""

_READ_ENTRIES = 4096


class ExternalSort:
    """Sorts entries of `size` bytes by their bytes.

    Runs are unnamed files in the temporary directory, which disappear with the process however it
    ends.
    """

    def __init__(
        self, size: int, *, entries_max: int = ENTRIES_MAX, runs_max: int = RUNS_MAX
    ) -> None:
        self._size = size
        self._entries_max = entries_max
        self._runs_max = runs_max
        self._waiting: list[bytes] = []
        self._runs: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, entry: bytes) -> None:
        assert len(entry) == self._size, "entries are of one size"
        self._waiting.append(entry)
        if len(self._waiting) >= self._entries_max:
            self._waiting.sort()
            self._spill(self._waiting)
            self._waiting = []

    def entries(self) -> Iterator[bytes]:
        """Yield all entries in order; nothing may be added any more."""
        self._waiting.sort()
        yield from heapq.merge(*map(self._read, self._runs), self._waiting)

    def close(self) -> None:
        """Close and so delete the files."""
        for run in self._runs:
            run.close()
        self._runs.clear()
        self._waiting = []

    def _spill(self, entries: Iterable[bytes]) -> None:
        if len(self._runs) >= self._runs_max:
            merged = self._written(heapq.merge(*map(self._read, self._runs)))
            for run in self._runs:
                run.close()
            self._runs = [merged]
        self._runs.append(self._written(entries))

    def _written(self, entries: Iterable[bytes]) -> IO[bytes]:
        try:
            run = tempfile.TemporaryFile(prefix="millstream-verify-")  # noqa: SIM115 - kept open.
            run.writelines(entries)
            run.flush()
        except OSError as error:
            raise StorageFailed(
                f"temporary files for sorting cannot be written to {tempfile.gettempdir()}: {error}"
            ) from error
        return run

    def _read(self, run: IO[bytes]) -> Iterator[bytes]:
        run.seek(0)
        while data := run.read(self._size * _READ_ENTRIES):
            for place in range(0, len(data), self._size):
                yield data[place : place + self._size]

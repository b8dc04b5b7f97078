"""Helpers for experiments with a log."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from millstream import Log, LogConfig, Record, Store, StoreConfig
from millstream.records.batch import HEADER_SIZE
from millstream.records.build import build_batch
from millstream.storage.disk.filesystem import File, Filesystem, OsFile, OsFilesystem

T = TypeVar("T")

MB = 1_000_000
KIB = 1024
MIB = 1024 * KIB

TOPIC = "bench"
NOW_MS = 1_700_000_000_000

_RECORD_OVERHEAD = 10
"""About what a record of some hundred bytes takes beside its value."""


def make_batch(size: int, *, value_size: int = KIB) -> bytes:
    """Return a batch of about `size` bytes, of records that do not compress."""
    chance = random.Random(size)
    body = size - HEADER_SIZE
    count = max(1, body // (value_size + _RECORD_OVERHEAD))
    length = max(1, body // count - _RECORD_OVERHEAD)
    return build_batch([Record(chance.randbytes(length)) for _ in range(count)], now_ms=NOW_MS)


class OpenStore:
    """A store, and the event loop that it lives on."""

    def __init__(self, store: Store, runner: asyncio.Runner) -> None:
        self.store = store
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop of the store."""
        return self._runner.run(work)

    def log(self, partition: int = 0) -> Log:
        """Return a log, creating it where there is none."""
        return self.run(self.store.log(TOPIC, partition))

    def look_after(self) -> None:
        """Have the store evict and clean all that it can."""
        self.run(self.store.maintenance.run_once(is_forced=True))

    def logs(self, count: int) -> list[Log]:
        """Return many logs at once."""

        async def gather() -> list[Log]:
            return await asyncio.gather(*(self.store.log(TOPIC, n) for n in range(count)))

        return self.run(gather())


@contextmanager
def opened(
    folder: Path,
    config: LogConfig,
    *,
    store_config: StoreConfig | None = None,
    filesystem: Filesystem | None = None,
) -> Iterator[OpenStore]:
    """Open a store on a loop as a server would have it, and close it cleanly."""
    store = Store(str(folder), log_config=config, config=store_config, filesystem=filesystem)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(store.__aenter__())
        try:
            yield OpenStore(store, runner)
        finally:
            runner.run(store.close())


async def fill(log: Log, batch: bytes, count: int, *, window: int = 64) -> None:
    """Append `batch` `count` times, `window` of them at a time."""
    for first in range(0, count, window):
        some = range(first, min(first + window, count))
        await asyncio.gather(*(log.append(batch, is_checked=True) for _ in some))


def log_files(folder: Path) -> list[Path]:
    """Return the `.log` files of a store, in order."""
    return sorted(folder.rglob("*.log"))


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_us(values: Sequence[float]) -> float:
    """Return the median of seconds, in microseconds."""
    return statistics.median(values) * 1e6


@contextmanager
def fresh_file(path: Path) -> Iterator[int]:
    """Give the descriptor of a new file, and remove it afterwards."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


class UnsyncedFilesystem(OsFilesystem):
    """A file system for preparing, where nothing has to last: it leaves every sync out."""

    def create(self, path: str) -> File:
        """Create a file that `sync` does nothing for."""
        super().create(path).close()
        return self.open(path)

    def open(self, path: str) -> File:
        """Open a file that `sync` does nothing for."""
        return _UnsyncedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


class _UnsyncedFile(OsFile):
    def sync(self) -> None:
        """Do nothing."""

"""Stores on a simulated disk, for tests of the log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

from millstream.clock import Timers
from millstream.config.schema import LogConfig, StoreConfig
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import File, Filesystem
from millstream.storage.disk.syncer import Syncer
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground

T = TypeVar("T")


class HeldExecutor:
    """Holds work until the test lets it run, one piece at a time and in order."""

    def __init__(self, *, width: int = 2) -> None:
        self.width = width
        self.is_held = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def go() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - as a thread would
                future.set_exception(error)

        if self.is_held:
            self._waiting.append(go)
        else:
            go()
        return future

    def let_one_go(self, number: int = 0) -> None:
        self._waiting.pop(number)()

    def let_go(self) -> None:
        self.is_held = False
        while self._waiting:
            self.let_one_go()

    def close(self) -> None:
        assert not self._waiting


class HeldSyncer:
    """Syncs, and reports to the log, when the test says so."""

    def __init__(self) -> None:
        self._files: list[File] = []
        self._done: Callable[[OSError | None], None] | None = None

    def has_capacity(self, count: int) -> bool:
        return True

    def sync(self, files: Sequence[File], done: Callable[[OSError | None], None]) -> None:
        assert self._done is None
        self._files, self._done = list(files), done

    def sync_now(self) -> None:
        for file in self._files:
            file.sync()

    def tell(self) -> None:
        assert self._done is not None
        done, self._done = self._done, None
        done(None)

    def fail(self) -> None:
        assert self._done is not None
        done, self._done = self._done, None
        done(OSError(errno.EIO, "lost"))

    def close(self) -> None:
        assert self._done is None


def make_store(
    filesystem: Filesystem | None = None,
    *,
    config: LogConfig | None = None,
    store_config: StoreConfig | None = None,
    background: Executor | None = None,
    clock: ManualClock | None = None,
    syncer: Syncer | None = None,
    timers: Timers | None = None,
) -> Store:
    store = Store(
        "/data",
        config=store_config,
        log_config=config,
        filesystem=filesystem or SimulatedFilesystem(),
        clock=clock or ManualClock(),
        background=background or SeededBackground(1),
        syncer=syncer,
        timers=timers,
    )
    store.open()
    return store


def batch_of(*values: bytes, timestamp_ms: int = 1) -> bytes:
    return build_batch([Record(value) for value in values], now_ms=timestamp_ms)


async def turns(count: int = 20) -> None:
    """Run the event loop until nothing that is ready is left to do."""
    for _ in range(count):
        await asyncio.sleep(0)

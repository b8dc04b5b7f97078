"""Group commit: one sync serves every append that waits for it.

A log requests a commit when it has written something. If a thread is free, the commit starts at
once, so a single append waits for no window. While it runs, appends gather and share the next one:
the window is as wide as the disk is slow. Logs that find no free thread wait together. Each thread
that becomes free takes its share of them, and the kernel merges their syncs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import File
from millstream.storage.disk.syncer import Syncer
from millstream.storage.segment.counters import StoreTotals

_Errors: TypeAlias = list[Exception | None]

_FILES_MAX = 2
"""A commit syncs at most the growing segment and the one before it."""


class Syncable(Protocol):
    """A log as the committer sees it.

    All methods run on the event loop; only the returned work does not.
    """

    @property
    def is_plain(self) -> bool:
        """Whether the next commit only has to sync files."""
        ...

    def begin_plain_sync(self) -> Sequence[File]:
        """Start a commit that only syncs files, and return the files."""
        ...

    def begin_sync(self) -> Callable[[], None]:
        """Start a commit of what is written by now, and return its blocking work."""
        ...

    def end_sync(self, error: Exception | None) -> None:
        """End the commit, with the error if it failed."""
        ...


class GroupCommitter:
    """Commits the logs of one store, through a syncer if there is one, else in threads."""

    def __init__(
        self,
        background: Executor,
        syncer: Syncer | None = None,
        totals: StoreTotals | None = None,
    ) -> None:
        self.totals = totals or StoreTotals()
        """Totals of all logs that it commits."""
        self._background = background
        self._syncer = syncer
        self._waiting: dict[Syncable, None] = {}
        self._free = background.width

    def request(self, log: Syncable) -> None:
        """Commit `log` as soon as possible. No commit of it may be in flight."""
        if self._syncer and log.is_plain:
            if self._syncer.has_capacity(_FILES_MAX):
                self._syncer.sync(log.begin_plain_sync(), log.end_sync)
                return
            self.totals.sync_fallbacks += 1
        self._waiting[log] = None
        self._deal()

    def _deal(self) -> None:
        """Distribute the waiting logs evenly over the free threads."""
        while self._waiting and self._free:
            share = -(-len(self._waiting) // self._background.width)
            logs = list(self._waiting)[:share]
            for log in logs:
                del self._waiting[log]
            self._start(logs)

    def _start(self, logs: Sequence[Syncable]) -> None:
        self._free -= 1
        works = [log.begin_sync() for log in logs]
        done = self._background.run(lambda: [_try_work(work) for work in works])
        done.add_done_callback(partial(self._end, logs))

    def _end(self, logs: Sequence[Syncable], done: asyncio.Future[_Errors]) -> None:
        self._free += 1
        for log, error in zip(logs, done.result(), strict=True):
            log.end_sync(error)
        self._deal()


def _try_work(work: Callable[[], None]) -> Exception | None:
    """Run `work` and return its error, which takes only its own log offline."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - handed to the log, which never carries on after it.
        return error
    return None

"""Group commit: one sync serves every append that waits for it.

A log asks for a commit when it has written something. Where a thread is free it starts at once,
so a lone append waits for no window. While it runs, appends gather; they share the next one, so
the window is as wide as the disk is slow. Logs that find no thread free wait together: each thread
that comes free takes its share of them, and the kernel joins their syncs.
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
"""A commit concerns the segment that grows and the one before it."""


class Syncable(Protocol):
    """What the committer needs of a log. All but the work itself runs on the event loop."""

    @property
    def is_plain(self) -> bool:
        """Whether the next commit only has to sync files."""
        ...

    def begin_plain_sync(self) -> Sequence[File]:
        """Begin a plain commit of what was written up to now, and return the files to sync."""
        ...

    def begin_sync(self) -> Callable[[], None]:
        """Begin a commit of what was written up to now, and return all of its blocking work."""
        ...

    def end_sync(self, error: Exception | None) -> None:
        """Take note that the work is done, or why it failed."""
        ...


class GroupCommitter:
    """Commits the logs of one store, by a syncer where there is one, and else by threads."""

    def __init__(
        self,
        background: Executor,
        syncer: Syncer | None = None,
        totals: StoreTotals | None = None,
    ) -> None:
        self.totals = totals or StoreTotals()
        """Of all logs that it commits."""
        self._background = background
        self._syncer = syncer
        self._waiting: dict[Syncable, None] = {}
        self._free = background.width

    def request(self, log: Syncable) -> None:
        """Commit `log` as soon as a thread is free. It must not be under way already."""
        if self._syncer and log.is_plain and self._syncer.has_capacity(_FILES_MAX):
            self._syncer.sync(log.begin_plain_sync(), log.end_sync)
            return
        self._waiting[log] = None
        self._deal()

    def _deal(self) -> None:
        """Hand the waiting logs out over the free threads, to each its share."""
        while self._waiting and self._free:
            share = -(-len(self._waiting) // self._background.width)
            logs = list(self._waiting)[:share]
            for log in logs:
                del self._waiting[log]
            self._start(logs)

    def _start(self, logs: Sequence[Syncable]) -> None:
        self._free -= 1
        works = [log.begin_sync() for log in logs]
        done = self._background.run(lambda: [_attempt(work) for work in works])
        done.add_done_callback(partial(self._end, logs))

    def _end(self, logs: Sequence[Syncable], done: asyncio.Future[_Errors]) -> None:
        self._free += 1
        for log, error in zip(logs, done.result(), strict=True):
            log.end_sync(error)
        self._deal()


def _attempt(work: Callable[[], None]) -> Exception | None:
    """Do `work`. Whatever goes wrong takes one log offline and must not reach its neighbours."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - handed to the log, which never carries on after it.
        return error
    return None

"""`partition.json` of an open log, and the only way to change it.

Changes run one at a time, and each is durable before anything depends on it. They are tasks of the
log itself: a caller that stops waiting must not leave file and memory in disagreement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.executor import Executor
from millstream.storage.files.partition_metadata import PartitionMetadata, write_partition_metadata
from millstream.storage.segment.segment import LogDirectory

T = TypeVar("T")


class MetadataFile:
    """The metadata file of one log. `check` raises if it may not be changed any more."""

    def __init__(
        self,
        partition: PartitionMetadata,
        *,
        log_directory: LogDirectory,
        background: Executor,
        tasks: BackgroundTasks,
        check: Callable[[], None],
    ) -> None:
        self.partition = partition
        self._log_directory = log_directory
        self._background = background
        self._tasks = tasks
        self._check = check
        self._lock = asyncio.Lock()

    async def run_exclusive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, which may call `write`, while no other change runs, and return its result.

        The set of files of the log is changed here too, if others may replace files at the same
        time.
        """
        return await asyncio.shield(self._tasks.start(self._run_locked(work)))

    async def _run_locked(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._lock:
                self._check()
                return await work
        finally:
            work.close()  # It may not have started.

    async def write(self, partition: PartitionMetadata, *, frees_space: bool = False) -> None:
        """Replace the file. After an `OSError` it may have the old or the new content.

        With `frees_space`, files are removed afterwards, so on a full disk the ballast file is
        used.
        """
        log_directory = self._log_directory
        ballast = log_directory.ballast if frees_space else None
        await self._background.run(
            partial(
                write_partition_metadata,
                log_directory.filesystem,
                log_directory.directory,
                partition,
                ballast=ballast,
            )
        )
        self.partition = partition

"""What `partition.json` says of a log that is open, and the one way to change it.

Changes come one after the other, each durable before anything rests on it. They are tasks of the
log itself: a caller that gives up waiting must not leave file and memory in disagreement.
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
    """The description of one log. `check` raises where it may not be changed any more."""

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
        self._turn = asyncio.Lock()

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, which may `write`, when no other change is under way, and return its result.

        Which files make up the log is changed here too where others may replace them.
        """
        return await asyncio.shield(self._tasks.start(self._in_turn(work)))

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._turn:
                self._check()
                return await work
        finally:
            work.close()  # It may not have been begun.

    async def write(self, partition: PartitionMetadata, *, frees_space: bool = False) -> None:
        """Replace the file. After an `OSError` it may say the one or the other.

        With `sets_free` files will go, so on a full disk the spare file of the store is used.
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

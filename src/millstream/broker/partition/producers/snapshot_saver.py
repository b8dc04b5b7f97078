"""Saving the producer snapshot of a partition, in the background and when it is closed."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from millstream.broker.partition.producers.recovery import save_producers
from millstream.broker.partition.producers.states import ProducerStates
from millstream.clock import Clock
from millstream.config.schema import Durability
from millstream.errors import MillstreamError
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log

logger = logging.getLogger(__name__)


class ProducerSnapshotSaver:
    """Keeps the snapshot of one partition no older than its active segment.

    A missing snapshot only makes the next opening of the partition slower, so a failure to write it
    is logged and otherwise ignored.
    """

    def __init__(
        self,
        log: Log,
        states: ProducerStates,
        *,
        filesystem: Filesystem,
        directory: str,
        saved_offset: int,
        is_known: bool,
        clock: Clock,
        background: Executor,
    ) -> None:
        self._log = log
        self._states = states
        self._filesystem = filesystem
        self._directory = directory
        self._clock = clock
        self._background = background
        self._is_known = is_known
        self._rolls = log.counters.rolls
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.saved_offset = saved_offset
        """The offset of the snapshot on the disk."""

    def note_commit(self) -> None:
        """Start to save if a new segment was started since the last save.

        The first segment of a log needs no snapshot.
        """
        rolls = self._log.counters.rolls
        if rolls != self._rolls and self._task is None:
            self._rolls = rolls
            if len(self._log.segments) > 1:
                self._task = asyncio.get_running_loop().create_task(self.save())
                self._task.add_done_callback(self._end_save)

    def _end_save(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.result()

    async def save(self) -> None:
        """Save the committed state, unless that was done.

        Nothing is saved if the log is damaged: the snapshot would claim that batches which could
        not be read do not exist.
        """
        if not self._is_known or self._log.config.durability is Durability.EPHEMERAL:
            return
        async with self._lock:
            now_ms = int(self._clock.monotonic() * 1000)
            self._states.expire(now_ms)
            snapshot = self._states.snapshot(self._log.end_offset)
            if snapshot.offset == self.saved_offset:
                return
            save = partial(
                save_producers,
                self._log,
                self._filesystem,
                self._directory,
                snapshot,
                now_ms=now_ms,
            )
            try:
                await self._background.run(save)
            except (OSError, MillstreamError) as error:
                logger.warning("%s: cannot save the producer snapshot: %s", self._log.name, error)
            else:
                self.saved_offset = snapshot.offset

"""Writing the snapshot of a partition's producers, in the background and when it is closed."""

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
    """Keeps the snapshot of one partition young: not older than the segment that grows.

    A snapshot that cannot be written is not missed until the partition is opened again, which
    then takes longer; so a failure is logged, and nothing else.
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
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.saved_offset = saved_offset
        """What the snapshot on the disk speaks up to."""

    def note_commit(self) -> None:
        """Begin to write one if a segment has begun since the last; the first needs none."""
        rolls = self._log.counters.rolls
        if rolls != self._rolls and self._task is None:
            self._rolls = rolls
            if len(self._log.segments) > 1:
                self._task = asyncio.get_running_loop().create_task(self.save())
                self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.result()

    async def save(self) -> None:
        """Write one of all that is committed now, unless there is one.

        None is written where the log is damaged: it would say of batches that nobody could read
        that they are not there.
        """
        if not self._is_known or self._log.config.durability is Durability.EPHEMERAL:
            return
        async with self._turn:
            now_ms = int(self._clock.monotonic() * 1000)
            self._states.expire(now_ms)
            found = self._states.settled(self._log.end_offset)
            if found.offset == self.saved_offset:
                return
            work = partial(
                save_producers, self._log, self._filesystem, self._directory, found, now_ms=now_ms
            )
            try:
                await self._background.run(work)
            except (OSError, MillstreamError) as error:
                logger.warning("%s: no snapshot of its producers: %s", self._log.name, error)
            else:
                self.saved_offset = found.offset

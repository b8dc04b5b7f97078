"""The highest revision of etcd that a node has seen, kept in a file of the node.

etcd never goes back by itself. If its revision is lower than one that was seen, somebody restored a
backup, or it is another etcd. The file is a checkpoint like that of `meta.db`: it is written when
the revision rises, at most one write at a time, and not synced until the end. So a node that was
killed finds every backup that is older than what it saw, to within a write; after a power cut it
may miss the changes of the last 30 s, after which kernels write files by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from millstream.errors import CorruptData, StorageFailed
from millstream.metadata.metadata_checkpoint import MetadataCheckpoint, RevisionRecord
from millstream.storage.disk.executor import Executor

logger = logging.getLogger(__name__)

RESTORED_ADVICE = (
    "a backup of etcd was restored, or this is another etcd, so topics and leaders may have gone"
    " back to an older state; see docs/operating/cluster.md"
)


class SeenRevision:
    """Highest revision seen. Without a checkpoint it is kept in memory only."""

    def __init__(self, checkpoint: MetadataCheckpoint | None, background: Executor) -> None:
        self.revision = 0
        self._checkpoint = checkpoint
        self._background = background
        self._recorded = 0
        self._recording: asyncio.Task[None] | None = None

    async def start(self, revision: int, *, is_loss_accepted: bool) -> None:
        """Compare the revision of etcd with the file, and begin to write it.

        Raises `CorruptData` if etcd is older, unless `is_loss_accepted`.
        """
        self.revision = self._recorded = revision
        if self._checkpoint is None:
            return
        recorded = None
        if not is_loss_accepted:
            recorded = await self._background.run(self._checkpoint.read)
        if recorded is not None and revision < recorded.revision:
            raise CorruptData(
                f"etcd has revision {revision}, but {self._checkpoint.path} records revision"
                f" {recorded.revision}: {RESTORED_ADVICE}"
            )
        await self._background.run(partial(self._start, self._checkpoint, revision, recorded))

    def _start(
        self, checkpoint: MetadataCheckpoint, revision: int, recorded: RevisionRecord | None
    ) -> None:
        try:
            checkpoint.start(revision, recorded)
        except OSError as error:
            raise StorageFailed(f"{checkpoint.path} cannot be written: {error}") from error

    def see(self, revision: int) -> None:
        """Note a revision that etcd has."""
        if revision <= self.revision:
            return
        self.revision = revision
        if self._checkpoint is not None and self._checkpoint.is_open and self._recording is None:
            self._recording = asyncio.ensure_future(self._record(self._checkpoint))

    async def _record(self, checkpoint: MetadataCheckpoint) -> None:
        """Write the revision; changes meanwhile share the next write."""
        try:
            while self._recorded < self.revision:
                revision = self.revision
                await self._background.run(partial(checkpoint.write, revision))
                self._recorded = revision
        except OSError as error:
            logger.warning("%s cannot be written: %s", checkpoint.path, error)
        finally:
            self._recording = None

    async def close(self) -> None:
        """Make the revision durable."""
        if self._recording is not None:
            await self._recording
        if self._checkpoint is not None and self._checkpoint.is_open:
            await self._background.run(partial(self._finish, self._checkpoint))
        self._background.close()

    def _finish(self, checkpoint: MetadataCheckpoint) -> None:
        try:
            checkpoint.write(self.revision)
            checkpoint.sync()
        except OSError as error:
            logger.warning("%s cannot be written: %s", checkpoint.path, error)
        finally:
            checkpoint.close()

"""What the replicas of a node had, stored outside of their logs: `high-watermarks.json`.

    <topic id>/<partition>    high watermark: the log had everything before it, synced

If a log is missing when the node starts, or ends before that offset, for example because an older
copy of its directory was restored, the node knows that records are missing. The file is written
every few seconds, so it may be older than the logs and is never newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from millstream.cluster.control.cluster_state import PartitionId
from millstream.errors import CorruptData
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document

logger = logging.getLogger(__name__)

HIGH_WATERMARKS_FILE = "high-watermarks.json"
_KIND = "millstream-high-watermarks"
_VERSION = 1


class HighWatermarks:
    """`high-watermarks.json` of one data directory. Owned by one event loop."""

    def __init__(self, filesystem: Filesystem, directory: str, background: Executor) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._background = background
        self._stored: dict[str, int] = {}
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Read the file. Without a valid one nothing is known of former lives."""
        path = join(self._directory, HIGH_WATERMARKS_FILE)
        try:
            content = read_document(self._filesystem, path, _KIND, _VERSION)
            self._stored = {str(key): int(value) for key, value in content["offsets"].items()}
        except FileNotFoundError:
            return
        except (CorruptData, KeyError, TypeError, ValueError, AttributeError) as error:
            logger.error(  # noqa: TRY400
                "%s: cannot be read, and lost records of replicas may not be noticed: %r",
                path,
                error,
            )

    def get(self, partition: PartitionId) -> int | None:
        """Return the stored high watermark of a partition; None if it was never followed here."""
        return self._stored.get(str(partition))

    async def store(self, offsets: Mapping[PartitionId, int]) -> None:
        """Replace the file, durably, unless it has these offsets."""
        async with self._lock:
            await self._write({str(key): offset for key, offset in offsets.items()})

    async def lower(self, partition: PartitionId, offset: int) -> None:
        """Store a lower offset, durably: records from there on are removed on purpose."""
        async with self._lock:
            key = str(partition)
            if self._stored.get(key, 0) > offset:
                await self._write({**self._stored, key: offset})

    async def _write(self, stored: dict[str, int]) -> None:
        if stored == self._stored:
            return
        await self._background.run(
            lambda: write_document(
                self._filesystem,
                self._directory,
                HIGH_WATERMARKS_FILE,
                {"offsets": stored},
                kind=_KIND,
                version=_VERSION,
            )
        )
        self._stored = stored

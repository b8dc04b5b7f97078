"""What the replicas of a node had, stored outside of their logs: `high-watermarks.json`.

    committed    {"<topic id>/<partition>": [high watermark, leader epoch], ...}

The log had everything before the high watermark, synced; the epoch is that of the last record
before it, or -1 if that is not known. If a log is missing when the node starts, ends before that
offset, or has another epoch there, for example because an older copy of its directory was restored,
the node knows that records are missing (`cluster.repair.lost_records`). The file is written every
few seconds, so it may be older than the logs and is never newer.

Version 1 had no epochs: `offsets`, with the high watermark of each partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import CommittedEnd
from millstream.errors import CorruptFile
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document

logger = logging.getLogger(__name__)

HIGH_WATERMARKS_FILE = "high-watermarks.json"
_KIND = "millstream-high-watermarks"
_VERSION = 2


def read_high_watermarks(filesystem: Filesystem, directory: str) -> dict[str, CommittedEnd]:
    """Return what the file has, by partition.

    Raises `FileNotFoundError`, `CorruptFile`, or `UnknownFormat` if a later release wrote it.
    """
    path = join(directory, HIGH_WATERMARKS_FILE)
    content = read_document(filesystem, path, _KIND, _VERSION)
    try:
        if "offsets" in content:
            return {key: CommittedEnd(int(value)) for key, value in content["offsets"].items()}
        return {
            key: CommittedEnd(int(offset), int(epoch))
            for key, (offset, epoch) in content["committed"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(f"{path}: {error!r}") from error


class HighWatermarks:
    """`high-watermarks.json` of one data directory. Owned by one event loop."""

    def __init__(self, filesystem: Filesystem, directory: str, background: Executor) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._background = background
        self._stored: dict[str, CommittedEnd] = {}
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Read the file. Without a valid one nothing is known of former lives."""
        try:
            self._stored = read_high_watermarks(self._filesystem, self._directory)
        except FileNotFoundError:
            return
        except CorruptFile as error:
            logger.error(  # noqa: TRY400
                "%s; lost records of replicas may not be noticed", error
            )

    def get(self, partition: PartitionId) -> CommittedEnd | None:
        """Return what is stored of a partition; None if it was never followed here."""
        return self._stored.get(str(partition))

    async def store(self, committed: Mapping[PartitionId, CommittedEnd]) -> None:
        """Replace the file, durably, unless it has just this."""
        async with self._lock:
            await self._write({str(key): end for key, end in committed.items()})

    async def lower(self, partition: PartitionId, offset: int) -> None:
        """Store a lower offset, durably: records from there on are removed on purpose."""
        async with self._lock:
            key = str(partition)
            if (known := self._stored.get(key)) is not None and known.offset > offset:
                await self._write({**self._stored, key: CommittedEnd(offset)})

    async def _write(self, stored: dict[str, CommittedEnd]) -> None:
        if stored == self._stored:
            return
        await self._background.run(
            lambda: write_document(
                self._filesystem,
                self._directory,
                HIGH_WATERMARKS_FILE,
                {"committed": stored},
                kind=_KIND,
                version=_VERSION,
            )
        )
        self._stored = stored

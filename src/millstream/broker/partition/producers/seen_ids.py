"""The greatest producer id that is stored in the logs of a node.

Producer ids are counted in metadata. If that was restored from a backup, the counter is older than
the logs. A producer with the id of an earlier one would have its batches taken for duplicates, so
the logs are asked before the first id is assigned after a start. All of this blocks, and runs in a
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from millstream.broker.partition.producers.snapshot import read_snapshot
from millstream.broker.partition.producers.states import ALL_PRODUCER_IDS
from millstream.errors import MillstreamError
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.inspect.batch_walk import WalkedBatch, walk_batches
from millstream.storage.inspect.catalog import survey_partition

logger = logging.getLogger(__name__)

NO_ID_SEEN = -1


def greatest_producer_id(filesystem: Filesystem, ends: Mapping[str, int | None]) -> int:
    """Return the greatest producer id in some logs; `NO_ID_SEEN` if none has one.

    `ends` has the directory of each log and its end, if that is known: a snapshot that covers all
    of a log says enough. Damaged batches are skipped: their producer is unknown.
    """
    greatest = NO_ID_SEEN
    for directory, end in ends.items():
        try:
            greatest = max(greatest, _greatest_of_log(filesystem, directory, end))
        except (MillstreamError, OSError) as error:
            logger.warning("%s: producer ids cannot be read: %s", directory, error)
    return greatest


def _greatest_of_log(filesystem: Filesystem, directory: str, end: int | None) -> int:
    greatest = NO_ID_SEEN
    offset: int | None = None
    try:
        snapshot, _ = read_snapshot(filesystem, directory, now_ms=0)
    except (FileNotFoundError, MillstreamError):
        pass  # All of the log is read instead.
    else:
        forgotten = snapshot.forgotten_max
        greatest = max(snapshot.entries, default=greatest)
        greatest = max(greatest, forgotten if forgotten < ALL_PRODUCER_IDS else NO_ID_SEEN)
        offset = snapshot.offset
        if offset == end:
            return greatest
    files = survey_partition(filesystem, directory)
    if offset is None:
        if files.partition is not None and files.partition.topic_id is None:
            return greatest  # Of an embedded store, which has no producers, and may be large.
        offset = files.start_offset or 0
    for _, item in walk_batches(filesystem, files, offset):
        if isinstance(item, WalkedBatch) and item.is_sound:
            greatest = max(greatest, item.header.producer_id)
    return greatest

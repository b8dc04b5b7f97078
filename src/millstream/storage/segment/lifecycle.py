"""Sealing a segment and taking its seal off again: blocking work for a thread.

The order of the steps is what makes them safe; each function says which crash it guards against.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from millstream.errors import CorruptFile
from millstream.storage.disk.filesystem import File, join
from millstream.storage.files.checkpoint import Checkpoint, SyncPoint
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.names import CHECKPOINT_FILE
from millstream.storage.files.seal import Seal
from millstream.storage.segment.segment import (
    GrowingSegment,
    LogDirectory,
    SealedSegment,
    remove_seal,
    write_seal,
)


class SegmentSyncFailed(Exception):
    """A `.log` could not be synced: what it holds is in doubt, however often one tries again."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def seal_segment(segment: GrowingSegment, *, now_ms: int) -> Seal:
    """Seal a segment that is written no more. Durable when this returns.

    Its bytes are synced before the seal exists, so a seal never vouches for what a crash can
    take away.
    """
    file = segment.open()
    try:
        file.truncate(segment.size)
        file.sync()
    except OSError as error:
        raise SegmentSyncFailed(error) from error
    seal = segment.stats.seal(now_ms)
    write_seal(segment.log_directory, seal, segment.index())
    return seal


def sync_all(log_directory: LogDirectory, files: Sequence[File]) -> None:
    """Sync the logs of segments that a weaker class than `fsync` has written, and their names."""
    try:
        for file in files:
            file.sync()
    except OSError as error:
        raise SegmentSyncFailed(error) from error
    log_directory.filesystem.sync_directory(log_directory.directory)


def unseal_segment(
    log_directory: LogDirectory, sealed: SealedSegment
) -> tuple[File, SegmentIndex, Checkpoint]:
    """Make a sealed segment one that can grow. Durable when this returns.

    The checkpoint takes over from the seal before that goes, so after a crash it is still known
    how much must be there. The seal goes before a byte is added, so it never speaks of less than
    the file holds. The keys of the log as it was go too; where they stay, their size gives them
    away. A rewritten segment stays as it is: what counts of it hangs on its seal.
    """
    assert sealed.generation == 0, f"{sealed.path} was rewritten and does not grow"
    index = sealed.index().growing()
    checkpoint, _ = open_checkpoint(log_directory)
    checkpoint.write(SyncPoint(sealed.base_offset, sealed.size))
    checkpoint.sync()
    file = log_directory.filesystem.open(sealed.path)
    if (size := file.size()) != sealed.size:
        raise CorruptFile(f"{sealed.path}: has {size} bytes, its seal says {sealed.size}")
    remove_seal(log_directory, sealed.base_offset)
    with contextlib.suppress(OSError):
        log_directory.filesystem.remove(sealed.keys_path)
    return file, index, checkpoint


def open_checkpoint(log_directory: LogDirectory) -> tuple[Checkpoint, bool]:
    """Open the checkpoint of a partition, and say whether it had to be created."""
    path = join(log_directory.directory, CHECKPOINT_FILE)
    try:
        return Checkpoint(log_directory.filesystem.open(path)), False
    except FileNotFoundError:
        return Checkpoint(log_directory.filesystem.create(path)), True


def remove_checkpoint(log_directory: LogDirectory) -> None:
    """Remove the checkpoint, once every segment has a seal."""
    with contextlib.suppress(FileNotFoundError):
        log_directory.filesystem.remove(join(log_directory.directory, CHECKPOINT_FILE))

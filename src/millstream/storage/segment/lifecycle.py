"""Sealing and unsealing of a segment: blocking work for a thread.

The order of the steps makes them safe; each function says which crash it protects against.
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
    """A `.log` could not be synced. Its content is uncertain, and a retry does not change that."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def seal_segment(segment: GrowingSegment, *, now_ms: int) -> Seal:
    """Seal a segment that is not written any more. Durable when this returns.

    The bytes are synced before the seal exists, so a seal never covers bytes that a crash can take
    away.
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
    """Sync segments that a weaker class than `fsync` has written, and their names."""
    try:
        for file in files:
            file.sync()
    except OSError as error:
        raise SegmentSyncFailed(error) from error
    log_directory.filesystem.sync_directory(log_directory.directory)


def unseal_segment(
    log_directory: LogDirectory, sealed: SealedSegment
) -> tuple[File, SegmentIndex, Checkpoint]:
    """Remove the seal of a segment so that it can grow again. Durable when this returns.

    The checkpoint is written before the seal is removed, so after a crash it is still known how
    many bytes must be there. The seal is removed before a byte is added, so it never covers less
    than the file holds. The key index is removed too; if that fails, its recorded size no longer
    matches and it is ignored. A rewritten segment is never unsealed: its seal is what makes it part
    of the log.
    """
    assert sealed.generation == 0, f"{sealed.path} was rewritten and does not grow"
    index = sealed.index().growing()
    checkpoint, _ = open_checkpoint(log_directory)
    checkpoint.write(SyncPoint(sealed.base_offset, sealed.size, sealed.next_offset))
    checkpoint.sync()
    file = log_directory.filesystem.open(sealed.path)
    if (size := file.size()) != sealed.size:
        raise CorruptFile(f"{sealed.path}: has {size} bytes, its seal says {sealed.size}")
    remove_seal(log_directory, sealed.base_offset)
    with contextlib.suppress(OSError):
        log_directory.filesystem.remove(sealed.keys_path)
    return file, index, checkpoint


def open_checkpoint(log_directory: LogDirectory) -> tuple[Checkpoint, bool]:
    """Open the checkpoint of a partition; return it, and whether it was created."""
    path = join(log_directory.directory, CHECKPOINT_FILE)
    try:
        return Checkpoint(log_directory.filesystem.open(path)), False
    except FileNotFoundError:
        return Checkpoint(log_directory.filesystem.create(path)), True


def remove_checkpoint(log_directory: LogDirectory) -> None:
    """Remove the checkpoint, once every segment is sealed."""
    with contextlib.suppress(FileNotFoundError):
        log_directory.filesystem.remove(join(log_directory.directory, CHECKPOINT_FILE))

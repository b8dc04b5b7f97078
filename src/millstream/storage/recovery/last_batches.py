"""The last batches of a log that was closed cleanly.

Nothing of such a log is scanned when it is opened: its seal says what is in it, and damage is found
by the first read that meets it. Only the end is checked, because that is where most readers are,
and many logs are read nowhere else. It takes two small reads: the last entry of the index leads to
within some kilobytes of the last batch.
"""

from __future__ import annotations

import errno
import struct

from millstream.errors import CorruptBatch, CorruptData, CorruptFile, DamagedRecords
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.files.index import ENTRY_SIZE, INDEX_HEADER_SIZE
from millstream.storage.segment.reader import read_slice
from millstream.storage.segment.scan import check_batch_at
from millstream.storage.segment.segment import SealedSegment

CHECKED_BYTES_MAX = 4 * 1024 * 1024
"""A larger last batch is left to its readers: a start must not read much for each log."""

_OFFSET_AND_POSITION = struct.Struct("<qq")


def check_last_batches(segment: SealedSegment) -> CorruptData | None:
    """Return the damage in the last batches of a segment, if there is some."""
    try:
        if _are_valid(segment):
            return None
    except FileNotFoundError:
        return None  # Without an index, all of the log would have to be read.
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return CorruptFile(f"{segment.path}: cannot be read: {error}")
    # The batches or the entry of the index are damaged. This tells them apart.
    try:
        read_slice(
            segment,
            segment.next_offset - 1,
            limit=segment.size,
            size_max=1,
            records_max=None,
            is_checked=True,
        )
    except DamagedRecords as damage:
        return damage
    return None


def _are_valid(segment: SealedSegment) -> bool:
    """Return whether valid batches lead from the last entry of the index to the end.

    The segment is not mapped: a read error of a mapped file would end the process.
    """
    filesystem = segment.log_directory.filesystem
    index_size = filesystem.size(segment.index_path)
    if index_size < INDEX_HEADER_SIZE + ENTRY_SIZE:
        return False
    entry = _read(filesystem, segment.index_path, index_size - ENTRY_SIZE, ENTRY_SIZE)
    offset, start = map(int, _OFFSET_AND_POSITION.unpack_from(entry))
    if not 0 <= start < segment.size:
        return False
    if segment.size - start > CHECKED_BYTES_MAX:
        return True
    batches = memoryview(_read(filesystem, segment.path, start, segment.size - start))
    position = 0
    try:
        while position < len(batches):
            header = check_batch_at(batches, position, offset, segment.leader_epoch)
            position, offset = position + header.size, header.next_offset
    except CorruptBatch:
        return False
    return bool(offset == segment.next_offset)


def _read(filesystem: Filesystem, path: str, position: int, size: int) -> bytes:
    file = filesystem.open_readonly(path)
    try:
        return file.read_at(position, size)
    finally:
        file.close()

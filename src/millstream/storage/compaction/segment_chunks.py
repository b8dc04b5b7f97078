"""Reader of segments to be cleaned, a chunk of batches at a time. Blocks; runs in a thread.

It uses positional reads, not a memory map: a read releases the interpreter lock while it waits for
the disk; touching a map does not, and the whole process would wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from millstream.errors import BatchTooLarge, CorruptBatch, CorruptData, CorruptFile
from millstream.records.batch import HEADER_SIZE, BatchHeader, decode_header
from millstream.storage.disk.errors import transient_error
from millstream.storage.disk.filesystem import File
from millstream.storage.segment.scan import check_stamped_fields
from millstream.storage.segment.segment import SealedSegment

CHUNK_SIZE = 1024 * 1024
"""Bytes processed at a time. Others get their turn in between, so it should take a few
milliseconds; a larger batch is a chunk of its own.
"""


class DamagedSegment(Exception):
    """A segment to be cleaned cannot be read, or only in part."""

    def __init__(self, segment: SealedSegment, cause: Exception) -> None:
        super().__init__(str(cause))
        self.segment = segment
        self.cause = cause


class SegmentChunk(NamedTuple):
    """Adjacent batches of a segment."""

    position: int
    data: memoryview
    headers: list[BatchHeader]


def read_chunks(
    segment: SealedSegment, *, start: int = 0, end_position: int | None = None
) -> Iterator[SegmentChunk]:
    """Yield the batches of a segment that end after offset `start`, in chunks.

    Their order is checked, their checksums are not. Raises `DamagedSegment`.
    """
    end = segment.size if end_position is None else end_position
    position, offset = 0, segment.base_offset
    with _open_log(segment) as file:
        while position < end:
            with reporting_damage(segment, position):
                view = memoryview(_read(file, position, min(CHUNK_SIZE, end - position)))
                headers, size = _headers(segment, view, offset)
                if not headers:  # The next batch is larger than a chunk.
                    batch_size = decode_header(view).size
                    view = memoryview(_read(file, position, min(batch_size, end - position)))
                    headers, size = _headers(segment, view, offset)
                if not headers:
                    raise CorruptBatch(
                        f"batch is truncated: it has {batch_size} bytes, the file {len(view)} more"
                    )
            skipped = [header for header in headers if header.next_offset <= start]
            first = sum(header.size for header in skipped)
            if first < size:
                yield SegmentChunk(position + first, view[first:size], headers[len(skipped) :])
            position += size
            offset = headers[-1].next_offset
    if end_position is None and offset != segment.next_offset:
        reason = f"end offset must be {segment.next_offset}, as its seal says, got {offset}"
        raise DamagedSegment(segment, CorruptFile(f"{segment.path}: {reason}"))


@contextlib.contextmanager
def _open_log(segment: SealedSegment) -> Iterator[File]:
    with reporting_damage(segment, 0):
        file = segment.log_directory.filesystem.open_readonly(segment.path)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # Nothing was written to it.
            file.close()


def _read(file: File, position: int, size: int) -> bytes:
    data = file.read_at(position, size)
    if not data:
        raise CorruptFile("the file is truncated")
    return data


def _headers(
    segment: SealedSegment, view: memoryview, offset: int
) -> tuple[list[BatchHeader], int]:
    """Return the headers of the complete batches at the start of `view`, and their size in bytes.

    The first must start at `offset`.
    """
    headers: list[BatchHeader] = []
    position = 0
    while position < len(view):
        if len(view) - position < HEADER_SIZE and headers:
            break
        header = decode_header(view, position)
        check_stamped_fields(header, offset, segment.leader_epoch)
        if position + header.size > len(view):
            break
        headers.append(header)
        position += header.size
        offset = header.next_offset
    return headers, position


@contextlib.contextmanager
def reporting_damage(segment: SealedSegment, position: int) -> Iterator[None]:
    """Convert errors to `DamagedSegment`, which names the segment, unless they are transient."""
    try:
        yield
    except (CorruptData, BatchTooLarge) as error:
        place = f"{segment.path}: at or after byte {position}"
        raise DamagedSegment(segment, CorruptFile(f"{place}: {error}")) from error
    except OSError as error:
        if transient_error(segment.path, error):
            raise
        raise DamagedSegment(segment, error) from error

r"""Truncation of a log: removal of everything from an offset on. Blocking work for a thread.

    1. `partition.json` says durably where the log is to end     from here on it will end there
    2. later segments are removed, the last first
    3. the seal of the segment that becomes the last is removed, durably; then it is cut
    4. it gets its index and its seal again; without a seal, the checkpoint says how much is there
    5. `partition.json` forgets the truncation, and the epochs of which no batch is left

This module does 2 to 4, from names and files alone, and may do them any number of times. A crash
after 1 leaves any part of them done; opening the log does the rest before it looks at anything
else. So no missing segment is taken for a lost one, and no removed batch comes back.

A sealed segment may be mapped by readers, and a file must not become shorter below a map. So it is
not cut in place: the bytes that stay are copied, and the copy takes its name. Readers keep the
bytes that they have. A segment that was never sealed is cut in place, because nobody maps it.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from millstream.errors import CorruptFile
from millstream.storage.disk.file_cache import map_file
from millstream.storage.disk.filesystem import join, write_all
from millstream.storage.files.checkpoint import SyncPoint, encode_slot
from millstream.storage.files.document import replace_file
from millstream.storage.files.names import (
    CHECKPOINT_FILE,
    SEGMENT_SUFFIXES,
    TEMPORARY_SUFFIX,
    SegmentId,
    parse_segment_file,
    segment_file,
)
from millstream.storage.files.partition_metadata import Truncation
from millstream.storage.files.seal import Seal
from millstream.storage.files.watermark import WatermarkFile
from millstream.storage.segment.lifecycle import remove_checkpoint
from millstream.storage.segment.scan import scan
from millstream.storage.segment.segment import LogDirectory, SealedSegment, read_seal, write_seal

COPY_CHUNK = 4 * 1024 * 1024


class CutLog(NamedTuple):
    """What a truncation has left, and what it did."""

    last: SealedSegment | None
    """The last segment; `None` if there is none, or if it is damaged and has no seal."""
    actions: list[str]


def cut_log(
    log_directory: LogDirectory,
    truncation: Truncation,
    *,
    now_ms: int,
    created_ms: int | None = None,
    is_mapped: bool = True,
) -> CutLog:
    """Remove everything that a durable truncation does not leave. Durable when this returns.

    `created_ms` is the date of the last segment that stays, if it has no seal; `is_mapped` says
    whether it may be mapped. A segment of which bytes that should stay are damaged gets no seal:
    the checkpoint attests them, so opening reports the damage.
    """
    actions = _remove_later(log_directory, truncation)
    _lower_watermark(log_directory, truncation.end_offset)
    seal: Seal | None = None
    segment = SegmentId(truncation.segment, truncation.generation)
    if truncation.segment < 0:
        remove_checkpoint(log_directory)
    else:
        old = _read_seal(log_directory, segment)
        if old is not None and _is_whole(log_directory, segment, old, truncation):
            seal = old
        else:
            _cut_segment(log_directory, segment, truncation.size, is_mapped=is_mapped)
            path = log_directory.path(segment.base_offset, "log", segment.generation)
            actions.append(f"truncated: {path}: to {truncation.size} bytes")
            if old is not None:
                created_ms = old.created_ms
            dates = (now_ms if created_ms is None else created_ms, now_ms)
            seal = _seal_again(log_directory, segment, truncation, *dates)
        if seal is None:
            _attest(log_directory, truncation)
        else:
            remove_checkpoint(log_directory)
    log_directory.filesystem.sync_directory(log_directory.directory)
    last = None if seal is None else SealedSegment(log_directory, seal, segment.generation)
    return CutLog(last, actions)


def is_truncated(segment: SegmentId, truncation: Truncation) -> bool:
    """Return whether an unfinished truncation removes all of a segment."""
    stays = SegmentId(truncation.segment, truncation.generation)
    return segment.base_offset >= truncation.segment and segment != stays


def _remove_later(log_directory: LogDirectory, truncation: Truncation) -> list[str]:
    """Remove the segments behind the last that stays, and other generations of that one."""
    names = log_directory.filesystem.list(log_directory.directory)
    ids = {name.id for name in map(parse_segment_file, names) if name is not None}
    actions = []
    for segment in sorted((s for s in ids if is_truncated(s, truncation)), reverse=True):
        for suffix in SEGMENT_SUFFIXES:
            path = log_directory.path(segment.base_offset, suffix, segment.generation)
            with contextlib.suppress(FileNotFoundError):
                log_directory.filesystem.remove(path)
                actions.append(f"truncated: {path} is removed")
    return actions


def _lower_watermark(log_directory: LogDirectory, end_offset: int) -> None:
    """Forget a stored high watermark beyond the new end: other records may come there."""
    watermark = WatermarkFile(log_directory.filesystem, log_directory.directory)
    if watermark.read() > end_offset:
        watermark.remove()


def _read_seal(log_directory: LogDirectory, segment: SegmentId) -> Seal | None:
    try:
        return read_seal(log_directory, *segment)
    except (FileNotFoundError, CorruptFile):
        return None


def _is_whole(
    log_directory: LogDirectory, segment: SegmentId, seal: Seal, truncation: Truncation
) -> bool:
    """Return whether a sealed segment ends where the log is to end, so that it stays as it is."""
    size = log_directory.filesystem.size(log_directory.path(segment[0], "log", segment[1]))
    sealed = (seal.size, seal.next_offset)
    return sealed == (truncation.size, truncation.end_offset) and size == seal.size


def _cut_segment(
    log_directory: LogDirectory, segment: SegmentId, size: int, *, is_mapped: bool
) -> None:
    """Remove the bytes of a segment from `size` on, and all files derived from it."""
    filesystem, directory = log_directory.filesystem, log_directory.directory
    base, generation = segment
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove(log_directory.path(base, "seal", generation))
    # Durable before the bytes: a seal never covers more than the file has.
    filesystem.sync_directory(directory)
    for suffix in ("index", "keys"):
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(log_directory.path(base, suffix, generation))
    path = log_directory.path(base, "log", generation)
    if not is_mapped:
        file = filesystem.open(path)
        try:
            if file.size() > size:
                file.truncate(size)
            file.sync()
        finally:
            file.close()
        return
    source = filesystem.open_readonly(path)
    copy_path = join(directory, segment_file(base, "log", generation) + TEMPORARY_SUFFIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(copy_path)
        copy = filesystem.create(copy_path)
        try:
            for start in range(0, size, COPY_CHUNK):
                write_all(copy, start, [source.read_at(start, min(COPY_CHUNK, size - start))])
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()
    filesystem.rename(copy_path, path)
    filesystem.sync_directory(directory)


def _seal_again(
    log_directory: LogDirectory,
    segment: SegmentId,
    truncation: Truncation,
    created_ms: int,
    sealed_ms: int,
) -> Seal | None:
    """Seal what is left of a segment; return `None` if it is damaged."""
    result = scan(
        map_file(log_directory.filesystem, log_directory.path(segment[0], "log", segment[1])),
        base_offset=segment.base_offset,
        created_ms=created_ms,
        index_interval_bytes=log_directory.index_interval_bytes,
    )
    seal = result.stats.seal(sealed_ms)
    if (seal.size, seal.next_offset) != (truncation.size, truncation.end_offset):
        return None
    write_seal(log_directory, seal, result.index, segment.generation)
    return seal


def _attest(log_directory: LogDirectory, truncation: Truncation) -> None:
    """Record in the checkpoint how much of the last segment must be there."""
    point = SyncPoint(truncation.segment, truncation.size, truncation.end_offset)
    replace_file(
        log_directory.filesystem, log_directory.directory, CHECKPOINT_FILE, [encode_slot(point, 0)]
    )

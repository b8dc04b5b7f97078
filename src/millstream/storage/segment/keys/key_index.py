"""Lookup of the records in a segment that deletions by key match.

A sealed segment is looked up in its `.keys` file, so the cost is that of the result; the file is
built when it is first needed. A growing segment is searched. Either way the batch itself decides
what matches: the file only says which batches to look into.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence

from millstream.errors import CorruptBatch, CorruptFile, UnknownFormat
from millstream.records.batch import decode_header
from millstream.records.filter.keys.matcher import (
    KeyMatch,
    KeyMatcher,
    MatchedRecords,
    find_matched_records,
)
from millstream.records.opened_batch import LocatedBatch
from millstream.storage.disk.file_cache import map_file
from millstream.storage.disk.filesystem import join
from millstream.storage.files.document import replace_file
from millstream.storage.files.index import NO_TIME
from millstream.storage.files.names import TEMPORARY_SUFFIX, segment_file
from millstream.storage.files.partition_metadata import DeletionRule
from millstream.storage.segment.keys.builder import build_key_index
from millstream.storage.segment.keys.key_file import KeyedBatchPosition, KeyIndex, check_key_index
from millstream.storage.segment.log_state import DeletedOffsets
from millstream.storage.segment.reader import batches_since
from millstream.storage.segment.scan import check_batch_at
from millstream.storage.segment.segment import SealedSegment, Segment

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of a growing segment that are searched at once."""


def find_deleted_offsets(
    segment: Segment, deletions: Sequence[DeletionRule], *, start: int, limit: int
) -> DeletedOffsets:
    """Return the offsets in one segment, from `start` on, that `deletions` match.

    Only the first `limit` bytes of the `.log` count: those that are committed. Raises
    `CorruptBatch` if a batch that had to be read is damaged: it may have matching records, so the
    result is not known. A valid batch whose records cannot be decoded has none.
    """
    first = max(start, segment.base_offset)
    limits: dict[KeyMatch, int] = {}
    for match, before in ((deletion.match, deletion.before) for deletion in deletions):
        if before > first:
            limits[match] = max(before, limits.get(match, 0))
    if not limits or limit == 0 or segment.next_offset <= start:
        return DeletedOffsets(array("q"), 0)
    if isinstance(segment, SealedSegment):
        hits = _look_up(segment, limits, start=start, limit=limit)
    else:
        hits = _search(segment, limits, start=start, limit=limit)
    return DeletedOffsets(hits.offsets, hits.bytes)


def key_index(segment: SealedSegment) -> KeyIndex:
    """Return the keys of a segment, from its `.keys` file, which is built if necessary.

    The checksum of a file is verified when it is mapped. A file that is damaged, of another state
    of the `.log`, or of an unknown version is replaced: all of it can be rebuilt.
    """
    map_cache, path = segment.log_directory.map_cache, segment.keys_path
    try:
        return KeyIndex(map_cache.get(path, lambda: _load(segment)), segment.seal)
    except FileNotFoundError:
        logger.debug("building %s", path)
    except (CorruptFile, UnknownFormat, OSError) as error:
        logger.warning("rebuilding %s: %s", path, error)
        map_cache.forget(path)
    data = _build(segment)
    _keep(segment, data)
    return KeyIndex(data, segment.seal)


def _look_up(
    segment: SealedSegment, limits: Mapping[KeyMatch, int], *, start: int, limit: int
) -> MatchedRecords:
    """Search the batches that the index names."""
    index = key_index(segment)
    spots: set[KeyedBatchPosition] = set()
    for match, before in limits.items():
        spots.update(spot for spot in index.find(match) if spot.base_offset < before)
    view = _read_all(segment, limit)
    batches = _checked(segment, view, sorted(spots), start)
    return find_matched_records(view, batches, KeyMatcher(limits), start=start)


def _checked(
    segment: SealedSegment, view: memoryview, spots: Sequence[KeyedBatchPosition], start: int
) -> Iterator[LocatedBatch]:
    """Check the batches at these positions, without those before `start` or past `view`.

    No checksum covers their base offsets; these must be what they were when the index was built.
    """
    for position, base_offset in spots:
        if position >= len(view):
            continue
        try:
            header = check_batch_at(view, position, base_offset, segment.leader_epoch)
        except CorruptBatch as error:
            raise CorruptBatch(f"{segment.path}: byte {position}: {error}") from error
        if header.next_offset > start:
            yield LocatedBatch(position, header)


def _search(
    segment: Segment, limits: Mapping[KeyMatch, int], *, start: int, limit: int
) -> MatchedRecords:
    """Search all batches."""
    matcher = KeyMatcher(limits)
    offsets, size = array("q"), 0
    for data, batches in _chunks(segment, start=start, end=max(limits.values()), limit=limit):
        hits = find_matched_records(data, batches, matcher, start=start)
        offsets.extend(hits.offsets)
        size += hits.bytes
    return MatchedRecords(offsets, size)


def _chunks(
    segment: Segment, *, start: int, end: int, limit: int
) -> Iterator[tuple[bytes, list[LocatedBatch]]]:
    """Iterate over the checked batches with offsets from `start` up to `end`, many at a time."""
    pieces: list[memoryview] = []
    batches: list[LocatedBatch] = []
    size = 0
    for batch in batches_since(segment, NO_TIME, start=start, limit=limit):
        header = decode_header(batch)
        pieces.append(batch)
        batches.append(LocatedBatch(size, header))
        size += header.size
        if header.next_offset >= end:
            break
        if size >= _CHUNK_BYTES:
            yield b"".join(pieces), batches
            pieces, batches, size = [], [], 0
    if pieces:
        yield b"".join(pieces), batches


def _read_all(segment: SealedSegment, size: int) -> memoryview:
    """Return the first `size` bytes of the `.log`; raise if the file is shorter."""
    view = segment.view(0, size)
    if len(view) < size:
        raise CorruptBatch(
            f"{segment.path}: ends at byte {len(view)}, but {size} bytes are committed"
        )
    return view


def _load(segment: SealedSegment) -> memoryview:
    data = map_file(segment.log_directory.filesystem, segment.keys_path)
    check_key_index(data)
    return data


def _build(segment: SealedSegment) -> bytes:
    try:
        return build_key_index(_read_all(segment, segment.size), base_offset=segment.base_offset)
    except CorruptBatch as error:
        raise CorruptBatch(f"{segment.path}: {error}") from error


def _keep(segment: SealedSegment, data: bytes) -> None:
    """Write the file. It only saves work, so a failure is no error.

    On a full disk, half a file would only waste space.
    """
    log_directory = segment.log_directory
    name = segment_file(segment.base_offset, "keys", segment.generation)
    try:
        replace_file(log_directory.filesystem, log_directory.directory, name, [data])
    except OSError as error:
        logger.warning("%s cannot be written: %s", segment.keys_path, error)
        with contextlib.suppress(OSError):
            log_directory.filesystem.remove(join(log_directory.directory, name + TEMPORARY_SUFFIX))

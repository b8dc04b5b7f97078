"""Finding the records that deletions by key hit in a segment.

A sealed segment is looked up in its `.keys` file, so the cost is that of what is found; the file is
built when it is first asked for. A growing segment is searched. Either way it is the batch itself
that says what is hit: the file only says which batches to look into.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence

from millstream.errors import CorruptBatch, CorruptFile, UnknownFormat
from millstream.records.batch import decode_header
from millstream.records.matching import Hits, Match, Matcher, find_hits
from millstream.records.opened import Placed
from millstream.storage.contents import Mask
from millstream.storage.document import replace_file
from millstream.storage.filesystem import join
from millstream.storage.index import NO_TIME
from millstream.storage.key_building import build_key_index
from millstream.storage.key_file import KeyIndex, Spot, check_key_index
from millstream.storage.maps import map_file
from millstream.storage.names import TEMPORARY_SUFFIX, segment_file
from millstream.storage.partition import Deletion
from millstream.storage.reader import batches_since
from millstream.storage.scan import check_at
from millstream.storage.segment import SealedSegment, Segment

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a growing segment is searched at once."""


def segment_matches(
    segment: Segment, deletions: Sequence[Deletion], *, start: int, limit: int
) -> Mask:
    """Return what `deletions` hit in one segment, from offset `start` on.

    Only the first `limit` bytes of the `.log` count: those that are committed. Raises
    `CorruptBatch` where a batch that had to be looked at is damaged: it may hold such records, so
    nothing can be said. One that is sound, but whose records cannot be opened, holds none.
    """
    first = max(start, segment.base_offset)
    limits: dict[Match, int] = {}
    for match, before in ((deletion.match, deletion.before) for deletion in deletions):
        if before > first:
            limits[match] = max(before, limits.get(match, 0))
    if not limits or limit == 0 or segment.next_offset <= start:
        return Mask(array("q"), 0)
    if isinstance(segment, SealedSegment):
        hits = _look_up(segment, limits, start=start, limit=limit)
    else:
        hits = _search(segment, limits, start=start, limit=limit)
    return Mask(hits.offsets, hits.bytes)


def key_index(segment: SealedSegment) -> KeyIndex:
    """Return the keys of a segment, from its `.keys` file or else built anew and kept there.

    Every file is summed when it is mapped. One that is damaged, of another state of the `.log`, or
    written by a release that we do not know, is replaced: all it says can be derived.
    """
    maps, path = segment.place.maps, segment.keys_path
    try:
        return KeyIndex(maps.get(path, lambda: _load(segment)), segment.seal)
    except FileNotFoundError:
        logger.debug("building %s", path)
    except (CorruptFile, UnknownFormat, OSError) as error:
        logger.warning("deriving %s anew: %s", path, error)
        maps.forget(path)
    data = _build(segment)
    _keep(segment, data)
    return KeyIndex(data, segment.seal)


def _look_up(
    segment: SealedSegment, limits: Mapping[Match, int], *, start: int, limit: int
) -> Hits:
    """Look into the batches that the index names."""
    index = key_index(segment)
    spots: set[Spot] = set()
    for match, before in limits.items():
        spots.update(spot for spot in index.find(match) if spot.base_offset < before)
    view = _whole(segment, limit)
    batches = _checked(segment, view, sorted(spots), start)
    return find_hits(view, batches, Matcher(limits), start=start)


def _checked(
    segment: SealedSegment, view: memoryview, spots: Sequence[Spot], start: int
) -> Iterator[Placed]:
    """Check the batches at these places, leaving out those that lie before `start` or past `view`.

    No sum covers their base offsets; these must be what they were when the index was built.
    """
    for position, base_offset in spots:
        if position >= len(view):
            continue
        try:
            header = check_at(view, position, base_offset, segment.leader_epoch)
        except CorruptBatch as error:
            raise CorruptBatch(f"{segment.path}: byte {position}: {error}") from error
        if header.next_offset > start:
            yield Placed(position, header)


def _search(segment: Segment, limits: Mapping[Match, int], *, start: int, limit: int) -> Hits:
    """Look into all batches."""
    matcher = Matcher(limits)
    offsets, size = array("q"), 0
    for data, batches in _chunks(segment, start=start, end=max(limits.values()), limit=limit):
        hits = find_hits(data, batches, matcher, start=start)
        offsets.extend(hits.offsets)
        size += hits.bytes
    return Hits(offsets, size)


def _chunks(
    segment: Segment, *, start: int, end: int, limit: int
) -> Iterator[tuple[bytes, list[Placed]]]:
    """Go over the batches that hold offsets from `start` up to `end`, checked, many at a time."""
    pieces: list[memoryview] = []
    batches: list[Placed] = []
    size = 0
    for batch in batches_since(segment, NO_TIME, start=start, limit=limit):
        header = decode_header(batch)
        pieces.append(batch)
        batches.append(Placed(size, header))
        size += header.size
        if header.next_offset >= end:
            break
        if size >= _CHUNK_BYTES:
            yield b"".join(pieces), batches
            pieces, batches, size = [], [], 0
    if pieces:
        yield b"".join(pieces), batches


def _whole(segment: SealedSegment, size: int) -> memoryview:
    """Return the first `size` bytes of the `.log`: all of them, or the rest was never looked at."""
    view = segment.view(0, size)
    if len(view) < size:
        raise CorruptBatch(f"{segment.path}: ends at byte {len(view)}, committed are {size}")
    return view


def _load(segment: SealedSegment) -> memoryview:
    data = map_file(segment.place.filesystem, segment.keys_path)
    check_key_index(data)
    return data


def _build(segment: SealedSegment) -> bytes:
    try:
        return build_key_index(_whole(segment, segment.size), base_offset=segment.base_offset)
    except CorruptBatch as error:
        raise CorruptBatch(f"{segment.path}: {error}") from error


def _keep(segment: SealedSegment, data: bytes) -> None:
    """Write the file. It is a convenience, so a disk that refuses is no error.

    Where the disk is full, half a file would only be in the way.
    """
    place = segment.place
    name = segment_file(segment.base_offset, "keys", segment.generation)
    try:
        replace_file(place.filesystem, place.directory, name, [data])
    except OSError as error:
        logger.warning("%s not written: %s", segment.keys_path, error)
        with contextlib.suppress(OSError):
            place.filesystem.remove(join(place.directory, name + TEMPORARY_SUFFIX))

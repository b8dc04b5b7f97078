"""Walk over the batches of a log on disk that continues past damage.

After a damaged batch it continues with the one that follows, if that is intact at its expected
position; else with the next that the index names; else with the next segment. If a running node
has rewritten a segment meanwhile, it continues in the new one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from millstream.errors import CorruptBatch, InvalidRequest, MillstreamError
from millstream.records.batch import HEADER_SIZE, BatchHeader, check_batch, decode_header
from millstream.storage.disk.filesystem import File, Filesystem
from millstream.storage.files.index import INDEX_HEADER_SIZE, SegmentIndex, decode_index
from millstream.storage.inspect.catalog import (
    Finding,
    FindingKind,
    PartitionFiles,
    SegmentFiles,
    read_file,
    survey_partition,
)
from millstream.storage.inspect.verify_segment import INDEX_SIZE_MAX
from millstream.storage.segment.scan import check_stamped_fields

_INDEXED_SIZE = struct.Struct("<16xq")


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A batch and its position. Its header is reliable only if `is_sound`."""

    segment: int
    generation: int
    position: int
    header: BatchHeader
    data: bytes
    is_sound: bool


def walk_batches(
    filesystem: Filesystem, files: PartitionFiles, start: int
) -> Iterator[tuple[SegmentFiles, WalkedBatch | Finding]]:
    """Yield the batches from the one that contains `start` on, and the findings between them."""
    logs = _logs_from(files, start)
    while logs:
        segment = logs.pop(0)
        try:
            batches = _SegmentWalk(filesystem, segment).run(start)
        except FileNotFoundError:
            # Deleted or rewritten by a running node since it was listed.
            again = _logs_from(survey_partition(filesystem, files.directory), start)
            logs = again if segment.id not in {log.id for log in again} else logs
            continue
        for item in batches:
            if isinstance(item, Finding):
                yield segment, item
            elif item.header.last_offset >= start:
                yield segment, item
                if item.is_sound:
                    start = item.header.next_offset


def _logs_from(files: PartitionFiles, start: int) -> list[SegmentFiles]:
    """Return the segments from the one that contains `start` on."""
    logs = [segment for segment in files.segments if segment.has_log or segment.is_cold]
    first = max((n for n, log in enumerate(logs) if log.base_offset <= start), default=0)
    if (cold := next((log for log in logs[first:] if log.is_cold), None)) is not None:
        raise InvalidRequest(
            f"{cold.path('cold')}: the records from offset {cold.base_offset} on are in a cold"
            " store, and only a running node reads them; start behind it"
        )
    return logs[first:]


class _SegmentWalk:
    def __init__(self, filesystem: Filesystem, files: SegmentFiles) -> None:
        self._files = files
        self._file: File = filesystem.open_readonly(files.path("log"))
        self._index = _read_index(filesystem, files)

    def run(self, start: int) -> Iterator[WalkedBatch | Finding]:
        entry = self._index.for_offset(start) if len(self._index) else None
        position = entry.position if entry else 0
        offset: int | None = entry.offset if entry else self._files.base_offset
        size = self._file.size()
        while position < size:
            try:
                batch = self._batch(position, offset)
            except CorruptBatch as error:
                if offset is not None:
                    yield self._finding(position, error)
                position, offset = self._next_indexed(position, size), None
                continue
            if not batch.is_sound and offset is None:
                position = self._next_indexed(position, size)
                continue
            if not batch.is_sound:
                yield self._finding(position, CorruptBatch("batch fails its checksum"))
            yield batch
            position += batch.header.size
            offset = batch.header.next_offset if batch.is_sound else None

    def _batch(self, position: int, offset: int | None) -> WalkedBatch:
        """Read the batch at `position`; without an expected offset, its checksum must match."""
        header = decode_header(self._file.read_at(position, HEADER_SIZE))
        expected = header.base_offset if offset is None else offset
        check_stamped_fields(header, expected, self._files.leader_epoch)
        data = self._file.read_at(position, header.size)
        if len(data) < header.size:
            raise CorruptBatch(
                f"batch is truncated: it has {header.size} bytes, the file {len(data)} more"
            )
        try:
            check_batch(header, data)
        except CorruptBatch:
            return WalkedBatch(*self._files.id, position, header, data, is_sound=False)
        return WalkedBatch(*self._files.id, position, header, data, is_sound=True)

    def _next_indexed(self, position: int, size: int) -> int:
        positions = (self._index[number].position for number in range(len(self._index)))
        return next((indexed for indexed in positions if indexed > position), size)

    def _finding(self, position: int, error: CorruptBatch) -> Finding:
        is_torn = self._files.may_be_torn(position)
        kind = FindingKind.UNFINISHED if is_torn else FindingKind.DAMAGED
        return Finding(self._files.path("log"), position, str(error), kind)


def _read_index(filesystem: Filesystem, files: SegmentFiles) -> SegmentIndex:
    """Return the index of a segment, even an outdated one; an empty one if it is unusable."""
    try:
        data = read_file(filesystem, files.path("index"), size_max=INDEX_SIZE_MAX)
        size = _INDEXED_SIZE.unpack_from(data)[0] if len(data) >= INDEX_HEADER_SIZE else 0
        return decode_index(memoryview(data), base_offset=files.base_offset, log_size=size)
    except (MillstreamError, OSError):
        return SegmentIndex()

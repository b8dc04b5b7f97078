"""A log with rewritten segments, made by hand on a simulated disk.

Generation 0 is A with the offsets 0 to 9, B with 10 to 19, C with 20 to 29, D with 30 to 39.
Generation 1 is X with 0 to 29, without the records in `DROPPED`: A, B and C were rewritten into it.
Generation 2 is Y with 0 to 39, made from X and D.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from millstream.records.batch import split, stamp
from millstream.records.build import build_batch
from millstream.records.filter.batch_filter import filler_batches, remove_offsets
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.storage.disk.file_cache import FileCache, map_file
from millstream.storage.disk.filesystem import join, write_all
from millstream.storage.files.checkpoint import CHECKPOINT_SIZE, SyncPoint, encode_slot
from millstream.storage.files.document import replace_file
from millstream.storage.files.names import (
    CHECKPOINT_FILE,
    SEGMENT_SUFFIXES,
    TEMPORARY_SUFFIX,
    SegmentId,
    segment_file,
)
from millstream.storage.files.partition_metadata import PartitionMetadata, write_partition_metadata
from millstream.storage.recovery.log_recovery import RecoveredLog, recover
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.segment import LogDirectory, Segment, write_seal
from millstream.testing import ManualClock, SimulatedFilesystem

DIRECTORY = "/data/topics/t/0"
EPOCH = 0
BATCH_RECORDS = 2

A, B, C, D = (SegmentId(base, 0) for base in (0, 10, 20, 30))
X = SegmentId(0, 1)
Y = SegmentId(0, 2)
INPUTS = (A, B, C)
END = 40

DROPPED = frozenset({5, 12, 13, 14, 15})
"""One of two records of a batch, and two batches, whose place a filler takes."""
OLD = {offset: b"value %d" % offset for offset in range(END)}
NEW = {offset: value for offset, value in OLD.items() if offset not in DROPPED}


def make_log_directory(disk: SimulatedFilesystem) -> LogDirectory:
    return LogDirectory(disk, DIRECTORY, FileCache(8), FileCache(8), 64)


def make_disk(
    *segments: SegmentId, partition: PartitionMetadata | None = None
) -> SimulatedFilesystem:
    """A disk with these segments, complete, and `partition.json`."""
    disk = SimulatedFilesystem()
    for path in ("/data", "/data/topics", "/data/topics/t", DIRECTORY):
        disk.make_directory(path)
    place = make_log_directory(disk)
    write_partition_metadata(disk, DIRECTORY, partition or PartitionMetadata(is_rewritten=True))
    for segment in segments:
        put_log(place, segment)
        put_seal(place, segment)
    return disk.copy()


def path_of(segment: SegmentId, suffix: str) -> str:
    return join(DIRECTORY, segment_file(segment.base_offset, suffix, segment.generation))


def files_of(*segments: SegmentId) -> list[str]:
    return [path_of(segment, s) for segment in segments for s in SEGMENT_SUFFIXES if s != "keys"]


def appended(first: int, end: int) -> bytes:
    """Batches as they were appended."""
    return b"".join(
        stamp(
            build_batch(
                [Record(OLD[n], key=b"key %d" % n) for n in range(base, base + BATCH_RECORDS)],
                now_ms=base,
            ),
            base_offset=base,
            leader_epoch=EPOCH,
        )
        for base in range(first, end, BATCH_RECORDS)
    )


def rewritten(data: bytes, dropped: Sequence[int]) -> bytes:
    """The same batches without some records."""
    pieces: list[bytes] = []
    hole: int | None = None
    for header, batch in split(data):
        rest = remove_offsets(batch, array("q", dropped))
        if next(split(rest))[0].record_count > 0:
            if hole is not None:
                pieces.append(filler_batches(hole, header.base_offset, leader_epoch=EPOCH))
            pieces.append(rest)
            hole = None
        elif hole is None:
            hole = header.base_offset
    assert hole is None, "the last batch stays"
    return b"".join(pieces)


def log_of(segment: SegmentId) -> bytes:
    if segment.generation == 0:
        return appended(segment.base_offset, segment.base_offset + 10)
    output = rewritten(appended(0, 30), sorted(DROPPED))
    return output if segment == X else output + log_of(D)


def put_log(place: LogDirectory, segment: SegmentId, data: bytes | None = None) -> None:
    """Put a log at its name, as a rewrite does."""
    name = segment_file(segment.base_offset, "log", segment.generation)
    temporary = join(place.directory, name + TEMPORARY_SUFFIX)
    file = place.filesystem.create(temporary)
    write_all(file, 0, [log_of(segment) if data is None else data])
    file.sync()
    file.close()
    place.filesystem.rename(temporary, join(place.directory, name))


def put_seal(place: LogDirectory, segment: SegmentId) -> None:
    found = scan_log(place, segment)
    write_seal(place, found.stats.seal(2), found.index, segment.generation)


def scan_log(place: LogDirectory, segment: SegmentId) -> SegmentScan:
    return scan(
        map_file(place.filesystem, path_of(segment, "log")),
        base_offset=segment.base_offset,
        created_ms=1,
        index_interval_bytes=place.index_interval_bytes,
    )


def recovered(disk: SimulatedFilesystem) -> RecoveredLog:
    return recover(make_log_directory(disk), ManualClock())


def values(found: RecoveredLog | Sequence[Segment]) -> dict[int, bytes | None]:
    """All records of a log, by offset."""
    segments = found.segments if isinstance(found, RecoveredLog) else found
    return {
        record.offset: record.value
        for segment in segments
        for record in read_all(segment.view(0, segment.size))
    }


def logs(disk: SimulatedFilesystem) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(".log")]


def names_of(*segments: SegmentId) -> list[str]:
    return sorted(segment_file(s.base_offset, "log", s.generation) for s in segments)


def remove(disk: SimulatedFilesystem, *paths: str) -> None:
    for path in paths:
        disk.remove(path)


def flip(disk: SimulatedFilesystem, path: str, position: int = 70) -> None:
    """Turn a bit over; by default inside the first batch of a log."""
    disk.flip_bit(path, 8 * position)


def cut(disk: SimulatedFilesystem, path: str, size: int = -1) -> None:
    disk.replace_content(path, disk.content(path)[:size])


def batches_of(data: bytes) -> Iterator[tuple[int, int, frozenset[int]]]:
    """Start and end of each batch in a log, and the offsets of its records."""
    position = 0
    for header, batch in split(data):
        offsets = frozenset(r.offset for r in read_all(batch)) if header.record_count else ()
        yield position, position + len(batch), frozenset(offsets)
        position += len(batch)


def put_checkpoint(disk: SimulatedFilesystem, synced: SyncPoint) -> None:
    data = encode_slot(synced, 1).ljust(CHECKPOINT_SIZE, b"\0")
    replace_file(disk, DIRECTORY, CHECKPOINT_FILE, [data])

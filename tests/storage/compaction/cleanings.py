"""Segments and logs to clean, for tests."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence

from millstream.config.schema import LogConfig
from millstream.records.batch import decode_header, stamp
from millstream.records.build import build_batch
from millstream.records.control import build_marker
from millstream.records.filter.rules import AbortedOffsets
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.disk.filesystem import Filesystem, write_all
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.storage.files.index import SegmentIndex
from millstream.storage.log import Log
from millstream.storage.segment.scan import scan
from millstream.storage.segment.segment import LogDirectory, SealedSegment, write_seal
from millstream.testing.clocks.seeded_background import SeededBackground

MEMORY = 16 * 1024 * 1024


def make_log_directory(
    filesystem: Filesystem | None = None, *, interval: int = 128
) -> LogDirectory:
    filesystem = filesystem or MemoryFilesystem(2**30)
    filesystem.make_directory("/log")
    filesystem.sync_directory("/")
    return LogDirectory(filesystem, "/log", FileCache(8), FileCache(8), interval)


def make_segment(
    place: LogDirectory,
    batches: Iterable[bytes],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    created_ms: int = 10,
    sealed_ms: int = 20,
    generation: int = 0,
) -> SealedSegment:
    """Write a segment with its index and its seal."""
    offset, stamped = base_offset, []
    for batch in batches:
        stamped.append(stamp(batch, base_offset=offset, leader_epoch=leader_epoch))
        offset += decode_header(batch).last_offset_delta + 1
    file = place.filesystem.create(place.path(base_offset, "log", generation))
    write_all(file, 0, stamped)
    file.close()
    found = scan(
        memoryview(b"".join(stamped)),
        base_offset=base_offset,
        created_ms=created_ms,
        index_interval_bytes=place.index_interval_bytes,
    )
    assert found.damage is None
    seal = found.stats.seal(sealed_ms)
    write_seal(place, seal, found.index, generation)
    return SealedSegment(place, seal, generation)


def data(*pairs: tuple[bytes | None, bytes | None], **options: object) -> bytes:
    """Return a batch of records with these keys and values."""
    records = [Record(value, key=key) for key, value in pairs]
    return build_batch(records, now_ms=1_000, **options)  # type: ignore[arg-type]


def produced(
    producer_id: int, sequence: int, *keys: bytes, is_transactional: bool = False
) -> bytes:
    """Return a batch of a producer; the values are its sequences."""
    return data(
        *((key, b"%d" % (sequence + number)) for number, key in enumerate(keys)),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def marker(producer_id: int, *, is_commit: bool) -> bytes:
    return build_marker(producer_id, 0, is_commit=is_commit, coordinator_epoch=0, now_ms=1_000)


def offsets_of(segment: SealedSegment) -> list[int]:
    return [record.offset for record in read_all(segment.view(0, segment.size))]


def headers_of(segment: SealedSegment) -> list[tuple[int, int, int]]:
    """Return base offset, end and number of records of each batch."""
    view, position, found = segment.view(0, segment.size), 0, []
    while position < len(view):
        header = decode_header(view, position)
        found.append((header.base_offset, header.next_offset, header.record_count))
        position += header.size
    return found


def check_sound(place: LogDirectory, segment: SealedSegment, index: SegmentIndex) -> None:
    """Check that the seal and the index of a rewritten segment agree with a scan of it."""
    found = scan(
        segment.view(0, segment.size),
        base_offset=segment.base_offset,
        created_ms=segment.seal.created_ms,
        index_interval_bytes=place.index_interval_bytes,
        leader_epoch=segment.leader_epoch,
    )
    assert found.damage is None
    assert found.stats.seal(segment.seal.sealed_ms) == segment.seal
    assert found.index.to_bytes() == index.to_bytes()


class FakeRemovalHooks:
    """Hooks with the transactions that a test sets."""

    def __init__(self, aborted: Sequence[AbortedOffsets] = (), *, stable: int = 2**62) -> None:
        self.found = list(aborted)
        self.stable = stable
        self.calls = 0
        self.error: Exception | None = None

    def stable_offset(self) -> int:
        return self.stable

    def aborted(self, first: int, end: int) -> list[AbortedOffsets]:
        return [
            each for each in self.found if each.first_offset < end and each.last_offset >= first
        ]

    def needed_offset(self) -> int | None:
        return None

    async def before_removal(self) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


async def clean(
    log: Log,
    *,
    background: Executor | None = None,
    throttle: IoThrottle | None = None,
    memory: int = MEMORY,
    is_forced: bool = False,
) -> CleanerResult | None:
    return await log.clean(
        background=background or SeededBackground(7),
        throttle=throttle or IoThrottle(),
        memory_bytes_max=memory,
        seed=1,
        is_forced=is_forced,
    )


async def put(log: Log, key: bytes | None, value: bytes | None, *, padding: int = 0) -> int:
    """Append one record, and return its offset."""
    headers = (("padding", b"x" * padding),) if padding else ()
    appended = await log.append_records([Record(value, key=key, headers=headers)])
    return appended.offset


def latest(log: Log, until: int | None = None) -> dict[bytes, tuple[int, bytes | None]]:
    """Return the last record of each key, as a reader from the start sees it."""
    found = {}
    for record in log.records(until=until):
        found[record.key] = (record.offset, record.value)
    return found


def kept(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.records()]


def ranges(log: Log) -> list[tuple[int, int, int]]:
    """Return base offset, end and generation of each segment; -1 for a growing one."""
    return [
        (segment.base_offset, segment.next_offset, getattr(segment, "generation", -1))
        for segment in log.segments
    ]


NO_OFFSETS = array("q")
COMPACTED = LogConfig(
    segment_bytes_max=1024,
    index_interval_bytes=64,
    is_compacted=True,
    dirty_ratio_min=0.0,
    tombstone_ms=60_000,
)

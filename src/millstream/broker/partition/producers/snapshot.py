r"""`producers.snapshot`: what is remembered of the producers of a partition.

With it, opening the partition need not read the whole log.

     0        8         10    12       20         24          28        32              40
    +--------+---------+-----+--------+----------+-----------+---------+---------------+- -
    | magic  | version | 0   | offset | tail crc | producers | aborted | forgotten max |
    +--------+---------+-----+--------+----------+-----------+---------+---------------+- -

    for each producer, 47 bytes:
    +----+-------+-------------------+--------------+---------------+-----------+------+-------+
    | id | epoch | coordinator epoch | first offset | marker offset | timestamp | idle | count |
    |    |       |                   | of its trans-| of its last   | of its    | ms   | of    |
    |    |       |                   | action       | transaction   | last batch|      | batches
    +----+-------+-------------------+--------------+---------------+-----------+------+-------+
      and behind it for each of its batches, 32 bytes:
      +----------------+---------------+--------------+-------------+-----------+
      | first sequence | last sequence | first offset | last offset | timestamp |
      +----------------+---------------+--------------+-------------+-----------+

    for each aborted transaction, 32 bytes:
    +-------------+--------------+-------------+--------------------+
    | producer id | first offset | last offset | last stable offset |
    +-------------+--------------+-------------+--------------------+

    and at the end the crc32c of all that is before it, in 4 bytes.

It speaks of all batches before `offset`, all of which were committed. `tail crc` is the checksum
of the last of them: a log that was cut and grew again, or that comes from a backup, has another
one there, and then the snapshot is of a log that no longer exists. The file is replaced whole.
Without it, everything is found in the log again, save producers whose batches are gone from it.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from millstream.broker.partition.producers.aborted_index import AbortedRange
from millstream.broker.partition.producers.entry import (
    BATCHES_REMEMBERED,
    AppendedBatch,
    ProducerEntry,
)
from millstream.broker.partition.producers.states import ProducerSnapshot
from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import replace_file

SNAPSHOT_FILE = "producers.snapshot"
SNAPSHOT_SIZE_MAX = 1024 * 1024 * 1024
"""Several times what the most producers and millions of aborted transactions need."""

_MAGIC = b"MSPRODUC"
_VERSION = 1
_HEAD = struct.Struct(">8sHHqIIIq")
_PRODUCER = struct.Struct(">qhiqqqqB")
_BATCH = struct.Struct(">iiqqq")
_ABORTED = struct.Struct(">qqqq")
_SUM = struct.Struct(">I")


def encode_snapshot(found: ProducerSnapshot, *, tail_crc: int, now_ms: int) -> bytes:
    """Write a snapshot; `now_ms` is of the clock by which entries say when they were seen."""
    pieces = []
    for producer_id, entry in found.entries.items():
        pieces.append(
            _PRODUCER.pack(
                producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                entry.first_offset,
                entry.marker_offset,
                entry.timestamp_ms,
                max(0, now_ms - entry.seen_ms),
                len(entry.batches),
            )
        )
        pieces += (_BATCH.pack(*batch) for batch in entry.batches)
    aborted = [_ABORTED.pack(*item) for item in found.aborted]
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        0,
        found.offset,
        tail_crc,
        len(found.entries),
        len(aborted),
        found.forgotten_max,
    )
    body = b"".join((head, *pieces, *aborted))
    return body + _SUM.pack(crc32c(body))


def decode_snapshot(data: bytes, *, now_ms: int) -> tuple[ProducerSnapshot, int]:
    """Return what a snapshot holds, and its tail crc, once all of it was checked."""
    if len(data) < _HEAD.size + _SUM.size:
        raise CorruptFile(f"snapshot needs {_HEAD.size + _SUM.size} bytes, found {len(data)}")
    magic, version, _, offset, tail_crc, producers, aborted, forgotten = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptFile(f"snapshot begins with {magic!r}, expected {_MAGIC!r}")
    body = memoryview(data)[: -_SUM.size]
    (written,) = _SUM.unpack_from(data, len(body))
    if (found := crc32c(body)) != written:
        raise CorruptFile(f"snapshot sums to {found:08x}, the file says {written:08x}")
    if version != _VERSION:
        raise UnknownFormat(f"found snapshot version {version}, known is {_VERSION}")
    entries: dict[int, ProducerEntry] = {}
    position = _HEAD.size
    try:
        for _ in range(producers):
            producer_id, entry, position = _read_producer(body, position, now_ms)
            entries[producer_id] = entry
        end = position + aborted * _ABORTED.size
        ranges = [AbortedRange._make(row) for row in _ABORTED.iter_unpack(body[position:end])]
    except struct.error as error:
        raise CorruptFile(f"snapshot ends in the middle: {error}") from error
    if end != len(body) or len(entries) != producers or len(ranges) != aborted:
        raise CorruptFile(f"snapshot should have {end} bytes, found {len(body)}")
    return ProducerSnapshot(offset, entries, ranges, forgotten), tail_crc


def _read_producer(body: memoryview, position: int, now_ms: int) -> tuple[int, ProducerEntry, int]:
    """Return the producer at `position`, its id, and where the next one starts."""
    fields = _PRODUCER.unpack_from(body, position)
    producer_id, epoch, coordinator_epoch, first, marker, timestamp_ms, idle_ms, count = fields
    if count > BATCHES_REMEMBERED:
        raise CorruptFile(
            f"producer {producer_id} has {count} batches, limit is {BATCHES_REMEMBERED}"
        )
    start = position + _PRODUCER.size
    end = start + count * _BATCH.size
    batches = tuple(AppendedBatch._make(row) for row in _BATCH.iter_unpack(body[start:end]))
    entry = ProducerEntry(
        epoch, batches, first, marker, coordinator_epoch, timestamp_ms, now_ms - idle_ms
    )
    return producer_id, entry, end


def read_snapshot(
    filesystem: Filesystem, directory: str, *, now_ms: int
) -> tuple[ProducerSnapshot, int]:
    """Read the snapshot of a partition; raises `FileNotFoundError` where there is none."""
    path = join(directory, SNAPSHOT_FILE)
    file = filesystem.open_readonly(path)
    try:
        if (size := file.size()) > SNAPSHOT_SIZE_MAX:
            raise CorruptFile(f"snapshot has {size} bytes, limit is {SNAPSHOT_SIZE_MAX}")
        return decode_snapshot(file.read_at(0, size), now_ms=now_ms)
    except CorruptFile as error:
        raise CorruptFile(f"{path}: {error}") from error
    except UnknownFormat as error:
        raise UnknownFormat(f"{path}: {error}") from error
    finally:
        file.close()


def write_snapshot(
    filesystem: Filesystem, directory: str, found: ProducerSnapshot, *, tail_crc: int, now_ms: int
) -> None:
    """Replace the snapshot of a partition; durable when this returns."""
    data = encode_snapshot(found, tail_crc=tail_crc, now_ms=now_ms)
    replace_file(filesystem, directory, SNAPSHOT_FILE, [data])
    filesystem.sync_directory(directory)


def remove_snapshot(filesystem: Filesystem, directory: str) -> None:
    """Remove the snapshot of a partition for good: it must never be believed again."""
    filesystem.remove(join(directory, SNAPSHOT_FILE))
    filesystem.sync_directory(directory)

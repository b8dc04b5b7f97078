r"""`producers.snapshot`: the state of a partition's producers.

With it, opening the partition does not have to read the whole log.

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
      followed by each of its batches, 40 bytes:
      +----------------+---------------+--------------+-------------+-----------+-----+
      | first sequence | last sequence | first offset | last offset | timestamp | crc |
      +----------------+---------------+--------------+-------------+-----------+-----+

    for each aborted transaction, 32 bytes:
    +-------------+--------------+-------------+--------------------+
    | producer id | first offset | last offset | last stable offset |
    +-------------+--------------+-------------+--------------------+

    at the end, the crc32c of everything before it, 4 bytes.

It covers all batches before `offset`, all of which are committed. `tail crc` is the checksum of the
last of them: a log that was truncated and grew again, or that comes from a backup, has a different
one there, so the snapshot belongs to a log that no longer exists. The file is replaced as a whole.
Without it, everything is recovered from the log, except for producers whose batches were removed.

Version 1 had no `crc`: what may repeat one of its batches is compared with the log.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from millstream.broker.partition.producers.aborted_index import AbortedRange
from millstream.broker.partition.producers.entry import (
    BATCHES_REMEMBERED,
    NOTHING,
    AppendedBatch,
    ProducerEntry,
)
from millstream.broker.partition.producers.states import ProducerSnapshot
from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import replace_file

SNAPSHOT_FILE = "producers.snapshot"
SNAPSHOT_SIZE_MAX = 1024 * 1024 * 1024
"""Several times the size for the most producers and millions of aborted transactions."""

_MAGIC = b"MSPRODUC"
_VERSION = 2
_VERSION_WITHOUT_CRC = 1
_HEAD = struct.Struct(">8sHHqIIIq")
_PRODUCER = struct.Struct(">qhiqqqqB")
_BATCH = struct.Struct(">iiqqqq")
_BATCH_WITHOUT_CRC = struct.Struct(">iiqqq")
_ABORTED = struct.Struct(">qqqq")
_CHECKSUM = struct.Struct(">I")


def encode_snapshot(snapshot: ProducerSnapshot, *, tail_crc: int, now_ms: int) -> bytes:
    """Encode a snapshot; `now_ms` is of the clock that entries take `seen_ms` from."""
    pieces = []
    for producer_id, entry in snapshot.entries.items():
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
    aborted = [_ABORTED.pack(*item) for item in snapshot.aborted]
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        0,
        snapshot.offset,
        tail_crc,
        len(snapshot.entries),
        len(aborted),
        snapshot.forgotten_max,
    )
    body = b"".join((head, *pieces, *aborted))
    return body + _CHECKSUM.pack(crc32c(body))


def decode_snapshot(data: bytes, *, now_ms: int) -> tuple[ProducerSnapshot, int]:
    """Return the snapshot and its tail crc, after checking all of it."""
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise CorruptFile(
            f"snapshot must have at least {_HEAD.size + _CHECKSUM.size} bytes, got {len(data)}"
        )
    magic, version, _, offset, tail_crc, producers, aborted, forgotten = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptFile(f"snapshot starts with {magic!r}, expected {_MAGIC!r}")
    body = memoryview(data)[: -_CHECKSUM.size]
    (written,) = _CHECKSUM.unpack_from(data, len(body))
    if (computed := crc32c(body)) != written:
        raise CorruptFile(f"snapshot has checksum {computed:08x}, expected {written:08x}")
    if version not in (_VERSION, _VERSION_WITHOUT_CRC):
        raise UnknownFormat(
            f"snapshot has version {version}, expected {_VERSION_WITHOUT_CRC} or {_VERSION}"
        )
    entries: dict[int, ProducerEntry] = {}
    position = _HEAD.size
    try:
        for _ in range(producers):
            producer_id, entry, position = _read_producer(body, position, version, now_ms)
            entries[producer_id] = entry
        end = position + aborted * _ABORTED.size
        ranges = [AbortedRange._make(row) for row in _ABORTED.iter_unpack(body[position:end])]
    except struct.error as error:
        raise CorruptFile(f"snapshot is truncated: {error}") from error
    if end != len(body) or len(entries) != producers or len(ranges) != aborted:
        raise CorruptFile(f"snapshot has {len(body)} bytes, expected {end}")
    return ProducerSnapshot(offset, entries, ranges, forgotten), tail_crc


def _read_producer(
    body: memoryview, position: int, version: int, now_ms: int
) -> tuple[int, ProducerEntry, int]:
    """Return the id and the entry at `position`, and the position of the next one."""
    fields = _PRODUCER.unpack_from(body, position)
    producer_id, epoch, coordinator_epoch, first, marker, timestamp_ms, idle_ms, count = fields
    if count > BATCHES_REMEMBERED:
        raise CorruptFile(
            f"producer {producer_id} has {count} batches, limit is {BATCHES_REMEMBERED}"
        )
    start = position + _PRODUCER.size
    row = _BATCH_WITHOUT_CRC if version == _VERSION_WITHOUT_CRC else _BATCH
    end = start + count * row.size
    missing = () if row is _BATCH else (NOTHING,)
    batches = tuple(
        AppendedBatch._make(fields + missing) for fields in row.iter_unpack(body[start:end])
    )
    entry = ProducerEntry(
        epoch, batches, first, marker, coordinator_epoch, timestamp_ms, now_ms - idle_ms
    )
    return producer_id, entry, end


def read_snapshot(
    filesystem: Filesystem, directory: str, *, now_ms: int
) -> tuple[ProducerSnapshot, int]:
    """Read the snapshot of a partition; raises `FileNotFoundError` if there is none."""
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
    filesystem: Filesystem,
    directory: str,
    snapshot: ProducerSnapshot,
    *,
    tail_crc: int,
    now_ms: int,
) -> None:
    """Replace the snapshot of a partition. It is durable when this returns."""
    data = encode_snapshot(snapshot, tail_crc=tail_crc, now_ms=now_ms)
    replace_file(filesystem, directory, SNAPSHOT_FILE, [data])
    filesystem.sync_directory(directory)


def remove_snapshot(filesystem: Filesystem, directory: str) -> None:
    """Remove the snapshot of a partition durably: it must not be used again."""
    filesystem.remove(join(directory, SNAPSHOT_FILE))
    filesystem.sync_directory(directory)

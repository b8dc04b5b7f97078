r"""`meta.db-checkpoint`: the revision that the metadata must have, kept outside of the database.

     0      4         6       8          16         24     32       36       40
    +------+---------+-------+----------+----------+------+--------+--------+
    | MSMC | version | state | sequence | revision | size | digest | crc32c |   twice
    +------+---------+-------+----------+----------+------+--------+--------+

Little-endian; the last field is the checksum of the 36 bytes before it. A record says: a change
with `revision` was committed. In the state `closed` (1) it also says that the database was closed
cleanly and has `size` bytes with the checksum `digest`, which covers the bytes that SQLite does not
use too; in the state `open` (0) both are 0.

A record is written after the commit that it names is durable. So it is true whenever it reaches the
disk, and it need not be synced, except before a database that was closed is changed: `closed` must
not outlive that. A database with an older revision is not the one that was written last.

The two records are written in turn, in place, so a change takes no disk space. Both are in the
first sector of the file, so a power cut leaves each old or new. If one is damaged, the other is
used.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.filesystem import File, Filesystem, parent, write_all
from millstream.storage.files.document import replace_file

CHECKPOINT_SUFFIX = "-checkpoint"

_RECORD = struct.Struct("<4sHHQQQI")
_CRC = struct.Struct("<I")
_MAGIC = b"MSMC"
_VERSION = 1
_OPEN, _CLOSED = 0, 1
_CHUNK_SIZE = 1024 * 1024
RECORD_SIZE = _RECORD.size + _CRC.size


class FileDigest(NamedTuple):
    """Size and checksum of a database file that was closed."""

    size: int
    crc32c: int


class RevisionRecord(NamedTuple):
    """A record of the checkpoint. The one with the greater sequence is newer."""

    sequence: int
    revision: int
    closed: FileDigest | None = None
    """The database file, if it was closed cleanly."""


def encode_record(record: RevisionRecord) -> bytes:
    """Return the bytes of a record."""
    state = _OPEN if record.closed is None else _CLOSED
    size, digest = record.closed or (0, 0)
    body = _RECORD.pack(_MAGIC, _VERSION, state, record.sequence, record.revision, size, digest)
    return body + _CRC.pack(crc32c(body))


def decode_record(data: bytes) -> RevisionRecord:
    """Return the record in `data`, after checking all of it."""
    if len(data) != RECORD_SIZE:
        raise CorruptFile(f"a record must have {RECORD_SIZE} bytes, got {len(data)}")
    body = data[: _RECORD.size]
    (written,) = _CRC.unpack_from(data, _RECORD.size)
    if (computed := crc32c(body)) != written:
        raise CorruptFile(f"a record has checksum {computed:08x}, expected {written:08x}")
    magic, version, state, sequence, revision, size, digest = _RECORD.unpack(body)
    if magic != _MAGIC or version != _VERSION or state not in (_OPEN, _CLOSED):
        raise UnknownFormat(
            f"expected {_MAGIC!r} version {_VERSION}, got {magic!r} version {version}"
            f" with state {state}"
        )
    closed = FileDigest(size, digest) if state == _CLOSED else None
    return RevisionRecord(sequence, revision, closed)


def read_records(
    filesystem: Filesystem, path: str
) -> tuple[list[RevisionRecord], list[tuple[int, CorruptFile]]]:
    """Return the intact records, oldest first, and the damaged ones with their positions.

    Raises `FileNotFoundError`, or `UnknownFormat` if another release wrote the file.
    """
    file = filesystem.open_readonly(path)
    try:
        data = file.read_at(0, 2 * RECORD_SIZE + 1)
    finally:
        file.close()
    records, damage = [], []
    if len(data) > 2 * RECORD_SIZE:
        damage.append((2 * RECORD_SIZE, CorruptFile(f"must have {2 * RECORD_SIZE} bytes")))
    for turn in range(2):
        start = turn * RECORD_SIZE
        try:
            record = decode_record(data[start : start + RECORD_SIZE])
        except CorruptFile as error:
            damage.append((start, error))
        except UnknownFormat as error:
            raise UnknownFormat(f"{path}: {error}") from error
        else:
            records.append(record)
    return sorted(records, key=lambda record: record.sequence), damage


def file_digest(filesystem: Filesystem, path: str) -> FileDigest:
    """Return size and checksum of a file."""
    file = filesystem.open_readonly(path)
    try:
        size, checksum = file.size(), 0
        for start in range(0, size, _CHUNK_SIZE):
            checksum = crc32c(file.read_at(start, _CHUNK_SIZE), checksum)
        return FileDigest(size, checksum)
    finally:
        file.close()


def check_digest(filesystem: Filesystem, path: str, closed: FileDigest) -> None:
    """Raise `CorruptFile` unless a file is as it was when it was closed."""
    if (found := file_digest(filesystem, path)) != closed:
        raise CorruptFile(
            f"{path} has {found.size} bytes with checksum {found.crc32c:08x}, but it was closed"
            f" with {closed.size} bytes and checksum {closed.crc32c:08x}"
        )


class MetadataCheckpoint:
    """The checkpoint file of an open database."""

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        self.path = path
        self._filesystem = filesystem
        self._file: File | None = None
        self._sequence = 0

    @property
    def is_open(self) -> bool:
        """Whether records can be written: `start` was successful."""
        return self._file is not None

    def read(self) -> RevisionRecord | None:
        """Return the newest record; `None` if there is no file.

        Raises `CorruptFile` if no record is intact.
        """
        try:
            records, damage = read_records(self._filesystem, self.path)
        except FileNotFoundError:
            return None
        if not records:
            position, error = damage[0]
            raise CorruptFile(
                f"{self.path}: no record is intact ({error}, at byte {position}), so it is unknown"
                " whether the metadata is up to date; if it is, remove this file"
            )
        return records[-1]

    def start(self, revision: int, newest: RevisionRecord | None) -> None:
        """Record that the database is open; durable when this returns."""
        if newest is None:
            records = [RevisionRecord(0, revision), RevisionRecord(1, revision)]
            directory, _, name = self.path.rpartition("/")
            pieces = [encode_record(record) for record in records]
            replace_file(self._filesystem, directory or ".", name, pieces)
            self._filesystem.sync_directory(parent(self.path))
            newest = records[-1]
        self._sequence = newest.sequence
        self._file = self._filesystem.open(self.path)
        try:
            for _ in range(2):  # Neither says `closed` any more when the first change is made.
                self.write(revision)
            self._file.sync()
        except OSError:
            self.close()
            raise

    def write(self, revision: int, closed: FileDigest | None = None) -> None:
        """Record a committed revision. Not durable by itself, and need not be."""
        assert self._file is not None, "the checkpoint is open"
        self._sequence += 1
        record = encode_record(RevisionRecord(self._sequence, revision, closed))
        write_all(self._file, self._sequence % 2 * RECORD_SIZE, [record])

    def finish(self, revision: int, closed: FileDigest) -> None:
        """Record that the database was closed cleanly; durable when this returns."""
        self.write(revision, closed)
        assert self._file is not None, "the checkpoint is open"
        self._file.sync()

    def sync(self) -> None:
        """Make the last record durable."""
        assert self._file is not None, "the checkpoint is open"
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

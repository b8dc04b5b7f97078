r"""Format of the `.keys` file of a sealed segment: maps a key to the batches that may have it.

     0      4         6   8             16         24       40         44       48
    +------+---------+---+-------------+----------+--------+----------+--------+-- - -
    | MSKY | version | 0 | base offset | log size | digest | sections | crc32c | sections
    +------+---------+---+-------------+----------+--------+----------+--------+-- - -

A section covers one range of the `.log`, and sections are in the order of these ranges. So building
the file takes memory for the keys of one range, however large the segment is. A section begins with
its number of entries and batches, and the size of all entries in bytes:

     0         4         8            12
    +---------+---------+------------+------- - -+-------- - -+------- - -
    | entries | batches | size       | batches   | restarts   | entries
    +---------+---------+------------+------- - -+-------- - -+------- - -

    batch:    | position in the .log | base offset |     8 bytes each; only those with keys
    restart:  | start of every sixteenth entry     |     4 bytes, counted from the first entry
    entry:    | shared | size and cut | the rest of the key | which batches
                 1 byte     1 byte       size bytes           varints

Entries are sorted by key, each key once. An entry has only what its key does not share with the
entry before it; entries at a restart share nothing, so that a binary search over the restarts leads
to a run of sixteen. Of `size and cut`, the lowest bit says whether the key is longer than what is
stored.

It mostly is. An entry stores as much of its key as distinguishes it from both neighbours, and two
bytes more, which keep nearly all absent keys from being mistaken for one that is present; and never
more than 127 bytes, so keys with the same first 127 bytes share an entry. **The file is a filter**:
it may name a batch without such a key, but never leaves out one that has it. The caller looks into
the batch.

Which batches: a varint, seven bits at a time, lowest first. Without its lowest bit it is the number
of the one batch; with it, the size in bytes of varints that follow, one per batch: the number of
the first, then the distance from each to the next.

Numbers are little-endian. The checksum covers the whole file, with itself as zero. `digest` is that
of the segment's seal, so a file that describes other bytes than the `.log` has is recognized. The
file can be rebuilt from the `.log`. Records without a key, control batches and batches whose
records cannot be decoded have no entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import Bytes
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.files.seal import Seal

_HEADER = struct.Struct("<4sHHqq16sII")
_SECTION = struct.Struct("<III")
_BATCH = struct.Struct("<qq")
_RESTART = struct.Struct("<I")
_MAGIC = b"MSKY"
_VERSION = 1
_CRC_START = 44
KEYS_HEADER_SIZE = _HEADER.size

KEY_SIZE_MAX = 127
"""Bytes of a key that count: together with the "cut" bit, a size fits one byte."""
KEY_SPARE = 2
"""Bytes of a key that are stored beyond those that distinguish it from its neighbours."""
BLOCK_ENTRIES = 16
"""Entries from one restart to the next: few enough to step through, many enough to save space."""


class KeyedBatchPosition(NamedTuple):
    """A batch that has keys: its position in the `.log`, and its base offset."""

    position: int
    base_offset: int


class KeySection(NamedTuple):
    """The parts of a section."""

    spots: Sequence[KeyedBatchPosition]
    entry_count: int
    restarts: Bytes
    """As stored in the file."""
    entries: Bytes


def encode_key_index(
    sections: Sequence[KeySection], *, base_offset: int, log_size: int, digest: bytes
) -> bytes:
    """Encode the `.keys` file of a segment."""
    head = (_MAGIC, _VERSION, 0, base_offset, log_size, digest, len(sections))
    pieces: list[Bytes] = [_HEADER.pack(*head, 0)]
    for spots, entry_count, restarts, entries in sections:
        pieces.append(_SECTION.pack(entry_count, len(spots), len(entries)))
        pieces += (_BATCH.pack(*spot) for spot in spots)
        pieces += (restarts, entries)
    data = bytearray().join(pieces)
    _RESTART.pack_into(data, _CRC_START, crc32c(data))
    return bytes(data)


def check_key_index(data: Bytes) -> None:
    """Raise unless the file is complete, undamaged and of a known version."""
    if len(data) < KEYS_HEADER_SIZE:
        raise CorruptFile(f"keys header must have {KEYS_HEADER_SIZE} bytes, got {len(data)}")
    magic, version, pad, *fields, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or pad != 0:
        raise CorruptFile(f"keys start with {magic!r}, expected {_MAGIC!r}")
    blank = _HEADER.pack(magic, version, pad, *fields, 0)
    checksum = crc32c(memoryview(data)[KEYS_HEADER_SIZE:], crc32c(blank))
    if checksum != crc:
        raise CorruptFile(f"keys have checksum {checksum:08x}, their header says {crc:08x}")
    if version != _VERSION:
        raise UnknownFormat(f"keys have version {version}, expected {_VERSION}")


class KeyIndex:
    """The keys of a segment, looked up directly in the bytes of the file. Threads may share it."""

    def __init__(self, data: Bytes, seal: Seal) -> None:
        """Use a file that passed `check_key_index`, if it belongs to this state of its `.log`."""
        _, _, _, base_offset, log_size, digest, count, _ = _HEADER.unpack_from(data)
        if (base_offset, log_size, digest) != (seal.base_offset, seal.size, seal.digest):
            raise CorruptFile(
                f"keys have base offset {base_offset}, log size {log_size} and digest"
                f" {digest.hex()}, expected {seal.base_offset}, {seal.size} and {seal.digest.hex()}"
            )
        self._sections: list[_Section] = []
        position = KEYS_HEADER_SIZE
        for _ in range(count):
            section = _Section(memoryview(data)[position:])
            self._sections.append(section)
            position += section.size
        if position != len(data):
            raise CorruptFile(f"keys end at byte {position}, but the file has {len(data)} bytes")

    def find(self, match: KeyMatch) -> list[KeyedBatchPosition]:
        """Return the batches that may have a key that matches, in the order of the log."""
        return [spot for section in self._sections for spot in section.find(match)]


class _Entry(NamedTuple):
    key: bytes
    is_cut: bool
    batches: int
    """Position of its list of batches."""

    def may_be(self, pattern: bytes) -> bool:
        """Return whether it may stand for `pattern`, or for a key that begins with it."""
        return self.key == pattern or (self.is_cut and pattern.startswith(self.key))


class _Section:
    """One section, as stored in the file."""

    def __init__(self, data: memoryview) -> None:
        if len(data) < _SECTION.size:
            raise CorruptFile(
                f"section of keys must have at least {_SECTION.size} bytes, got {len(data)}"
            )
        entry_count, self._batch_count, entry_size = _SECTION.unpack_from(data)
        self._restart_count = -(-entry_count // BLOCK_ENTRIES)
        self._restarts_start = _SECTION.size + self._batch_count * _BATCH.size
        entries_start = self._restarts_start + self._restart_count * _RESTART.size
        self.size: int = entries_start + entry_size
        if self.size > len(data):
            raise CorruptFile(f"section of keys must have {self.size} bytes, got {len(data)}")
        self._data = data
        self._entries = data[entries_start : self.size]

    def find(self, match: KeyMatch) -> list[KeyedBatchPosition]:
        """Return the batches that may have a key that matches, in the order of the log."""
        numbers: set[int] = set()
        for entry in self._matching(match):
            numbers.update(_batches(self._entries, entry.batches))
            if len(numbers) == self._batch_count:
                break
        starts = (_SECTION.size + number * _BATCH.size for number in sorted(numbers))
        return [KeyedBatchPosition(*_BATCH.unpack_from(self._data, start)) for start in starts]

    def _matching(self, match: KeyMatch) -> Iterator[_Entry]:
        """Iterate over the entries that may stand for a key that matches.

        A cut key is never the start of another entry, so among those up to the pattern only the
        last can stand for it. Keys that begin with the pattern follow right after.
        """
        pattern = match.pattern
        block = bisect_right(range(self._restart_count), pattern, key=self._restart_key) - 1
        entries = self._entries_from(max(block, 0))
        floor, entry = None, next(entries, None)
        while entry is not None and entry.key <= pattern:
            floor, entry = entry, next(entries, None)
        if floor is not None and floor.may_be(pattern):
            yield floor
        while match.is_prefix and entry is not None and entry.key.startswith(pattern):
            yield entry
            entry = next(entries, None)

    def _restart(self, number: int) -> int:
        (start,) = _RESTART.unpack_from(self._data, self._restarts_start + number * _RESTART.size)
        return int(start)

    def _restart_key(self, number: int) -> bytes:
        start = self._restart(number)
        return bytes(self._entries[start + 2 : start + 2 + (self._entries[start + 1] >> 1)])

    def _entries_from(self, block: int) -> Iterator[_Entry]:
        """Iterate over all entries from a restart on."""
        data, key = self._entries, b""
        position = self._restart(block) if block < self._restart_count else len(data)
        while position < len(data):
            sized = data[position + 1]
            end = position + 2 + (sized >> 1)
            key = key[: data[position]] + bytes(data[position + 2 : end])
            yield _Entry(key, bool(sized & 1), end)
            number, position = _read_number(data, end)
            if number & 1:
                position += number >> 1


def _batches(data: memoryview, position: int) -> Iterator[int]:
    """Iterate over the batch numbers of an entry."""
    number, position = _read_number(data, position)
    if not number & 1:
        yield number >> 1
        return
    batch, end = 0, position + (number >> 1)
    while position < end:
        distance, position = _read_number(data, position)
        batch += distance
        yield batch


def _read_number(data: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint; return it and the position after it."""
    number = shift = 0
    while (byte := data[position]) >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        position += 1
    return number | byte << shift, position + 1

r"""Index of a segment: maps an offset or a timestamp to a position in its `.log`.

One file serves both lookups, because one entry holds both answers:

     0      4         6            8             16         24      32       36    40
    +------+---------+------------+-------------+----------+-------+--------+-----+-- - -
    | MSIX | version | entry size | base offset | log size | count | crc32c |  0  | entries
    +------+---------+------------+-------------+----------+-------+--------+-----+-- - -

    entry:  | offset of a batch | its position | greatest timestamp before it |   8 bytes each

All numbers are little-endian and signed. The checksum covers header and entries, with itself as
zero. Entries are `index_interval_bytes` or more apart, and the first batch always has one. The
third column never decreases, whatever the timestamps in the log do, so a binary search for a
timestamp finds a position with no matching record before it.

The file is written once, when its segment is sealed, and can be rebuilt from the `.log`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptFile, UnknownFormat

_HEADER = struct.Struct("<4sHHqqqII")
_MAGIC = b"MSIX"
_VERSION = 1
_COLUMNS = 3
ENTRY_SIZE = 8 * _COLUMNS
INDEX_HEADER_SIZE = _HEADER.size

NO_TIME = -(2**63)
"""Before every timestamp: the value in the first entry, which has no batch before it."""


class IndexEntry(NamedTuple):
    offset: int
    position: int
    timestamp_before: int


class SegmentIndex:
    """Entries in the order of the log, growing or read from a file.

    One writer may add entries while any number of threads look up: a lookup that misses the newest
    entry starts a little earlier in the log and finds the same batch.
    """

    def __init__(self, numbers: array[int] | memoryview[int] | None = None) -> None:
        self._numbers = array("q") if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers) // _COLUMNS

    def __getitem__(self, number: int) -> IndexEntry:
        first = number * _COLUMNS
        return IndexEntry(*self._numbers[first : first + _COLUMNS])

    def add(self, offset: int, position: int, timestamp_before: int) -> None:
        assert isinstance(self._numbers, array), "an index read from a file does not grow"
        self._numbers.extend((offset, position, timestamp_before))

    def for_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before `offset`, or else the first."""
        numbers = self._numbers
        number = bisect_right(range(len(self)), offset, key=lambda n: numbers[n * _COLUMNS])
        return self[max(number - 1, 0)]

    def for_timestamp(self, timestamp_ms: int) -> IndexEntry:
        """Return an entry with no record of `timestamp_ms` or later before it."""
        numbers = self._numbers
        number = bisect_left(
            range(len(self)), timestamp_ms, key=lambda n: numbers[n * _COLUMNS + 2]
        )
        return self[max(number - 1, 0)]

    def for_position(self, position: int) -> IndexEntry:
        """Return the last entry at or before a position in the log, or else the first."""
        numbers = self._numbers
        number = bisect_right(range(len(self)), position, key=lambda n: numbers[n * _COLUMNS + 1])
        return self[max(number - 1, 0)]

    def after_position(self, position: int) -> IndexEntry | None:
        """Return the first entry after a position in the log, if there is one."""
        numbers = self._numbers
        number = bisect_right(range(len(self)), position, key=lambda n: numbers[n * _COLUMNS + 1])
        return self[number] if number < len(self) else None

    def growing(self) -> SegmentIndex:
        """Return a copy to which entries can be added."""
        return SegmentIndex(array("q", self._numbers))

    def to_bytes(self) -> bytes:
        """Return the entries as stored in the file."""
        if sys.byteorder == "little":
            return bytes(self._numbers)
        swapped = array("q", self._numbers)
        swapped.byteswap()
        return swapped.tobytes()


def encode_index(index: SegmentIndex, *, base_offset: int, log_size: int) -> bytes:
    """Encode the index file of a segment whose `.log` has `log_size` bytes."""
    entries = index.to_bytes()
    crc = crc32c(entries, crc32c(_header(base_offset, log_size, len(index), 0)))
    return _header(base_offset, log_size, len(index), crc) + entries


def decode_index(data: memoryview, *, base_offset: int, log_size: int) -> SegmentIndex:
    """Decode an index file, and check that it belongs to this state of its `.log`."""
    if len(data) < INDEX_HEADER_SIZE:
        raise CorruptFile(f"index header must have {INDEX_HEADER_SIZE} bytes, got {len(data)}")
    magic, version, entry_size, base, size, count, crc, pad = _HEADER.unpack_from(data)
    if magic != _MAGIC or pad != 0:
        raise CorruptFile(f"index starts with {magic!r}, expected {_MAGIC!r}")
    blank = _HEADER.pack(magic, version, entry_size, base, size, count, 0, 0)
    if (number := crc32c(data[INDEX_HEADER_SIZE:], crc32c(blank))) != crc:
        raise CorruptFile(f"index has checksum {number:08x}, its header says {crc:08x}")
    if (version, entry_size) != (_VERSION, ENTRY_SIZE):
        raise UnknownFormat(f"index has version {version}, expected {_VERSION}")
    if (base, size) != (base_offset, log_size):
        raise CorruptFile(
            f"index has base offset {base} and log size {size},"
            f" expected {base_offset} and {log_size}"
        )
    if len(data) != INDEX_HEADER_SIZE + count * ENTRY_SIZE or (count == 0 and log_size > 0):
        raise CorruptFile(f"index header says {count} entries, but the file has {len(data)} bytes")
    return SegmentIndex(_numbers(data[INDEX_HEADER_SIZE:]))


def _header(base_offset: int, log_size: int, count: int, crc: int) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, ENTRY_SIZE, base_offset, log_size, count, crc, 0)


def _numbers(entries: memoryview) -> array[int] | memoryview[int]:
    if sys.byteorder == "little":
        return entries.cast("B").cast("q")
    numbers = array("q", entries.tobytes())
    numbers.byteswap()
    return numbers

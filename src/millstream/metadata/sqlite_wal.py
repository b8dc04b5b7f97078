"""Check of a write-ahead log, which releases before version 2 of `meta.db` left after a crash.

SQLite ignores such a log from the first bad frame on, and all changes from there on are undone
without an error. Each transaction was synced before the next one was written. So a bad frame is an
unfinished write only if it belongs to the last transaction; before a later one it is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from millstream.errors import CorruptFile
from millstream.storage.disk.filesystem import Filesystem

WAL_SUFFIX = "-wal"

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
"""The lowest bit says whether checksums are over big-endian numbers."""
_MASK = 0xFFFFFFFF

_Sums = tuple[int, int]


def check_wal_of(filesystem: Filesystem, path: str) -> None:
    """Check the write-ahead log of the database at `path`, if it has one."""
    wal = path + WAL_SUFFIX
    try:
        file = filesystem.open_readonly(wal)
    except FileNotFoundError:
        return
    try:
        check_wal(file.read_at(0, file.size()), wal)
    finally:
        file.close()


def check_wal(data: bytes, path: str) -> None:
    """Raise `CorruptFile` if committed transactions cannot be read any more."""
    if len(data) <= _HEADER.size:
        return  # No frame was written.
    fields = _HEADER.unpack_from(data)
    magic, _, page_size, _, *salts = fields[:6]
    order = ">" if magic & 1 else "<"
    if magic & ~1 != _MAGIC or _checksum(data[:24], (0, 0), order) != fields[6:]:
        # The header was synced before the first frame was written.
        raise CorruptFile(f"{path}: the header is damaged, and with it all changes in the file")
    sums: _Sums = (fields[6], fields[7])
    bad: int | None = None
    is_later = False
    for position, frame, page in _frames(data, page_size):
        number, commit_size, *frame_salts, first, second = frame
        if frame_salts != salts:
            # Left by an earlier generation of the file, or damaged: what follows decides.
            bad = position if bad is None else bad
            sums = (first, second)
            continue
        head = struct.pack(">2I", number, commit_size)
        is_sound = _checksum(page, _checksum(head, sums, order), order) == (first, second)
        if bad is not None and is_sound and is_later:
            raise CorruptFile(
                f"{path}: the frame at byte {bad} is damaged, and changes after it were committed"
            )
        if not is_sound and bad is None:
            bad = position
        if bad is not None and commit_size:
            is_later = True
        sums = (first, second)


def _frames(data: bytes, page_size: int) -> Iterator[tuple[int, tuple[int, ...], bytes]]:
    """Yield the position, the header and the page of each complete frame."""
    size = _FRAME.size + page_size
    for position in range(_HEADER.size, len(data) - size + 1, size):
        start = position + _FRAME.size
        yield position, _FRAME.unpack_from(data, position), data[start : position + size]


def _checksum(data: bytes, sums: _Sums, order: str) -> _Sums:
    """Continue SQLite's checksum of a write-ahead log over `data`."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & _MASK
        second = (second + words[index + 1] + first) & _MASK
    return first, second

r"""Checkpoint of a partition: how far its log is known to be durable.

     0      4         6      8             16       24        28       32
    +------+---------+------+-------------+--------+---------+--------+
    | MSCP | version | turn | base offset | synced | offsets | crc32c |   twice, one after the other
    +------+---------+------+-------------+--------+---------+--------+

Little-endian; the checksum covers the 28 bytes before it. A slot says: all segments before `base
offset`, and the first `synced` bytes of that one, were synced; these bytes hold `offsets` offsets.
It is written after the sync returned, so it is true whenever it reaches the disk, and it may be
late. The two slots are written in turn, so that an interrupted write leaves the other one.

Version 1 has no `offsets`: the checksum is in its place, and covers the 24 bytes before it. It is
still read, and written if there are more offsets than the field can hold.

After a crash it distinguishes an unfinished write, which may be cut off, from a lost one, which
must be reported; and it tells where the log ended if its last batches are lost. The file exists
only while a segment has no seal, and losing it costs no data.

A damaged slot is not reported as damage: it cannot be told from one that a power cut has torn. The
other slot, or none, is used instead, so less of the log is attested, as if the slot had been late.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import UnknownFormat
from millstream.storage.disk.filesystem import File, write_all

_SLOT = struct.Struct("<4sHHqqI")
_CRC = struct.Struct("<I")
_SLOT_1 = struct.Struct("<4sHHqq")
_CRC_1 = struct.Struct("<II")
_MAGIC = b"MSCP"
_VERSION = 2
_VERSION_WITHOUT_END = 1
_OFFSETS_MAX = 2**32 - 1
SLOT_SIZE = _SLOT.size + _CRC.size
CHECKPOINT_SIZE = 2 * SLOT_SIZE


UNKNOWN_END = -1


class SyncPoint(NamedTuple):
    """How far a log is known to be durable. Later points compare greater."""

    base_offset: int
    size: int
    end_offset: int = UNKNOWN_END
    """The offset after the last batch in the synced bytes."""


NOTHING_SYNCED = SyncPoint(-1, 0)


class Checkpoint:
    """The open checkpoint file of one partition."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._turn = 0

    def write(self, synced: SyncPoint) -> None:
        """Record how far the log is synced. Not durable by itself, and need not be."""
        self._turn ^= 1
        write_all(self._file, self._turn * SLOT_SIZE, [encode_slot(synced, self._turn)])

    def sync(self) -> None:
        """Make the newest record durable."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def encode_slot(synced: SyncPoint, turn: int) -> bytes:
    base_offset, size, end_offset = synced
    offsets = end_offset - base_offset
    if end_offset == UNKNOWN_END or offsets > _OFFSETS_MAX:
        body = _SLOT_1.pack(_MAGIC, _VERSION_WITHOUT_END, turn, base_offset, size)
        return body + _CRC_1.pack(crc32c(body), 0)
    body = _SLOT.pack(_MAGIC, _VERSION, turn, base_offset, size, offsets)
    return body + _CRC.pack(crc32c(body))


def decode_checkpoint(data: bytes) -> SyncPoint:
    """Return the furthest point of the valid slots; `NOTHING_SYNCED` if none is valid."""
    slots = (data[start : start + SLOT_SIZE] for start in range(0, CHECKPOINT_SIZE, SLOT_SIZE))
    return max((_decode_slot(slot) for slot in slots), default=NOTHING_SYNCED)


def _decode_slot(slot: bytes) -> SyncPoint:
    if len(slot) != SLOT_SIZE:
        return NOTHING_SYNCED
    magic, version, _, base_offset, size, offsets = _SLOT.unpack_from(slot)
    if _CRC.unpack_from(slot, _SLOT.size)[0] == crc32c(slot[: _SLOT.size]):
        _check_version(magic, version, _VERSION)
        return SyncPoint(base_offset, size, base_offset + offsets)
    if _CRC_1.unpack_from(slot, _SLOT_1.size) == (crc32c(slot[: _SLOT_1.size]), 0):
        _check_version(magic, version, _VERSION_WITHOUT_END)
        return SyncPoint(base_offset, size)
    return NOTHING_SYNCED


def _check_version(magic: bytes, version: int, expected: int) -> None:
    if (magic, version) != (_MAGIC, expected):
        raise UnknownFormat(f"checkpoint has version {version}, expected {expected}")

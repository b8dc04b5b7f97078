r"""Checkpoint of a partition: how far its log is known to be durable.

     0      4         6      8             16       24       28  32
    +------+---------+------+-------------+--------+--------+---+
    | MSCP | version | turn | base offset | synced | crc32c | 0 |   twice, one after the other
    +------+---------+------+-------------+--------+--------+---+

Little-endian; the checksum covers the 24 bytes before it. A slot says: all segments before `base
offset`, and the first `synced` bytes of that one, were synced. It is written after the sync
returned, so it is true whenever it reaches the disk, and it may be late. The two slots are written
in turn, so that an interrupted write leaves the other one.

After a crash it distinguishes an unfinished write, which may be cut off, from a lost one, which
must be reported. The file exists only while a segment has no seal, and losing it costs no data.

A damaged slot is not reported as damage: it cannot be told from one that a power cut has torn. The
other slot, or none, is used instead, so less of the log is attested, as if the slot had been late.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import UnknownFormat
from millstream.storage.disk.filesystem import File, write_all

_SLOT = struct.Struct("<4sHHqq")
_CRC = struct.Struct("<II")
_MAGIC = b"MSCP"
_VERSION = 1
SLOT_SIZE = _SLOT.size + _CRC.size
CHECKPOINT_SIZE = 2 * SLOT_SIZE


class SyncPoint(NamedTuple):
    """How far a log is known to be durable. Later points compare greater."""

    base_offset: int
    size: int


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
    body = _SLOT.pack(_MAGIC, _VERSION, turn, synced.base_offset, synced.size)
    return body + _CRC.pack(crc32c(body), 0)


def decode_checkpoint(data: bytes) -> SyncPoint:
    """Return the furthest point of the valid slots; `NOTHING_SYNCED` if none is valid."""
    slots = (data[start : start + SLOT_SIZE] for start in range(0, CHECKPOINT_SIZE, SLOT_SIZE))
    return max((_decode_slot(slot) for slot in slots), default=NOTHING_SYNCED)


def _decode_slot(slot: bytes) -> SyncPoint:
    if len(slot) != SLOT_SIZE or _CRC.unpack_from(slot, _SLOT.size) != (crc32c(slot[:24]), 0):
        return NOTHING_SYNCED
    magic, version, _, base_offset, size = _SLOT.unpack_from(slot)
    if (magic, version) != (_MAGIC, _VERSION):
        raise UnknownFormat(f"checkpoint has version {version}, expected {_VERSION}")
    return SyncPoint(base_offset, size)

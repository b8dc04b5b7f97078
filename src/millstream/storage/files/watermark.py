r"""Watermark of a replica: an offset up to which its log is known to be on enough replicas.

     0      4         6      8                16       20
    +------+---------+------+----------------+--------+
    | MSHW | version | turn | high watermark | crc32c |   twice, one after the other
    +------+---------+------+----------------+--------+

Little-endian; the checksum covers the 16 bytes before it. The two slots are written in turn, now
and then and without a sync. So the stored number is a lower bound: the true one was at least that
high. It protects what was acknowledged by several replicas from being truncated after a restart.

A damaged slot cannot be told from a torn one, so it counts as if it had never been written.
"""

from __future__ import annotations

import contextlib
import struct

from crc32c import crc32c

from millstream.errors import UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join, write_all
from millstream.storage.files.names import WATERMARK_FILE

_SLOT = struct.Struct("<4sHHq")
_CRC = struct.Struct("<I")
_MAGIC = b"MSHW"
_VERSION = 1
_SLOT_SIZE = _SLOT.size + _CRC.size
_FILE_SIZE = 2 * _SLOT_SIZE


class WatermarkFile:
    """The watermark file of one log."""

    def __init__(self, filesystem: Filesystem, directory: str) -> None:
        self._filesystem = filesystem
        self._path = join(directory, WATERMARK_FILE)
        self._turn = 0

    def read(self) -> int:
        """Return the stored high watermark; 0 if there is none."""
        try:
            file = self._filesystem.open_readonly(self._path)
        except FileNotFoundError:
            return 0
        try:
            data = file.read_at(0, _FILE_SIZE)
        finally:
            file.close()
        try:
            return max(_decode(data[:_SLOT_SIZE]), _decode(data[_SLOT_SIZE:]))
        except UnknownFormat as error:
            raise UnknownFormat(f"{self._path}: {error}") from error

    def write(self, offset: int) -> None:
        """Store a high watermark. Not durable by itself, and need not be."""
        self._turn ^= 1
        body = _SLOT.pack(_MAGIC, _VERSION, self._turn, offset)
        try:
            file = self._filesystem.open(self._path)
        except FileNotFoundError:
            file = self._filesystem.create(self._path)
        try:
            write_all(file, self._turn * _SLOT_SIZE, [body + _CRC.pack(crc32c(body))])
        finally:
            file.close()

    def remove(self) -> None:
        """Remove the file; durable once the directory is synced."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.remove(self._path)


def _decode(slot: bytes) -> int:
    if len(slot) != _SLOT_SIZE or _CRC.unpack_from(slot, _SLOT.size)[0] != crc32c(
        slot[: _SLOT.size]
    ):
        return 0
    magic, version, _, offset = _SLOT.unpack_from(slot)
    if (magic, version) != (_MAGIC, _VERSION):
        raise UnknownFormat(f"watermark has version {version}, expected {_VERSION}")
    return int(offset)

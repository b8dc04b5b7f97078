"""Logs of a hundred gigabytes, made in half a minute on a disk that has not so much room.

A batch holds one record whose value is a megabyte of zeros. The engine itself appends it, rolls and
seals segments, and writes indexes, seals and `partition.json`; only the file system below it leaves
out what is zero, and never waits for the disk. So the kernel keeps one block of each batch and
holes for the rest:

    +--------+----------- hole -----------+--------+----------- hole -----------+---
    | header |  zeros that take no space  | header |  zeros that take no space  |
    +--------+----------------------------+--------+----------------------------+---

Names, sizes, offsets, indexes, timestamps and checksums are those of a log that was written in
full, and a reader reads the same bytes. What differs is that a hole is never read from the
disk, and that a megabyte takes less of the page cache: neither counts here, where everything that
is measured is in the page cache.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from millstream import Durability, Log, LogConfig, Record
from millstream.records.batch import Bytes
from millstream.records.build import build_batch
from millstream.storage.disk.filesystem import File, OsFile
from subjects.log.common import MIB, NOW_MS, UnsyncedFilesystem, opened

BLOCK = 4096
STEP_MS = 1_000
"""Each batch is a second later than the one before."""

FILLING = LogConfig(durability=Durability.DISK)
_CHECKSUM, _SUMMED, _TIMESTAMPS = 17, 21, 27


class SparseFilesystem(UnsyncedFilesystem):
    """A file system for preparing, where blocks of zeros become holes."""

    def open(self, path: str) -> File:
        """Open a file; of a log, only the first block of each piece is written."""
        if not path.endswith(".log"):
            return super().open(path)
        return _SparseFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))


class _SparseFile(OsFile):
    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write the beginning of each piece. The rest is zero, as readers verify."""
        for piece in pieces:
            os.pwrite(self.descriptor, memoryview(piece)[:BLOCK], position)
            position += len(piece)
        if position > self.size():
            self.truncate(position)
        return sum(map(len, pieces))

    def reserve(self, size: int) -> None:
        """Do nothing: holes are wanted."""

    def sync(self) -> None:
        """Do nothing."""


def make_long_log(data: Path, batches: int) -> None:
    """Fill partition 0 of the topic that all benchmarks use with batches of 1 MiB."""
    with opened(data, FILLING, filesystem=SparseFilesystem()) as store:
        store.run(_fill(store.log(), batches))


async def _fill(log: Log, batches: int) -> None:
    batch = bytearray(_zeros())
    view = memoryview(batch)
    for number in range(batches):
        at = timestamp_of(number)
        struct.pack_into(">qq", batch, _TIMESTAMPS, at, at)
        struct.pack_into(">I", batch, _CHECKSUM, crc32c(view[_SUMMED:]))
        await log.append(batch, is_checked=True)  # Class `disk`: written when this returns.


def timestamp_of(batch: int) -> int:
    """Return the timestamp of the record in a batch; each has one, at the offset `batch`."""
    return NOW_MS + batch * STEP_MS


def _zeros() -> bytes:
    """Return a batch of exactly 1 MiB, zero behind its first block."""
    overhead = len(build_batch([Record(bytes(MIB - BLOCK))], now_ms=NOW_MS)) - (MIB - BLOCK)
    batch = build_batch([Record(bytes(MIB - overhead))], now_ms=NOW_MS)
    assert len(batch) == MIB
    assert not any(batch[BLOCK:])
    return batch

"""Builder of the `.keys` file of a segment; `key_file.py` describes the format.

With Numba the keys are gathered, sorted and written by compiled kernels, otherwise in Python; the
file is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, Bytes
from millstream.records.iterate import records_of
from millstream.records.opened_batch import LocatedBatch, OpenedBatch, open_groups
from millstream.storage.files.seal import SegmentStats
from millstream.storage.segment.keys.key_file import (
    BLOCK_ENTRIES,
    KEY_SIZE_MAX,
    KEY_SPARE,
    KeyedBatchPosition,
    KeySection,
    encode_key_index,
)
from millstream.storage.segment.scan import check_batch_at

SECTION_KEYS = 512 * 1024
"""A section ends with the group of batches that brings it to this many keyed records.

Sorting them takes about fifty bytes each; twice as many would at best halve the cost of a
lookup.
"""

KERNEL_BYTES_MIN = 4 * 1024 * 1024
"""A shorter log is done in Python before the compiler would be loaded."""


class KeyGatherer(Protocol):
    """Gathers the keys of batches, in the order of the log, into a section."""

    count: int
    """Records with a key so far."""

    def add(self, data: Bytes, group: Sequence[OpenedBatch]) -> None:
        """Add the keys of these batches of `data`; none of a batch whose records are malformed."""
        ...

    def section(self) -> KeySection:
        """Return the section. Nothing may be added afterwards."""
        ...


def build_key_index(view: memoryview, *, base_offset: int) -> bytes:
    """Return the `.keys` file of the segment whose `.log` is `view`.

    Every batch is checked, and `CorruptBatch` is raised if one is damaged: an index without that
    batch would keep its records from being deleted.
    """
    gatherer = _compiled() if len(view) >= KERNEL_BYTES_MIN else PythonKeyGatherer
    return build_key_index_with(gatherer, view, base_offset=base_offset)


def build_key_index_with(
    gatherer: Callable[[], KeyGatherer],
    view: memoryview,
    *,
    base_offset: int,
    section_keys: int = SECTION_KEYS,
) -> bytes:
    """Build the file with one of the gatherers."""
    stats = SegmentStats(base_offset, leader_epoch=0, created_ms=0)
    sections: list[KeySection] = []
    keys = gatherer()
    for group in open_groups(view, _keyed(view, stats)):
        keys.add(view, group)
        if keys.count >= section_keys:
            sections.append(keys.section())
            keys = gatherer()
    if keys.count:
        sections.append(keys.section())
    return encode_key_index(
        sections, base_offset=base_offset, log_size=len(view), digest=stats.digest
    )


def _keyed(view: memoryview, stats: SegmentStats) -> Iterator[LocatedBatch]:
    """Iterate over the checked batches that may have keys, and count all batches."""
    leader_epoch: int | None = None
    while (position := stats.size) < len(view):
        try:
            header = check_batch_at(view, position, stats.next_offset, leader_epoch)
        except CorruptBatch as error:
            raise CorruptBatch(f"byte {position}: {error}") from error
        leader_epoch = header.leader_epoch
        stats.add(header, header.size, view[position : position + HEADER_SIZE])
        if not header.is_control:
            yield LocatedBatch(position, header)


class PythonKeyGatherer:
    """Gathers keys in plain Python."""

    def __init__(self) -> None:
        self.count = 0
        self._spots: list[KeyedBatchPosition] = []
        self._batches: dict[bytes, list[int]] = {}
        self._long: set[bytes] = set()

    def add(self, _: Bytes, group: Sequence[OpenedBatch]) -> None:
        for start, header, records in group:
            try:
                keys = [record.key for record in records_of(header, records)]
            except CorruptBatch:
                continue
            kept = [key for key in keys if key is not None]
            if kept:
                self._take(kept, len(self._spots))
                self._spots.append(KeyedBatchPosition(start, header.base_offset))
                self.count += len(kept)

    def section(self) -> KeySection:
        keys = sorted(self._batches)
        shared = [0, *(_shared_size(*pair) for pair in pairwise(keys)), 0]
        entries = bytearray()
        restarts = bytearray()
        for number, key in enumerate(keys):
            before, after = shared[number : number + 2]
            kept = key[: max(before, after) + 1 + KEY_SPARE]
            if number % BLOCK_ENTRIES == 0:
                restarts += struct.pack("<I", len(entries))
                before = 0
            is_cut = len(kept) < len(key) or key in self._long
            entries += bytes((before, (len(kept) - before) << 1 | is_cut)) + kept[before:]
            entries += _encode_batches(self._batches[key])
        return KeySection(self._spots, len(keys), restarts, entries)

    def _take(self, keys: Sequence[bytes], number: int) -> None:
        for key in keys:
            start = key[:KEY_SIZE_MAX]
            batches = self._batches.setdefault(start, [])
            if not batches or batches[-1] != number:
                batches.append(number)
            if len(key) > KEY_SIZE_MAX:
                self._long.add(start)


def _shared_size(left: bytes, right: bytes) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(left), len(right)))


def _encode_batches(numbers: Sequence[int]) -> bytes:
    if len(numbers) == 1:
        return _encode_number(numbers[0] << 1)
    distances = b"".join(_encode_number(b - a) for a, b in pairwise((0, *numbers)))
    return _encode_number(len(distances) << 1 | 1) + distances


def _encode_number(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compiled() -> Callable[[], KeyGatherer]:
    """Return the compiled gatherer, or the Python one if Numba is missing."""
    try:
        from millstream.storage.segment.keys.kernels import CompiledKeyGatherer  # noqa: PLC0415 - an extra, slow to load.
    except ImportError:
        return PythonKeyGatherer
    return CompiledKeyGatherer

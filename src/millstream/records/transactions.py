"""Transactions, as seen in batch headers and markers.

A transactional batch begins a transaction of its producer, or belongs to the one that is open; the
next marker of that producer ends it, for all its batches. So the position of a batch between two
markers of its producer decides its outcome, and no other state is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from millstream.records.batch import (
    CONTROL_BIT,
    LENGTH_END,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    decode_header,
)
from millstream.records.control import Marker, read_marker

_LENGTH_AND_ATTRIBUTES = struct.Struct(">8xi9xh")
_OF_TRANSACTIONS = TRANSACTIONAL_BIT | CONTROL_BIT


class OpenTransactions:
    """The transactions that are open at one offset of a log, updated batch by batch."""

    def __init__(self) -> None:
        self._firsts: dict[int, int] = {}

    def add(self, header: BatchHeader) -> int | None:
        """Process the next batch; return the first offset of the transaction that it ends."""
        if header.is_control and header.is_transactional:  # Others end nothing.
            return self._firsts.pop(header.producer_id, None)
        if header.is_transactional:
            self._firsts.setdefault(header.producer_id, header.base_offset)
        return None

    @property
    def first_offset(self) -> int | None:
        """First offset of the oldest open transaction; all batches before it are decided."""
        return min(self._firsts.values(), default=None)

    def firsts(self) -> dict[int, int]:
        """Return the first offset of each open transaction, by producer id."""
        return dict(self._firsts)


def transactional_batches(data: Bytes) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """Yield the transactional batches and the markers in `data`, which must be complete batches.

    Control batches of other types are left out.
    """
    view, position = memoryview(data), 0
    while position < len(view):
        length, attributes = _LENGTH_AND_ATTRIBUTES.unpack_from(view, position)
        end = position + length + LENGTH_END
        if attributes & _OF_TRANSACTIONS:
            header = decode_header(view, position)
            marker = read_marker(view[position:end]) if header.is_control else None
            if marker is not None or not header.is_control:
                yield header, marker
        position = end

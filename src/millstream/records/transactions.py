"""Transactions, as batch headers and markers tell them.

A transactional batch opens a transaction of its producer, or is part of the one that is open; the
next marker of that producer ends it, for all of them. So where a batch lies between two markers of
its producer decides what it is, and nothing else has to be known.
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
    """Which transactions are open at one place of a log, told batch by batch."""

    def __init__(self) -> None:
        self._firsts: dict[int, int] = {}

    def add(self, header: BatchHeader) -> int | None:
        """Take the next batch; returns where the transaction began that it ends, if it ends one."""
        if header.is_control:
            return self._firsts.pop(header.producer_id, None)
        if header.is_transactional:
            self._firsts.setdefault(header.producer_id, header.base_offset)
        return None

    @property
    def first_offset(self) -> int | None:
        """Where the first of them began; all batches before it are decided."""
        return min(self._firsts.values(), default=None)

    def firsts(self) -> dict[int, int]:
        """Return where they began, by producer id."""
        return dict(self._firsts)


def transactional_batches(data: Bytes) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """Go over those of some whole, sound batches that are part of a transaction, or end one."""
    view, position = memoryview(data), 0
    while position < len(view):
        length, attributes = _LENGTH_AND_ATTRIBUTES.unpack_from(view, position)
        end = position + length + LENGTH_END
        if attributes & _OF_TRANSACTIONS:
            header = decode_header(view, position)
            yield header, read_marker(view[position:end]) if header.is_control else None
        position = end

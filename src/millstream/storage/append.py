"""One batch on its way into a log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from millstream.errors import BatchTooLarge, CorruptBatch, InvalidBatch, MillstreamError
from millstream.records.batch import BatchHeader, Bytes, check_batch, decode_header
from millstream.storage.reader import Address


class Appended(NamedTuple):
    """Where an acknowledged batch went."""

    offset: int
    last_offset: int
    address: Address | None
    """Unknown for the class `memory`, which acknowledges before the batch has a place."""


class Append:
    """A batch that someone waits for. Its future ends with its acknowledgement or its refusal."""

    __slots__ = ("address", "batch", "future", "header", "next_offset", "offset", "size")

    def __init__(self, header: BatchHeader, batch: Bytes, future: asyncio.Future[Appended]) -> None:
        self.header = header
        self.batch = batch
        self.size = len(batch)
        self.future = future
        self.offset = self.next_offset = -1
        self.address: Address | None = None

    def acknowledge(self) -> None:
        """Tell the appender, unless it stopped waiting."""
        if not self.future.done():
            self.future.set_result(Appended(self.offset, self.next_offset - 1, self.address))

    def refuse(self, error: MillstreamError) -> None:
        """Tell the appender why not, unless it stopped waiting."""
        if not self.future.done():
            self.future.set_exception(error)


def inspect(batch: Bytes, *, size_max: int, is_checked: bool) -> BatchHeader:
    """Return the header of a batch that a log may take; raises `RequestError` for all others."""
    if len(batch) > size_max:
        raise BatchTooLarge(f"batch has {len(batch)} bytes, limit is {size_max}")
    try:
        header = decode_header(batch)
        if not is_checked:
            check_batch(header, batch)
    except CorruptBatch as error:
        raise InvalidBatch(str(error)) from error
    if is_checked and len(batch) != header.size:
        raise InvalidBatch(f"batch claims {header.size} bytes, found {len(batch)}")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            f"batch holds {header.record_count} records"
            f" in {header.last_offset_delta + 1} offsets: it must leave none out"
        )
    return header


def total_size(appends: Iterable[Append]) -> int:
    """Return the bytes of all batches together."""
    return sum(append.size for append in appends)

"""One batch on its way into a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

from millstream.errors import BatchTooLarge, CorruptBatch, InvalidBatch
from millstream.records.batch import BatchHeader, Bytes, check_batch, decode_header
from millstream.storage.segment.reader import Address

OnAdmit: TypeAlias = Callable[[int], None]
"""Told the offset that a batch is about to get; refuses the batch by raising."""


class Appended(NamedTuple):
    """Where an acknowledged batch went."""

    offset: int
    last_offset: int
    address: Address | None
    """Unknown for the class `memory`, which acknowledges before the batch has a place."""


class AppendWaiter(Protocol):
    """Who waits for a batch: a future, or whoever wants to know without a turn of the loop.

    It is told in the middle of a write or a commit: it must only take note, and not append.
    """

    def done(self) -> bool:
        """Whether it was told already, or waits no more."""
        ...

    def set_result(self, result: Appended, /) -> None:
        """Hear that the batch is acknowledged."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Hear that the batch is refused."""
        ...


class PendingAppend:
    """A batch that someone waits for, who is told of its acknowledgement or its refusal."""

    __slots__ = (
        "address",
        "batch",
        "header",
        "is_early",
        "next_offset",
        "offset",
        "on_admit",
        "size",
        "waiter",
    )

    def __init__(
        self,
        header: BatchHeader,
        batch: Bytes,
        waiter: AppendWaiter,
        on_admit: OnAdmit | None = None,
        *,
        is_early: bool = False,
    ) -> None:
        self.header = header
        self.batch = batch
        self.size = len(batch)
        self.waiter = waiter
        self.on_admit = on_admit
        self.is_early = is_early
        """Whether to acknowledge once it is written, whatever the class of the log asks for."""
        self.offset = self.next_offset = -1
        self.address: Address | None = None

    def acknowledge(self) -> None:
        """Tell the appender, unless it stopped waiting."""
        if not self.waiter.done():
            self.waiter.set_result(Appended(self.offset, self.next_offset - 1, self.address))

    def refuse(self, error: Exception) -> None:
        """Tell the appender why not, unless it stopped waiting."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


def validate_batch(batch: Bytes, *, size_max: int, is_checked: bool) -> BatchHeader:
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


def total_size(appends: Iterable[PendingAppend]) -> int:
    """Return the bytes of all batches together."""
    return sum(append.size for append in appends)

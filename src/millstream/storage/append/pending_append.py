"""A batch between its submission and its acknowledgement."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from millstream.errors import BatchTooLarge, CorruptBatch, InvalidBatch
from millstream.records.batch import BatchHeader, Bytes, check_batch, decode_header
from millstream.storage.segment.reader import Address

OnAdmit: TypeAlias = Callable[[int], None]
"""Called with the offset that a batch is about to get; refuses the batch by raising."""


class Appended(NamedTuple):
    """The offsets and the address of an acknowledged batch."""

    offset: int
    last_offset: int
    address: Address | None
    """None for the class `memory`, which acknowledges a batch before it is written."""


class AppendWaiter(Protocol):
    """Receives the outcome of one append: a future, or an object that needs no turn of the loop.

    It is called in the middle of a write or a commit, so it may only record the outcome: it must
    not append.
    """

    def done(self) -> bool:
        """Return whether the outcome is known, or nobody waits for it any more."""
        ...

    def set_result(self, result: Appended, /) -> None:
        """Receive the acknowledgement."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Receive the reason why the batch was refused."""
        ...


class PendingAppend:
    """A batch and the waiter that receives its outcome."""

    __slots__ = (
        "address",
        "batch",
        "deadline",
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
        """Whether to acknowledge the batch when it is written, whatever the durability class."""
        self.offset = self.next_offset = -1
        """-1 until the batch is admitted."""
        self.address: Address | None = None
        self.deadline: TimerHandle | None = None
        """Refuses the batch if it still waits for admission then."""

    def acknowledge(self) -> None:
        """Report success, unless the caller stopped waiting."""
        if not self.waiter.done():
            self.waiter.set_result(Appended(self.offset, self.next_offset - 1, self.address))

    def refuse(self, error: Exception) -> None:
        """Report failure, unless the caller stopped waiting."""
        if not self.waiter.done():
            self.waiter.set_exception(error)

    def cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def validate_batch(batch: Bytes, *, size_max: int, is_checked: bool) -> BatchHeader:
    """Return the header of a batch that a log can accept; raise `RequestError` for any other."""
    if len(batch) > size_max:
        raise BatchTooLarge(f"batch has {len(batch)} bytes, limit is {size_max}")
    try:
        header = decode_header(batch)
        if not is_checked:
            check_batch(header, batch)
    except CorruptBatch as error:
        raise InvalidBatch(str(error)) from error
    if is_checked and len(batch) != header.size:
        raise InvalidBatch(
            f"batch must have {header.size} bytes, as its header says, got {len(batch)}"
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            f"batch has {header.record_count} records"
            f" in {header.last_offset_delta + 1} offsets: offsets must be contiguous"
        )
    return header

"""Who wrote to a stream, and whether it takes more: a machine that decides, and does nothing.

Each append may bear a `WriteMark`: a producer with its epoch and a number that counts up, a text
that has to grow from append to append, and whether the stream ends with it. `check` says what is
wrong with a mark, `apply` takes note of it, and returns what `undo` needs to take that back.

    epoch older than known            StaleStreamProducer
    epoch newer, number not 0         InvalidRequest
    number known already              DuplicateWrite: it is stored, and is not stored again
    number after the next             StreamProducerGap
    text not greater than the last    StreamMismatch
    the stream is closed              StreamClosed; or DuplicateWrite, for the one that closed it
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.errors import (
    InvalidRequest,
    MillstreamError,
    StaleStreamProducer,
    StreamClosed,
    StreamMismatch,
    StreamProducerGap,
)

PRODUCERS_MAX = 10_000
"""Producers that one stream remembers. None is forgotten while the stream lives, since what it
retries would be stored twice then; so beyond this, new ones are refused."""


class WriteMark(NamedTuple):
    """What an append says of itself."""

    producer: str | None = None
    epoch: int = 0
    number: int = 0
    sequence: str | None = None
    """Has to be greater, as bytes, than that of every append before."""
    is_closing: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to remember."""
        return self.producer is None and self.sequence is None and not self.is_closing


NO_MARK = WriteMark()


class WriterPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a producer came."""

    epoch: int
    number: int


class StreamClosure(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream ended, and who closed it."""

    end_offset: int
    producer: str | None = None
    epoch: int = 0
    number: int = 0

    def is_by(self, mark: WriteMark) -> bool:
        """Whether it was this mark that closed the stream."""
        return mark.producer is not None and (self.producer, self.epoch, self.number) == mark[:3]


class DuplicateWrite(MillstreamError):
    """What is appended is there already; who asks is told so, and nothing is wrong."""


class WriteUndo(NamedTuple):
    """How things were before a mark was applied."""

    producer: str | None
    written: WriterPosition | None
    sequence: str | None
    closure: StreamClosure | None


class StreamWriters:
    """The writers of one stream."""

    def __init__(
        self,
        path: str,
        *,
        producers: dict[str, WriterPosition] | None = None,
        sequence: str | None = None,
        closure: StreamClosure | None = None,
    ) -> None:
        self.path = path
        self.producers = producers or {}
        self.sequence = sequence
        self.closure = closure

    def check(self, mark: WriteMark, *, has_data: bool = True) -> None:
        """Raise unless what bears this mark may be written now."""
        written = None if mark.producer is None else self.producers.get(mark.producer)
        if mark.producer is not None and written is not None and mark.epoch < written.epoch:
            raise StaleStreamProducer(mark.producer, found=mark.epoch, newest=written.epoch)
        if self.closure is not None:
            if self.closure.is_by(mark) or not has_data:
                raise DuplicateWrite
            raise StreamClosed(self.path, self.closure.end_offset)
        if mark.producer is not None:
            self._check_number(mark.producer, mark, written)
        if mark.sequence is not None and self.sequence is not None:
            self._check_sequence(mark.sequence, self.sequence)

    def _check_number(self, producer: str, mark: WriteMark, written: WriterPosition | None) -> None:
        if written is None and len(self.producers) >= PRODUCERS_MAX:
            raise InvalidRequest(f"the stream remembers {PRODUCERS_MAX} producers, and no more")
        if written is None or mark.epoch > written.epoch:
            if mark.number == 0:
                return
            if written is None:
                raise StreamProducerGap(producer, expected=0, found=mark.number)
            raise InvalidRequest(
                f"producer {producer!r} begins epoch {mark.epoch} with number {mark.number},"
                " needed is 0"
            )
        if mark.number <= written.number:
            raise DuplicateWrite
        if mark.number > written.number + 1:
            raise StreamProducerGap(producer, expected=written.number + 1, found=mark.number)

    @staticmethod
    def _check_sequence(sequence: str, last: str) -> None:
        if sequence.encode() <= last.encode():
            raise StreamMismatch(
                f"sequence is {sequence!r}, needed is one that is greater than {last!r}"
            )

    def apply(self, mark: WriteMark, end_offset: int) -> WriteUndo:
        """Take note of a mark, whose records end before `end_offset`."""
        before = None if mark.producer is None else self.producers.get(mark.producer)
        undo = WriteUndo(mark.producer, before, self.sequence, self.closure)
        if mark.producer is not None:
            self.producers[mark.producer] = WriterPosition(mark.epoch, mark.number)
        if mark.sequence is not None:
            self.sequence = mark.sequence
        if mark.is_closing:
            self.closure = closure_of(mark, end_offset)
        return undo

    def undo(self, undo: WriteUndo) -> None:
        """Have things be as they were before a mark; the last applied goes first."""
        if undo.producer is not None and undo.written is not None:
            self.producers[undo.producer] = undo.written
        elif undo.producer is not None:
            self.producers.pop(undo.producer, None)
        self.sequence = undo.sequence
        self.closure = undo.closure


def closure_of(mark: WriteMark, end_offset: int) -> StreamClosure:
    """Return what is remembered of a mark that closes its stream."""
    return StreamClosure(
        end_offset=end_offset, producer=mark.producer, epoch=mark.epoch, number=mark.number
    )

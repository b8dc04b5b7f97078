"""The writers of a stream: decides whether an append is accepted. Does no I/O.

Each append may have a `WriteMark`: a producer with its epoch and a number that counts up, a text
that has to grow from append to append, and whether it closes the stream. `check` raises if a mark
is refused, `apply` applies it and returns what `undo` needs to revert it.

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
"""Producers of one stream. None is forgotten while the stream exists, as its retries would then be
stored twice; so beyond this limit, new ones are refused.
"""


class WriteMark(NamedTuple):
    """The writer of an append."""

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
    """The last append of a producer."""

    epoch: int
    number: int


class StreamClosure(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream was closed, and by which append."""

    end_offset: int
    producer: str | None = None
    epoch: int = 0
    number: int = 0

    def is_by(self, mark: WriteMark) -> bool:
        """Return whether this mark closed the stream."""
        return mark.producer is not None and (self.producer, self.epoch, self.number) == mark[:3]


class DuplicateWrite(MillstreamError):
    """The append is stored already; it is answered as a success."""


class WriteUndo(NamedTuple):
    """The state before a mark was applied."""

    producer: str | None
    position: WriterPosition | None
    sequence: str | None
    closure: StreamClosure | None


class StreamWriters:
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
        """Raise unless an append with this mark is accepted now."""
        position = None if mark.producer is None else self.producers.get(mark.producer)
        if mark.producer is not None and position is not None and mark.epoch < position.epoch:
            raise StaleStreamProducer(mark.producer, found=mark.epoch, newest=position.epoch)
        if self.closure is not None:
            if self.closure.is_by(mark) or not has_data:
                raise DuplicateWrite
            raise StreamClosed(self.path, self.closure.end_offset)
        if mark.producer is not None:
            self._check_number(mark.producer, mark, position)
        if mark.sequence is not None and self.sequence is not None:
            self._check_sequence(mark.sequence, self.sequence)

    def _check_number(
        self, producer: str, mark: WriteMark, position: WriterPosition | None
    ) -> None:
        if position is None and len(self.producers) >= PRODUCERS_MAX:
            raise InvalidRequest(f"a stream can have at most {PRODUCERS_MAX} producers")
        if position is None or mark.epoch > position.epoch:
            if mark.number == 0:
                return
            if position is None:
                raise StreamProducerGap(producer, expected=0, found=mark.number)
            raise InvalidRequest(
                f"producer {producer!r} must start epoch {mark.epoch} with number 0,"
                f" got {mark.number}"
            )
        if mark.number <= position.number:
            raise DuplicateWrite
        if mark.number > position.number + 1:
            raise StreamProducerGap(producer, expected=position.number + 1, found=mark.number)

    @staticmethod
    def _check_sequence(sequence: str, last: str) -> None:
        if sequence.encode() <= last.encode():
            raise StreamMismatch(f"sequence must be greater than {last!r}, got {sequence!r}")

    def apply(self, mark: WriteMark, end_offset: int) -> WriteUndo:
        """Apply a mark, whose records end before `end_offset`."""
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
        """Restore the state before a mark; marks are undone in reverse order."""
        if undo.producer is not None and undo.position is not None:
            self.producers[undo.producer] = undo.position
        elif undo.producer is not None:
            self.producers.pop(undo.producer, None)
        self.sequence = undo.sequence
        self.closure = undo.closure


def closure_of(mark: WriteMark, end_offset: int) -> StreamClosure:
    return StreamClosure(
        end_offset=end_offset, producer=mark.producer, epoch=mark.epoch, number=mark.number
    )

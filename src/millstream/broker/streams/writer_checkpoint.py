"""The committed state of a stream's writers, and the part of it that is in a checkpoint."""

from __future__ import annotations

import asyncio

import msgspec

from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.broker.streams.row import (
    StoredStream,
    WritersRow,
    encode,
    producer_key,
    writers_key,
)
from millstream.broker.streams.writers import NO_MARK, WriteMark, WriterPosition, closure_of


class WriterCheckpoint:
    """The state of the writers that would remain if everything uncommitted were lost."""

    def __init__(self, path: str, state: StateLog, stored: StoredStream) -> None:
        self.sequence = stored.writers.sequence
        self.closure = stored.writers.closure
        self._path = path
        self._state = state
        self._saved = stored.writers
        self._unsaved: dict[str, WriterPosition] = {}

    @property
    def saved_offset(self) -> int:
        """The offset of the last checkpoint."""
        return self._saved.offset

    def apply(self, mark: WriteMark, end_offset: int) -> None:
        """Apply a mark that is committed."""
        if mark.producer is not None:
            self._unsaved[mark.producer] = WriterPosition(mark.epoch, mark.number)
        if mark.sequence is not None:
            self.sequence = mark.sequence
        if mark.is_closing:
            self.closure = closure_of(mark, end_offset)

    def truncate(self, end_offset: int) -> None:
        """Truncate the state to the end of the log."""
        if self.closure is not None and self.closure.end_offset > end_offset:
            self.closure = msgspec.structs.replace(self.closure, end_offset=end_offset)

    def put(
        self, offset: int, mark: WriteMark = NO_MARK, end_offset: int = 0
    ) -> asyncio.Future[None]:
        """Store a checkpoint up to `offset`, with the effect of `mark` added."""
        row = WritersRow(
            offset=offset,
            sequence=self.sequence if mark.sequence is None else mark.sequence,
            closure=closure_of(mark, end_offset) if mark.is_closing else self.closure,
        )
        unsaved, self._unsaved = self._unsaved, {}
        positions = dict(unsaved)
        if mark.producer is not None:
            positions[mark.producer] = WriterPosition(mark.epoch, mark.number)
        entries: list[StateEntry] = [(writers_key(self._path), encode(row))]
        entries += [
            (producer_key(self._path, producer), encode(position))
            for producer, position in positions.items()
        ]
        before, self._saved = self._saved, row
        future = self._state.put(entries)

        def end(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                self._unsaved = unsaved | self._unsaved
                self._saved = before

        future.add_done_callback(end)
        return future

"""What readers see of a log: its segments and how far they are committed.

The writer publishes a new state in one step, and a reader takes the state once and works with
that, so no lock is needed: any number of threads may read while the one writer appends.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.errors import (
    CorruptFile,
    InvalidAddress,
    MillstreamError,
    OffsetOutOfRange,
    StorageFailed,
)
from millstream.storage.reader import (
    Address,
    Found,
    Slice,
    batches_since,
    find_timestamp,
    read_at,
    read_slice,
)
from millstream.storage.segment import Segment


class Mark(NamedTuple):
    """A point in a log: an offset, and where its batch would start."""

    offset: int
    segment: int
    position: int


class State(NamedTuple):
    """One published state. Segments behind the mark are whole, those after it are not there."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    committed: Mark


class Contents:
    """The readable side of a log."""

    def __init__(
        self, directory: str, segments: Sequence[Segment], committed: Mark, *, start_offset: int
    ) -> None:
        self._directory = directory
        self.start_offset = start_offset
        """The first offset of the log; it can be read unless its segment was lost."""
        self.state = State((), (), committed)
        self.replace_segments(segments)
        self.lost: MillstreamError | None = None
        """Why nothing can be read at the end of the log, where bytes are damaged."""

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Publish other segments: one began, was sealed or opened again."""
        bases = tuple(segment.base_offset for segment in segments)
        self.state = State(tuple(segments), bases, self.state.committed)

    def commit(self, committed: Mark) -> None:
        """Publish that the log is committed up to a mark."""
        assert committed.offset >= self.state.committed.offset, "what was committed stays so"
        self.state = self.state._replace(committed=committed)

    @property
    def end_offset(self) -> int:
        """The first offset that cannot be read yet."""
        return self.state.committed.offset

    def read(
        self, offset: int, *, size_max: int, records_max: int | None, is_checked: bool
    ) -> Slice:
        """Return committed batches from the one that holds `offset` on; empty at the end."""
        state = self.state
        if not self.start_offset <= offset <= state.committed.offset:
            raise OffsetOutOfRange(offset, start=self.start_offset, end=state.committed.offset)
        if offset == state.committed.offset:
            if self.lost is not None:
                raise self.lost
            address = Address(state.committed.segment, state.committed.position)
            return Slice(memoryview(b""), offset, address)
        found = bisect_right(state.bases, offset) - 1
        if found < 0 or offset >= state.segments[found].next_offset:
            raise CorruptFile(f"{self._directory}: offset {offset} has no segment")
        segment = state.segments[found]
        try:
            return read_slice(
                segment,
                offset,
                limit=_limit(state, segment),
                size_max=size_max,
                records_max=records_max,
                is_checked=is_checked,
            )
        except OSError as error:
            raise _unreadable(segment, error) from error

    def read_at(self, address: Address) -> Slice:
        """Return the committed batch at a physical address."""
        state = self.state
        found = bisect_right(state.bases, address.segment) - 1
        if found < 0 or state.bases[found] != address.segment:
            raise InvalidAddress(f"{self._directory}: no segment starts at {address.segment}")
        segment = state.segments[found]
        with _reading(segment):
            return read_at(segment, address.position, limit=_limit(state, segment))

    def find_timestamp(self, timestamp_ms: int) -> Found | None:
        """Return the first committed record that is as late as `timestamp_ms` or later."""
        state = self.state
        for segment in _visible(state):
            if segment.timestamp_max < timestamp_ms:
                continue
            with _reading(segment):
                found = find_timestamp(segment, timestamp_ms, limit=_limit(state, segment))
            if found:
                return found
        return None

    def batches_since(self, timestamp_ms: int) -> Iterator[memoryview]:
        """Go over all committed batches that hold a record of `timestamp_ms` or later."""
        state = self.state
        for segment in _visible(state):
            if segment.timestamp_max >= timestamp_ms:
                with _reading(segment):
                    entry = segment.index().for_timestamp(timestamp_ms)
                    limit = _limit(state, segment)
                    yield from batches_since(segment, entry, timestamp_ms, limit=limit)


@contextlib.contextmanager
def _reading(segment: Segment) -> Iterator[None]:
    """Name the segment in what the operating system says of it."""
    try:
        yield
    except OSError as error:
        raise _unreadable(segment, error) from error


def _unreadable(segment: Segment, error: OSError) -> StorageFailed:
    return StorageFailed(f"{segment.path} cannot be read: {error}")


def _visible(state: State) -> list[Segment]:
    """Segments with at least one committed batch."""
    return [segment for segment in state.segments if _limit(state, segment) > 0]


def _limit(state: State, segment: Segment) -> int:
    """End of the committed bytes of a segment."""
    if segment.base_offset < state.committed.segment:
        return segment.size
    return state.committed.position if segment.base_offset == state.committed.segment else 0

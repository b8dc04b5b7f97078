"""What readers see of a log: its segments, where it starts and how far they are committed.

The writer publishes a new state in one step, and a reader takes the state once and works with
that, so no lock is needed: any number of threads may read while the one writer appends. Deleting
publishes first and removes files afterwards; a reader that was quicker than the one and slower
than the other finds a file gone, looks at the newer state, and answers by that.
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
    find_latest,
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
    start: int
    """The first offset of the log, at the start of the first segment or inside it; it can be read
    unless its segment was lost."""


class Contents:
    """The readable side of a log."""

    def __init__(
        self, directory: str, segments: Sequence[Segment], committed: Mark, *, start_offset: int
    ) -> None:
        self._directory = directory
        self.state = State((), (), committed, start_offset)
        self.replace_segments(segments)
        self.lost: MillstreamError | None = None
        """Why nothing can be read at the end of the log, or at all: bytes are damaged, or gone."""

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Publish other segments: one began, was sealed, opened again or removed."""
        bases = tuple(segment.base_offset for segment in segments)
        self.state = self.state._replace(segments=tuple(segments), bases=bases)

    def commit(self, committed: Mark) -> None:
        """Publish that the log is committed up to a mark."""
        assert committed.offset >= self.state.committed.offset, "what was committed stays so"
        self.state = self.state._replace(committed=committed)

    def start_at(self, offset: int) -> None:
        """Publish that all before `offset` is deleted."""
        assert self.start_offset <= offset <= self.end_offset, "what was deleted stays so"
        self.state = self.state._replace(start=offset)

    def let_go(self, why: MillstreamError) -> None:
        """Publish that nothing can be read any more: another log may soon lie in its place."""
        self.lost = why
        self.replace_segments(())

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self.state.start

    @property
    def end_offset(self) -> int:
        """The first offset that cannot be read yet."""
        return self.state.committed.offset

    def read(
        self, offset: int, *, size_max: int, records_max: int | None, is_checked: bool
    ) -> Slice:
        """Return committed batches from the one that holds `offset` on; empty at the end."""
        state = self.state
        if not state.start <= offset <= state.committed.offset:
            raise _out_of_range(offset, state)
        if offset == state.committed.offset:
            if self.lost is not None:
                raise self.lost
            address = Address(state.committed.segment, state.committed.position)
            return Slice(memoryview(b""), offset, address)
        found = bisect_right(state.bases, offset) - 1
        if not state.segments and self.lost is not None:
            raise self.lost
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
            if offset < self.start_offset:
                raise _out_of_range(offset, self.state) from error
            raise _unreadable(segment, error) from error

    def read_at(self, address: Address) -> Slice:
        """Return the committed batch at a physical address."""
        state = self.state
        found = bisect_right(state.bases, address.segment) - 1
        if found < 0 or state.bases[found] != address.segment:
            raise InvalidAddress(f"{self._directory}: no segment starts at {address.segment}")
        segment = state.segments[found]
        with _reading(segment):
            batch = read_at(segment, address.position, limit=_limit(state, segment))
        if batch.next_offset <= state.start:
            raise InvalidAddress(
                f"{segment.path}: byte {address.position}: the batch there is deleted"
            )
        return batch

    def find_timestamp(self, timestamp_ms: int) -> Found | None:
        """Return the first committed record that is as late as `timestamp_ms` or later."""
        state = self.state
        for segment in _visible(state):
            if segment.timestamp_max < timestamp_ms:
                continue
            with self._looking(segment):
                limit = _limit(state, segment)
                found = find_timestamp(segment, timestamp_ms, start=state.start, limit=limit)
                if found:
                    return found
        return None

    def find_latest(self) -> Found | None:
        """Return the committed record with the greatest timestamp; of several, the first."""
        state = self.state
        latest: Found | None = None
        for segment in sorted(_visible(state), key=lambda s: (-s.timestamp_max, s.base_offset)):
            if latest and segment.timestamp_max < latest.timestamp_ms:
                break
            with self._looking(segment):
                found = find_latest(segment, start=state.start, limit=_limit(state, segment))
                latest = min(filter(None, (latest, found)), key=_latest_first, default=None)
        return latest

    def batches_since(self, timestamp_ms: int) -> Iterator[memoryview]:
        """Go over all committed batches that hold a record of `timestamp_ms` or later.

        The first may hold records before the start of the log too.
        """
        state = self.state
        for segment in _visible(state):
            if segment.timestamp_max >= timestamp_ms:
                with self._looking(segment):
                    limit = _limit(state, segment)
                    yield from batches_since(segment, timestamp_ms, start=state.start, limit=limit)

    @contextlib.contextmanager
    def _looking(self, segment: Segment) -> Iterator[None]:
        """Name the segment in what the operating system says of it; one just deleted is empty."""
        try:
            yield
        except OSError as error:
            if segment.next_offset > self.start_offset:
                raise _unreadable(segment, error) from error


@contextlib.contextmanager
def _reading(segment: Segment) -> Iterator[None]:
    """Name the segment in what the operating system says of it."""
    try:
        yield
    except OSError as error:
        raise _unreadable(segment, error) from error


def _unreadable(segment: Segment, error: OSError) -> StorageFailed:
    return StorageFailed(f"{segment.path} cannot be read: {error}")


def _out_of_range(offset: int, state: State) -> OffsetOutOfRange:
    return OffsetOutOfRange(offset, start=state.start, end=state.committed.offset)


def _latest_first(found: Found) -> tuple[int, int]:
    return -found.timestamp_ms, found.offset


def _visible(state: State) -> list[Segment]:
    """Segments with at least one committed batch that was not deleted."""
    return [
        segment
        for segment in state.segments
        if segment.next_offset > state.start and _limit(state, segment) > 0
    ]


def _limit(state: State, segment: Segment) -> int:
    """End of the committed bytes of a segment."""
    if segment.base_offset < state.committed.segment:
        return segment.size
    return state.committed.position if segment.base_offset == state.committed.segment else 0

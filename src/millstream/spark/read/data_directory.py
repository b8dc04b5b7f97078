"""Topics read out of the files of a data directory, beside the node that writes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from millstream.clients.partition import BatchChunk, Isolation, OffsetBounds, TopicDescription
from millstream.errors import OffsetOutOfRange, UnknownLog, UnknownTopic
from millstream.records.batch import Bytes, split
from millstream.records.topic_partition import TopicPartition
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.files.names import TOPICS_DIRECTORY, is_topic, parse_partition
from millstream.storage.inspect.catalog import check_directory, log_directory
from millstream.storage.inspect.readonly_log import ReadOnlyLog
from millstream.storage.inspect.transaction_outcomes import StableOffsetTracker, TransactionOutcomes
from millstream.storage.segment.log_state import LogState, committed_size
from millstream.storage.store import LogName

CHUNK_BYTES = 16 * 1024 * 1024
"""About how much is read at once: enough to be worth a call, and little beside a task's memory."""

_NO_ID = uuid.UUID(int=0)
"""Ids are in the node's own database, which nobody else can read without writing to it."""


class DataDirectory:
    """A data directory, as a `Place` to read. A node may be running on it, here or elsewhere.

    Nothing is locked and nothing is written, so a mounted copy does too. What is seen of a log, by
    its durability class:

    - `fsync`: what is on the disk for certain, which is all that was ever acknowledged. What only
      sits in a file is not seen; a crash could take it back.
    - `disk` and `memory`: what is in its file, whole and sound. A power cut could take the end of
      that back, as these classes say; and of class `memory`, what was acknowledged and is not
      written yet is not seen.
    - `ephemeral`: nothing. It has no files, and its topic is unknown here.

    Deleted records are not seen, whichever way they were deleted. A topic has as many partitions
    here as are in use, up to the one with the greatest number; one that was never used has none,
    and is unknown.

    With `READ_COMMITTED`, the first call of `bounds` reads the headers of all batches of a
    partition, and later calls those that are new. `READ_UNCOMMITTED` costs nothing of that.

    Every batch that is returned was checked. Raises `CorruptData`, with file and position, where
    bytes are damaged or missing; and `StorageFailed` where `path` is no data directory.
    """

    def __init__(self, path: str, *, filesystem: Filesystem | None = None) -> None:
        self._path = path
        self._filesystem = filesystem or OsFilesystem()
        check_directory(self._filesystem, path)
        self._views: dict[TopicPartition, ReadOnlyLog] = {}
        self._stable_ends: dict[TopicPartition, StableOffsetTracker] = {}

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the topics of these names, all where `None`; raises `UnknownTopic` for a name."""
        if names is None:
            listed = self._filesystem.list(join(self._path, TOPICS_DIRECTORY))
            names = [name for name in listed if is_topic(name) and self._partitions(name)]
        found = {name: TopicDescription(name, _NO_ID, self._partitions(name)) for name in names}
        for info in found.values():
            if not info.partitions:
                raise UnknownTopic(f"{self._path} has no files of a topic {info.name!r}")
        return found

    def bounds(
        self, where: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return what can be read now; with `READ_COMMITTED`, up to the last stable offset."""
        return {each: self._bounds(each, isolation) for each in where}

    def offsets_at(
        self, where: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset whose record is that late or later; `None` where none is."""
        return {each: self._offset_at(each, timestamp_ms) for each in where}

    def offset_bytes(
        self, where: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return about how much of the log an offset takes, by the files that hold each range."""
        return {each: self._offset_bytes(each, bounds) for each, bounds in where.items()}

    def stretches(
        self, where: TopicPartition, start: int, end: int, *, isolation: Isolation
    ) -> Iterator[BatchChunk]:
        """Read whole batches from the one that holds `start` until `end` is reached.

        As `Place` says. The files are looked at anew for each stretch, so what is deleted or
        evicted meanwhile is not returned any more; the latter raises `OffsetOutOfRange`. So does a
        transaction with records before `end` that is still open, with `READ_COMMITTED`.
        """
        view = self._view(where)
        if view is None:
            if (start, end) != (0, 0):
                raise OffsetOutOfRange(max(start, end), start=0, end=0)
            return
        reading = _Reading(end, isolation)
        contents = _known(where, view.look)
        if start < contents.eviction_floor:
            raise OffsetOutOfRange(start, start=contents.start_offset, end=contents.end_offset)
        if end > contents.end_offset:
            raise contents.lost or OffsetOutOfRange(
                end, start=contents.start_offset, end=contents.end_offset
            )
        offset = max(start, contents.start_offset)  # What was deleted on purpose reads silently.
        while offset < end:
            found = view.answer(partial(reading.stretch, offset))
            yield found
            offset = found.next_offset
            if offset < end:
                _known(where, view.refresh)

    def close(self) -> None:
        """Give back what it holds."""
        for view in self._views.values():
            view.forget()
        self._views.clear()
        self._stable_ends.clear()

    def _bounds(self, where: TopicPartition, isolation: Isolation) -> OffsetBounds:
        view = self._view(where)
        if view is None:
            return OffsetBounds(0, 0)
        _known(where, view.look)

        def ask(contents: LogState) -> OffsetBounds:
            if contents.lost is not None:
                raise contents.lost
            if isolation is Isolation.READ_UNCOMMITTED:
                return OffsetBounds(contents.start_offset, contents.end_offset)
            stable = self._stable_ends.setdefault(where, StableOffsetTracker())
            return OffsetBounds(contents.start_offset, stable.of(contents.snapshot))

        return view.answer(ask)

    def _offset_bytes(self, where: TopicPartition, bounds: OffsetBounds) -> float:
        view = self._view(where)
        if view is None:
            return 1.0
        state = _known(where, view.look).snapshot
        held = [
            segment
            for segment in state.segments
            if segment.base_offset < bounds.end and segment.next_offset > bounds.start
        ]
        count = sum(segment.next_offset - segment.base_offset for segment in held)
        return sum(committed_size(state, segment) for segment in held) / max(1, count)

    def _offset_at(self, where: TopicPartition, timestamp_ms: int) -> int | None:
        view = self._view(where)
        if view is None:
            return None
        _known(where, view.look)
        found = view.answer(lambda contents: contents.find_timestamp(timestamp_ms))
        if found is None and (lost := view.state.lost) is not None:
            raise lost
        return None if found is None else found.offset

    def _view(self, where: TopicPartition) -> ReadOnlyLog | None:
        """Return the view of a partition; nothing where it was never used, and has no files."""
        if where in self._views:
            return self._views[where]
        numbers = self._numbers(where.topic)
        if not 0 <= where.partition <= max(numbers, default=-1):
            raise UnknownTopic(f"{self._path} has no files of a partition {where}")
        if where.partition not in numbers:
            return None
        directory = log_directory(self._path, LogName(where.topic, where.partition))
        self._views[where] = ReadOnlyLog(self._filesystem, directory)
        return self._views[where]

    def _partitions(self, topic: str) -> int:
        return max(self._numbers(topic), default=-1) + 1

    def _numbers(self, topic: str) -> set[int]:
        if not is_topic(topic):
            return set()
        try:
            names = self._filesystem.list(join(self._path, TOPICS_DIRECTORY, topic))
        except NotADirectoryError:
            return set()
        return {number for number in map(parse_partition, names) if number is not None}


class _Reading:
    """One walk over a partition, up to `end`."""

    def __init__(self, end: int, isolation: Isolation) -> None:
        self._end = end
        self._isolation = isolation
        self._segments: Sequence[object] = ()
        self._endings: TransactionOutcomes | None = None

    def stretch(self, offset: int, contents: LogState) -> BatchChunk:
        """Return the batches from the one that holds `offset` on."""
        data, next_offset = _gather(contents, offset, self._end)
        return BatchChunk(data, next_offset, self._aborted(contents, data, next_offset))

    def _aborted(
        self, contents: LogState, data: Bytes, next_offset: int
    ) -> Mapping[int, Sequence[int]]:
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return {}
        state = contents.snapshot
        if self._endings is None or self._segments != state.segments:
            self._segments, self._endings = state.segments, TransactionOutcomes(state)
        aborted, undecided = self._endings.aborted(data, next_offset)
        if undecided is not None:
            raise OffsetOutOfRange(self._end, start=contents.start_offset, end=undecided)
        return aborted


def _known(where: TopicPartition, look: Callable[[], LogState]) -> LogState:
    try:
        return look()
    except UnknownLog as error:
        raise UnknownTopic(f"{where} is gone: {error}") from error


def _gather(contents: LogState, offset: int, end: int) -> tuple[Bytes, int]:
    """Return batches that begin before `end`, about a stretch of them, and where to read on.

    What one read finds is passed on as it is; only where that is little, it is put together.
    """
    parts: list[memoryview] = []
    size = 0
    while offset < end and size < CHUNK_BYTES // 4:
        found = contents.read(
            offset, size_max=CHUNK_BYTES - size, records_max=None, is_checked=True
        )
        data, offset = found.data, found.next_offset
        if offset > end:
            data, offset = _before(data, end)
        parts.append(data)
        size += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts), offset


def _before(data: memoryview, end: int) -> tuple[memoryview, int]:
    """Return the batches of `data` that begin before `end`, and where to read on."""
    size, next_offset = 0, end
    for header, batch in split(data):
        if header.base_offset >= end:
            break
        size += len(batch)
        next_offset = header.next_offset
    return data[:size], next_offset

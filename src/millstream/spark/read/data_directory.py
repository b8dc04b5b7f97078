"""Reader of topics from the files of a data directory, beside the node that writes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from millstream.clients.partition import BatchChunk, Isolation, OffsetBounds, TopicDescription
from millstream.errors import (
    CorruptFile,
    DamagedRecords,
    OffsetOutOfRange,
    UnknownLog,
    UnknownTopic,
    UnknownTopicId,
)
from millstream.records.batch import Bytes, split
from millstream.records.topic_partition import TopicPartition
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.files.names import TOPICS_DIRECTORY, LogName, is_topic, parse_partition
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.catalog import check_directory, log_directory
from millstream.storage.inspect.readonly_log import ReadOnlyLog
from millstream.storage.inspect.transaction_outcomes import StableOffsetTracker, TransactionOutcomes
from millstream.storage.segment.log_state import LogState, committed_size

CHUNK_BYTES = 16 * 1024 * 1024
"""Approximate size of a read: enough to be worth a call, and little beside a task's memory."""


class DataDirectory:
    """A data directory as a `RecordSource`. A node may be running on it, here or elsewhere.

    Nothing is locked and nothing is written, so a read-only mount is enough. Visible records, by
    durability class of the log:

    - `fsync`: records that are certainly on disk, which includes every acknowledged one. Records
    that
      are only in the page cache are not visible, because a crash could remove them.
    - `disk` and `memory`: records in the file that are complete and valid. A power failure could
    remove
      the last of them, as these classes allow. With class `memory`, records that were acknowledged
      and not yet written are not visible.
    - `ephemeral`: none. It has no files, and its topic is unknown here.

    Deleted records are not visible, however they were deleted. The number of partitions of a topic
    is that up to the highest one in use; a topic that was never used has none, and is unknown.

    With `READ_COMMITTED`, the first call of `bounds` reads the headers of all batches of a
    partition, and later calls those of new batches. `READ_UNCOMMITTED` does not.

    Every returned batch was verified. Raises `CorruptData`, with file and position, if bytes are
    damaged or missing, and `StorageFailed` if `path` is not a data directory.
    """

    def __init__(self, path: str, *, filesystem: Filesystem | None = None) -> None:
        self._path = path
        self._filesystem = filesystem or OsFilesystem()
        check_directory(self._filesystem, path)
        self._views: dict[TopicPartition, ReadOnlyLog] = {}
        self._stable_ends: dict[TopicPartition, StableOffsetTracker] = {}

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the named topics, or all if `None`; raises `UnknownTopic`."""
        if names is None:
            listed = self._filesystem.list(join(self._path, TOPICS_DIRECTORY))
            names = [name for name in listed if is_topic(name) and self._partitions(name)]
        topics = {name: self._describe(name) for name in names}
        for topic in topics.values():
            if not topic.partitions:
                raise UnknownTopic(
                    f"data directory {self._path} has no files of topic {topic.name!r}"
                )
        return topics

    def bounds(
        self, partitions: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the readable offsets; with `READ_COMMITTED`, up to the last stable offset."""
        return {partition: self._bounds(partition, isolation) for partition in partitions}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset with this timestamp or a later one, or `None`."""
        return {partition: self._offset_at(partition, timestamp_ms) for partition in partitions}

    def offset_bytes(
        self, partitions: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return the approximate bytes per offset, from the files that contain each range."""
        return {
            partition: self._offset_bytes(partition, bounds)
            for partition, bounds in partitions.items()
        }

    def chunks(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        topic_id: uuid.UUID | None = None,
    ) -> Iterator[BatchChunk]:
        """Yield whole batches, from the one that contains `start` until `end` is reached.

        See `RecordSource`. The files are listed again for each chunk, so records that are deleted
        meanwhile are not returned, and records that retention removes raise `OffsetOutOfRange`.
        With `READ_COMMITTED`, so does a transaction with records before `end` that is still open.
        """
        view = self._view(partition)
        if view is None:
            if (start, end) != (0, 0):
                raise OffsetOutOfRange(max(start, end), start=0, end=0)
            return
        chunk_reader = _ChunkReader(end, isolation)
        state = _existing(partition, view.reload)
        _check_id(partition, topic_id, view)
        if start < state.eviction_floor:
            raise OffsetOutOfRange(start, start=state.start_offset, end=state.end_offset)
        if end > state.end_offset:
            raise state.lost or OffsetOutOfRange(
                end, start=state.start_offset, end=state.end_offset
            )
        offset = max(start, state.start_offset)  # Skip records deleted by a user.
        while offset < end:
            chunk = view.query(partial(chunk_reader.chunk, offset))
            _check_id(partition, topic_id, view)
            yield chunk
            offset = chunk.next_offset
            if offset < end:
                _existing(partition, view.refresh)

    def close(self) -> None:
        for view in self._views.values():
            view.forget()
        self._views.clear()
        self._stable_ends.clear()

    def _bounds(self, partition: TopicPartition, isolation: Isolation) -> OffsetBounds:
        view = self._view(partition)
        if view is None:
            return OffsetBounds(0, 0)
        _existing(partition, view.reload)

        def bounds_in(state: LogState) -> OffsetBounds:
            if state.lost is not None:
                raise state.lost
            if isolation is Isolation.READ_UNCOMMITTED:
                return OffsetBounds(state.start_offset, state.end_offset)
            stable = self._stable_ends.setdefault(partition, StableOffsetTracker())
            return OffsetBounds(state.start_offset, stable.update(state.snapshot))

        return view.query(bounds_in)

    def _offset_bytes(self, partition: TopicPartition, bounds: OffsetBounds) -> float:
        view = self._view(partition)
        if view is None:
            return 1.0
        snapshot = _existing(partition, view.reload).snapshot
        segments = [
            segment
            for segment in snapshot.segments
            if segment.base_offset < bounds.end and segment.next_offset > bounds.start
        ]
        count = sum(segment.next_offset - segment.base_offset for segment in segments)
        return sum(committed_size(snapshot, segment) for segment in segments) / max(1, count)

    def _offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        view = self._view(partition)
        if view is None:
            return None
        _existing(partition, view.reload)
        record = view.query(lambda state: state.find_timestamp(timestamp_ms))
        if record is None and (lost := view.state.lost) is not None:
            raise lost
        return None if record is None else record.offset

    def _view(self, partition: TopicPartition) -> ReadOnlyLog | None:
        """Return the log of a partition, or `None` if the partition was never used."""
        if partition in self._views:
            return self._views[partition]
        numbers = self._numbers(partition.topic)
        if not 0 <= partition.partition <= max(numbers, default=-1):
            raise UnknownTopic(f"data directory {self._path} has no files of partition {partition}")
        if partition.partition not in numbers:
            return None
        directory = log_directory(self._path, LogName(partition.topic, partition.partition))
        self._views[partition] = ReadOnlyLog(self._filesystem, directory)
        return self._views[partition]

    def _describe(self, topic: str) -> TopicDescription:
        """Return a topic. Its id is that of the first log that has one."""
        numbers = sorted(self._numbers(topic))
        ids = (self._topic_id(TopicPartition(topic, number)) for number in numbers)
        topic_id = next((id_ for id_ in ids if id_ is not None), None)
        return TopicDescription(topic, topic_id, max(numbers, default=-1) + 1)

    def _topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        directory = log_directory(self._path, LogName(partition.topic, partition.partition))
        try:
            return read_partition_metadata(self._filesystem, directory).cursor_id
        except (FileNotFoundError, CorruptFile):
            return None  # Just created or deleted; or damaged, which a read reports.

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


class _ChunkReader:
    """Reads a partition up to `end`, and keeps the outcomes of transactions between chunks."""

    def __init__(self, end: int, isolation: Isolation) -> None:
        self._end = end
        self._isolation = isolation
        self._segments: Sequence[object] = ()
        self._outcomes: TransactionOutcomes | None = None

    def chunk(self, offset: int, state: LogState) -> BatchChunk:
        """Return batches from the one that contains `offset`."""
        data, next_offset = _gather(state, offset, self._end)
        return BatchChunk(data, next_offset, self._aborted(state, data, next_offset))

    def _aborted(
        self, state: LogState, data: Bytes, next_offset: int
    ) -> Mapping[int, Sequence[int]]:
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return {}
        snapshot = state.snapshot
        if self._outcomes is None or self._segments != snapshot.segments:
            self._segments, self._outcomes = snapshot.segments, TransactionOutcomes(snapshot)
        aborted, undecided = self._outcomes.aborted(data, next_offset)
        if undecided is not None:
            raise OffsetOutOfRange(self._end, start=state.start_offset, end=undecided)
        return aborted


def _check_id(partition: TopicPartition, topic_id: uuid.UUID | None, view: ReadOnlyLog) -> None:
    """Raise if the files are those of another topic than the one that is read."""
    if None not in (topic_id, view.topic_id) and topic_id != view.topic_id:
        raise UnknownTopicId(
            f"{partition}: the topic was deleted and created again (id {topic_id}, now"
            f" {view.topic_id})"
        )


def _existing(partition: TopicPartition, look: Callable[[], LogState]) -> LogState:
    try:
        return look()
    except UnknownLog as error:
        raise UnknownTopic(f"partition {partition} was deleted: {error}") from error


def _gather(state: LogState, offset: int, end: int) -> tuple[Bytes, int]:
    """Return a chunk of batches that start before `end`, and the next offset.

    The result of one read is returned without a copy; several small ones are joined.
    """
    parts: list[memoryview] = []
    size = 0
    while offset < end and size < CHUNK_BYTES // 4:
        try:
            result = state.read(
                offset, size_max=CHUNK_BYTES - size, records_max=None, is_checked=True
            )
        except DamagedRecords:
            if not parts:
                raise
            break  # The next chunk reports it.
        data, offset = result.data, result.next_offset
        if offset > end:
            data, offset = _before(data, end)
        parts.append(data)
        size += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts), offset


def _before(data: memoryview, end: int) -> tuple[memoryview, int]:
    """Return the batches of `data` that start before `end`, and the next offset."""
    size, next_offset = 0, end
    for header, batch in split(data):
        if header.base_offset >= end:
            break
        size += len(batch)
        next_offset = header.next_offset
    return data[:size], next_offset

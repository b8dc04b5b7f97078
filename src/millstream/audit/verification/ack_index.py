"""Index of all acknowledgements, in log order.

The files are in the order of the responses, which is that of no log. So each line becomes an entry
of fixed size that sorts by partition and offset:

     0           4        12      13    21      29        37          45     47     55
    +-----------+--------+-------+-----+-------+---------+-----------+------+------+----------+
    | partition | offset | flags | key | value | headers | timestamp | file | line | topic id |
    | number    |        |       | (checksums)           |           |      |      | number   |
    +-----------+--------+-------+-----+-------+---------+-----------+------+------+----------+

Partitions and topic ids are numbered in order of appearance, so memory grows only with these.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Self

from millstream.audit.acknowledgements.line import NO_OFFSET, Acknowledgement
from millstream.audit.acknowledgements.reader import AcknowledgementReader
from millstream.audit.verification.external_sort import ENTRIES_MAX, ExternalSort
from millstream.errors import InvalidRequest
from millstream.records.topic_partition import TopicPartition

PARTITIONS_MAX = 1_000_000
"""Partitions, and topic ids, that the files may name: more than a cluster has."""

FILES_MAX = 2**16 - 1

_ENTRY = struct.Struct(">IQBQQQqHQI")
ENTRY_SIZE = _ENTRY.size

_HAS_KEY = 1
_HAS_VALUE = 2
_HAS_HEADERS = 4
_HAS_TIMESTAMP = 8
_IS_COMMITTED = 16


class IndexedAck(NamedTuple):
    """One acknowledgement, and the line where it was recorded."""

    offset: int
    key: int | None
    value: int | None
    headers: int | None
    timestamp_ms: int | None
    is_committed: bool
    topic_id: uuid.UUID | None
    file: str
    line: int
    entry: bytes
    """The encoded form, for `AckIndex.decode`."""


class AckIndex:
    """All acknowledgements of some files. Use it with `with`: it may hold temporary files."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX) -> None:
        self._sort = ExternalSort(ENTRY_SIZE, entries_max=entries_max)
        self._numbers: dict[TopicPartition, int] = {}
        self._partitions: list[TopicPartition] = []
        self._ids: dict[uuid.UUID, int] = {}
        self._topic_ids: list[uuid.UUID] = []
        self._files: list[str] = []
        self.count = 0
        self.unplaced = 0
        """Acknowledgements without an offset, which are not in the index."""
        self.torn_files: list[str] = []
        """Files with an unfinished last line, which was skipped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sort.close()

    def read(
        self,
        path: str,
        *,
        topics: Sequence[str] = (),
        on_line: Callable[[int], None] = lambda _number: None,
    ) -> None:
        """Add the acknowledgements of a file, or only those of some topics."""
        if len(self._files) >= FILES_MAX:
            raise InvalidRequest(f"there are more than {FILES_MAX} acknowledgement files")
        self._files.append(path)
        reader = AcknowledgementReader(path)
        for number, ack in reader:
            if not topics or ack.topic in topics:
                self._add(ack, number)
            on_line(number)
        if reader.is_torn:
            self.torn_files.append(path)

    def partitions(self) -> Iterator[tuple[TopicPartition, Iterator[IndexedAck]]]:
        """Yield the partitions, each with its acknowledgements by ascending offset.

        Acknowledgements that were not consumed are skipped when the next partition is requested.
        """
        for number, entries in groupby(self._sort.entries(), key=lambda entry: entry[:4]):
            yield self._partitions[int.from_bytes(number)], map(self.decode, entries)

    def decode(self, entry: bytes) -> IndexedAck:
        _, offset, flags, key, value, headers, time_ms, file, line, topic = _ENTRY.unpack(entry)
        return IndexedAck(
            offset,
            key if flags & _HAS_KEY else None,
            value if flags & _HAS_VALUE else None,
            headers if flags & _HAS_HEADERS else None,
            time_ms if flags & _HAS_TIMESTAMP else None,
            bool(flags & _IS_COMMITTED),
            self._topic_ids[topic - 1] if topic else None,
            self._files[file],
            line,
            entry,
        )

    def _add(self, ack: Acknowledgement, line: int) -> None:
        self.count += 1
        if ack.offset == NO_OFFSET:
            self.unplaced += 1
            return
        flags = (
            (ack.key is not None and _HAS_KEY)
            | (ack.value is not None and _HAS_VALUE)
            | (ack.headers is not None and _HAS_HEADERS)
            | (ack.timestamp_ms is not None and _HAS_TIMESTAMP)
            | (ack.is_committed and _IS_COMMITTED)
        )
        self._sort.add(
            _ENTRY.pack(
                self._number(TopicPartition(ack.topic, ack.partition)),
                ack.offset,
                flags,
                ack.key or 0,
                ack.value or 0,
                ack.headers or 0,
                ack.timestamp_ms or 0,
                len(self._files) - 1,
                line,
                0 if ack.topic_id is None else self._id_number(ack.topic_id),
            )
        )

    def _number(self, partition: TopicPartition) -> int:
        if (known := self._numbers.get(partition)) is not None:
            return known
        _check_count(len(self._partitions))
        self._partitions.append(partition)
        return self._numbers.setdefault(partition, len(self._partitions) - 1)

    def _id_number(self, topic_id: uuid.UUID) -> int:
        """Return the number of a topic id, from 1."""
        if (known := self._ids.get(topic_id)) is not None:
            return known
        _check_count(len(self._topic_ids))
        self._topic_ids.append(topic_id)
        return self._ids.setdefault(topic_id, len(self._topic_ids))


def _check_count(count: int) -> None:
    if count >= PARTITIONS_MAX:
        raise InvalidRequest(
            f"the acknowledgement files name more than {PARTITIONS_MAX} partitions or topics"
        )

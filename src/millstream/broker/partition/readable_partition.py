"""The part of a partition that readers of single records use, such as queues.

`Partition` has it. In a cluster, queues also read partitions that this node neither leads nor
replicates: `cluster` implements it for those, by requests to their leaders.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.reader import RangeWithDeletions
from millstream.broker.partition.results import FetchResult
from millstream.records.record import Gap
from millstream.storage.prefetch import ColdRange


class RecordReader(Protocol):
    """The read side. See `PartitionReader`."""

    @property
    def removals(self) -> tuple[int, object]:
        """The first offset, and an object that is another one whenever records are deleted."""
        ...

    def read(
        self, offset: int, *, size_max: int, is_committed_only: bool = False
    ) -> FetchResult: ...

    def cold_ranges(
        self, offset: int, *, size_max: int
    ) -> Sequence[ColdRange | RangeWithDeletions]: ...

    async def prefetch(self, ranges: Sequence[ColdRange | RangeWithDeletions]) -> None: ...

    def gap_at(self, offset: int) -> Gap | None: ...

    def count_deleted(self, first: int, end: int) -> int: ...

    def deleted_among(self, offsets: Iterable[int]) -> list[int]: ...


class ReadablePartition(Protocol):
    """A partition that can be read, on this node or on another. See `Partition`."""

    index: int
    topic_id: uuid.UUID
    opener: BatchOpener

    @property
    def is_open(self) -> bool: ...

    async def open(self) -> None: ...

    @property
    def reader(self) -> RecordReader: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    def watch(self, callback: Callable[[], None]) -> None: ...

    def unwatch(self, callback: Callable[[], None]) -> None: ...

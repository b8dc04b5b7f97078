"""The part of a partition that readers of single records use: queues, streams, live delivery.

`Partition` has it. In a cluster, these also read partitions that this node neither leads nor
replicates: `Partition.anywhere` is then one of `cluster`, which asks their leaders.
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

    def deletions(self) -> tuple[int, object]:
        """Return a token that is equal to an earlier one unless a client deleted records since."""
        ...

    async def fetch(
        self, offset: int, *, size_max: int, is_committed_only: bool = True
    ) -> FetchResult:
        """Return whole batches as `PartitionReader.read` does, from wherever they are."""
        ...

    def cold_ranges(
        self, offset: int, *, size_max: int
    ) -> Sequence[ColdRange | RangeWithDeletions]: ...

    async def prefetch(self, ranges: Sequence[ColdRange | RangeWithDeletions]) -> None: ...

    def gap_at(self, offset: int) -> Gap | None: ...

    def count_deleted(self, first: int, end: int) -> int: ...

    def deleted_among(self, offsets: Iterable[int]) -> list[int]: ...


class ReadablePartition(Protocol):
    """A partition that can be read, on this node or on another. See `Partition`."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def topic_id(self) -> uuid.UUID: ...

    @property
    def opener(self) -> BatchOpener: ...

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

    async def settle(self, offset: int | None = None) -> None: ...

    async def catch_up(self) -> None:
        """Return when readers see here everything that was acknowledged before the call.

        Raises if the leader cannot be asked, or if the replica here is too far behind.
        """
        ...

    async def find_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the first offset of a record that is not older than a time; None if none is."""
        ...

    async def delete_before(self, offset: int) -> int:
        """Delete the records before an offset, durably; return the new start offset."""
        ...

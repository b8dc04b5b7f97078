"""Read side of one partition: which offsets can be read, and the batches at them."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.batch_reader import FirstBatchCache, read_batches
from millstream.broker.partition.producers.states import ProducerStates
from millstream.broker.partition.results import FetchResult, PartitionDescription
from millstream.errors import (
    DamagedRecords,
    MillstreamError,
    OffsetOutOfRange,
    RecordsInRepair,
    StorageFailed,
)
from millstream.records.record import Gap
from millstream.storage.log import Log
from millstream.storage.prefetch import ColdRange, Prefetcher
from millstream.storage.segment.cold_segment import ColdSegment

T = TypeVar("T")


class RangeWithDeletions(NamedTuple):
    """A range of which some records were deleted, so that batches have to be rebuilt to read it."""

    offset: int
    size_max: int


class PartitionReader:
    """Reads the committed batches of one partition."""

    def __init__(
        self,
        log: Log,
        states: ProducerStates,
        *,
        undecided: Sequence[DamagedRecords] = (),
        prefetcher: Prefetcher,
        opener: BatchOpener,
        awaits_repair: Callable[[], bool] = lambda: False,
    ) -> None:
        """`awaits_repair` tells whether damage that a reader has met is repaired soon."""
        self._log = log
        self._states = states
        self._undecided = undecided
        """Ranges before damage in which it is unknown which records are committed."""
        self._prefetcher = prefetcher
        self._opener = opener
        self._awaits_repair = awaits_repair
        self._first_batch = FirstBatchCache()

    # Offsets.

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log.start_offset

    @property
    def local_start_offset(self) -> int:
        """The first offset that is on the local disk, with all behind it."""
        cold = (s.next_offset for s in self._log.segments if isinstance(s, ColdSegment))
        return max(self._log.start_offset, *cold, 0)

    @property
    def has_cold_segments(self) -> bool:
        """Whether records are in a cold store only."""
        return any(isinstance(segment, ColdSegment) for segment in self._log.segments)

    @property
    def high_watermark(self) -> int:
        """The end of the committed records: with one node, of those the log has committed."""
        return self._log.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that readers of committed transactions may see."""
        first_unstable = self._states.first_unstable_offset
        if first_unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(self._log.start_offset, first_unstable))

    def end_offset(self, *, is_committed_only: bool) -> int:
        """Return the offset after the last record that a reader of this kind may see."""
        return self.last_stable_offset if is_committed_only else self.high_watermark

    # Batches.

    def cold_ranges(self, offset: int, *, size_max: int) -> list[ColdRange | RangeWithDeletions]:
        """Return the ranges that would delay such a read: old data, and batches to be rebuilt.

        Old data has to be loaded from the disk. Batches with deleted records have to be decoded. A
        caller on the event loop has them prefetched first.
        """
        log = self._log
        ranges: list[ColdRange | RangeWithDeletions] = [
            *self._prefetcher.cold_ranges(log.segments, max(offset, log.start_offset), size_max)
        ]
        if log.masks or offset < log.start_offset:
            ranges.append(RangeWithDeletions(offset, size_max))
        return ranges

    async def prefetch(self, ranges: Sequence[ColdRange | RangeWithDeletions]) -> None:
        """Load old data into memory, and rebuild batches, without blocking the event loop."""
        await self._prefetcher.prefetch([item for item in ranges if isinstance(item, ColdRange)])
        for item in ranges:
            if isinstance(item, RangeWithDeletions) and self._log.eviction_floor <= item.offset:
                with contextlib.suppress(MillstreamError):  # The read itself will report it.
                    await self._opener.run_large(partial(self._rebuild, item))

    async def with_cold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work`, again and again as long as it gets further by waiting for a cold store."""
        return await self._prefetcher.with_cold(work)

    def _rebuild(self, batches: RangeWithDeletions) -> None:
        """Read a range in a thread, so that its rebuilt batches are cached."""
        read_batches(
            self._log,
            batches.offset,
            end_offset=self.high_watermark,
            size_max=batches.size_max,
            is_first=True,
            first_batch=self._first_batch,
        )

    def read(
        self, offset: int, *, size_max: int, is_committed_only: bool = False, is_first: bool = True
    ) -> FetchResult:
        """Return whole batches, from the one that contains `offset`, of at most `size_max` bytes.

        With `is_first`, one batch is returned even if it alone is larger, so that a reader with a
        small limit still makes progress. Nothing is returned at the end, which for readers of
        committed transactions is the last stable offset, nor between the end and the log's next
        offset: with `is_early`, a producer may know of records that readers do not see yet.

        Raises `OffsetOutOfRange` if retention has deleted the records at `offset`, and
        `DamagedRecords` if they are damaged, or `RecordsInRepair` if another replica has them.
        Records that a client deleted are skipped silently: they were deleted so that nobody sees
        them.
        """
        log = self._log
        end_offset = self.end_offset(is_committed_only=is_committed_only)
        if log.lost is not None and offset >= log.end_offset:
            raise log.lost  # There may have been more: nobody may take this for the end.
        if not log.eviction_floor <= offset <= log.next_offset:
            raise OffsetOutOfRange(offset, start=log.start_offset, end=self.high_watermark)
        try:
            if is_committed_only and self._undecided:
                end_offset = min(end_offset, self._decided_end(offset))
            result = read_batches(
                log,
                offset,
                end_offset=end_offset,
                size_max=size_max,
                is_first=is_first,
                first_batch=self._first_batch,
            )
        except (DamagedRecords, StorageFailed) as error:
            self.check_repair(error)
            raise
        if is_committed_only and result.parts:
            aborted = self._states.aborted.between(offset, result.next_offset)
            return result._replace(aborted=aborted)
        return result

    def check_repair(self, error: DamagedRecords | StorageFailed) -> None:
        """Raise `RecordsInRepair` if what a reader could not read is going to be repaired."""
        if not self._awaits_repair():
            return
        what = "records"
        if isinstance(error, DamagedRecords):
            what = f"the records from offset {error.from_offset} to {error.to_offset}"
        raise RecordsInRepair(
            f"{self._log.name}: {what} are damaged on this node, and are being copied from another"
            " replica; try again"
        ) from error

    async def fetch(
        self, offset: int, *, size_max: int, is_committed_only: bool = True
    ) -> FetchResult:
        """Return what `read` does: for readers that may also read partitions of other nodes."""
        return self.read(offset, size_max=size_max, is_committed_only=is_committed_only)

    def _decided_end(self, offset: int) -> int:
        """Return the offset up to which the outcomes of transactions are known, from `offset` on.

        Raises `DamagedRecords` if they are not known there.
        """
        for damage in self._undecided:
            if damage.from_offset <= offset <= damage.to_offset:
                raise damage
            if offset < damage.from_offset:
                return damage.from_offset
        return self.high_watermark

    # Removed records.

    def gap_at(self, offset: int) -> Gap | None:
        """Return the gap that retention left for a reader that continues at `offset`, if any."""
        return self._log.gap_at(offset)

    def deletions(self) -> tuple[int, object]:
        """Return a token that is equal to an earlier one unless a client deleted records since."""
        log = self._log
        start_offset = log.start_offset
        return start_offset if start_offset > log.eviction_floor else 0, log.masks

    @property
    def removals(self) -> tuple[int, object]:
        """A token that changes when records are removed: by value, and in [1] by identity."""
        log = self._log
        return log.start_offset, log.masks

    def count_deleted(self, first: int, end: int) -> int:
        """Return how many records from `first` to before `end` are deleted by key."""
        return sum(
            bisect_left(mask.offsets, end) - bisect_left(mask.offsets, first)
            for mask in self._log.masks.values()
        )

    def deleted_among(self, offsets: Iterable[int]) -> list[int]:
        """Return those of `offsets` that are known, without reading, to be deleted."""
        start_offset, masks = self._log.start_offset, self._log.masks
        bases = sorted(masks)

        def is_deleted(offset: int) -> bool:
            segment = bisect_right(bases, offset) - 1
            if offset < start_offset or segment < 0:
                return offset < start_offset
            deleted = masks[bases[segment]].offsets
            position = bisect_left(deleted, offset)
            return position < len(deleted) and deleted[position] == offset

        return [offset for offset in offsets if is_deleted(offset)]

    def describe(self) -> PartitionDescription:
        """Return counts and sizes of the partition."""
        log = self._log
        gap = log.gap_at(0)
        return PartitionDescription(
            start_offset=log.start_offset,
            eviction_floor=log.eviction_floor,
            high_watermark=self.high_watermark,
            leader_epoch=log.partition.leader_epoch,
            cleaned_offset=log.partition.cleaned_offset,
            segments=len(log.segments),
            bytes=log.size_bytes,
            records=log.record_count - log.deleted_records,
            deleted_records=log.deleted_records,
            reclaimable_bytes=log.reclaimable_bytes,
            gaps=() if gap is None else (gap,),
        )

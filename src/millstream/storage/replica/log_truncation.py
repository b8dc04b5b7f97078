"""Truncation of an open log: see `segment/truncation.py` for the steps on the disk.

Nothing is written while a log is truncated, and nothing is admitted: what is not written yet is
refused. Cleaning is interrupted first, because an unfinished rewrite of segments that are cut would
bring their batches back. Readers that are in flight end with the bytes that they have, or find that
their offset is beyond the end.

If a step fails after the truncation was recorded, the log is offline. Opening it again finishes the
truncation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from millstream.errors import (
    CorruptFile,
    OffsetOutOfRange,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.storage.append.active_segments import ActiveSegments
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.commit_state import CommitState
from millstream.storage.compaction.cleaner import LogCleaner
from millstream.storage.compaction.plan import OFFSET_INFINITY
from millstream.storage.disk.errors import transient_error
from millstream.storage.files.partition_metadata import LeaderEpoch, PartitionMetadata, Truncation
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import LogPosition
from millstream.storage.segment.reader import batch_start
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment
from millstream.storage.segment.truncation import CutLog, cut_log


class TruncateResult(NamedTuple):
    """Result of a truncation."""

    end_offset: int
    """The end of the log now. Before the requested offset if that was inside a batch."""
    removed_offsets: int
    removed_bytes: int


class _Cut(NamedTuple):
    """Where a log is to be cut."""

    truncation: Truncation
    kept: tuple[Segment, ...]
    """The segments that stay, including the last, of which a part may be removed."""


class LogTruncation:
    """Truncates one log. Belongs to its event loop.

    `before_truncation` is awaited with the new end before anything is removed. `high_watermark`
    returns the offset below which nothing is removed unless that is forced. `on_repair` is called
    with a range of offsets whose damage is gone.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        queue: AppendQueue,
        segments: ActiveSegments,
        commit: CommitState,
        cleaner: LogCleaner,
        now_ms: Callable[[], int],
        high_watermark: Callable[[], int],
        before_truncation: Callable[[int], Awaitable[None]],
        go_offline: Callable[[Exception], None],
        offline: Callable[[], Exception | None],
        on_repair: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._queue = queue
        self._segments = segments
        self._commit = commit
        self._cleaner = cleaner
        self._now_ms = now_ms
        self._high_watermark = high_watermark
        self._before_truncation = before_truncation
        self._go_offline = go_offline
        self._offline = offline
        self._on_repair = on_repair
        self._tombstones_copied = 0

    async def truncate(self, offset: int, *, is_forced: bool) -> TruncateResult:
        """Remove everything from `offset` on. Durable when this returns."""
        return await self._run(lambda: self._find_cut(offset, is_forced=is_forced))

    async def restart_at(self, offset: int, *, tombstones_copied: int) -> TruncateResult:
        """Remove everything, and let the log begin and end at `offset`."""
        self._tombstones_copied = tombstones_copied
        return await self._run(lambda: _Cut(Truncation(offset, -1, 0, 0), ()), start_offset=offset)

    async def _run(
        self, find_cut: Callable[[], _Cut | None], *, start_offset: int | None = None
    ) -> TruncateResult:
        # Before the exclusive section: a run of the cleaner may wait for its turn there.
        async with self._cleaner.interrupted():
            if self._cleaner.is_uncertain:
                raise Unavailable(
                    f"{self._context.name}: it is uncertain which files count until the log is"
                    " opened again"
                )
            work = self._truncate(find_cut, start_offset)
            return await self._context.metadata_file.run_exclusive(work)

    async def _truncate(
        self, find_cut: Callable[[], _Cut | None], start_offset: int | None
    ) -> TruncateResult:
        queue = self._queue
        await self._segments.wait_until_resumed()
        refusal = Unavailable(f"{self._context.name} is being truncated")
        queue.refusal = refusal
        results: list[TruncateResult] = []
        try:
            if queue.pending:
                queue.rewind(queue.pending[0].offset)
            queue.refuse_waiting(refusal)
            queue.refuse_pending(refusal)
            await self._segments.pause_until(self._cut(find_cut, start_offset, results))
        finally:
            if queue.refusal is refusal:
                queue.refusal = None
        if (offline := self._offline()) is not None:
            raise offline
        return results[0]

    async def _cut(
        self,
        find_cut: Callable[[], _Cut | None],
        start_offset: int | None,
        results: list[TruncateResult],
    ) -> None:
        await self._commit.wait_until_committed()
        await self._wait_until_sealed()
        if self._commit.is_stopped:
            return
        before, cut = self._context.state.snapshot, await self._find(find_cut)
        if cut is None:
            results.append(TruncateResult(before.durable.offset, 0, 0))
            return
        if self._segments.sealing in cut.kept[:-1]:
            raise Unavailable(
                f"{self._context.name}: a segment before offset {cut.truncation.end_offset} could"
                f" not be sealed: {self._segments.seal_error}"
            )
        await self._before_truncation(cut.truncation.end_offset)
        try:
            await self._apply(cut, start_offset)
        except (OSError, CorruptFile) as error:
            # It is uncertain what is on the disk until the log is opened again.
            self._go_offline(error)
            return
        removed = [s for s in before.segments if s not in cut.kept]
        size = sum(s.size for s in removed)
        if cut.kept:
            size += cut.kept[-1].size - cut.truncation.size
        end = cut.truncation.end_offset
        results.append(TruncateResult(end, before.durable.offset - end, size))
        self._context.on_change()

    async def _find(self, find_cut: Callable[[], _Cut | None]) -> _Cut | None:
        try:
            return await self._context.background.run(find_cut)
        except OSError as error:
            failed = StorageFailed(f"{self._context.name}: nothing was truncated: {error}")
            raise transient_error(self._context.name, error) or failed from error

    async def _wait_until_sealed(self) -> None:
        """Wait until no segment is being sealed; try once more if that has failed."""
        self._segments.seal_again()
        while self._segments.is_sealing and not self._commit.is_stopped:
            await self._context.tasks.changed()

    async def _apply(self, cut: _Cut, start_offset: int | None) -> None:
        """Record the truncation, remove what is behind it, and forget it again."""
        metadata_file = self._context.metadata_file
        intended = self._intend(cut.truncation, start_offset)
        await metadata_file.write(intended, frees_space=True)
        result = await self._cut_files(cut)
        if cut.kept and result.last is None:
            raise CorruptFile(
                f"{cut.kept[-1].path}: is damaged before byte {cut.truncation.size}, where the log"
                " was truncated"
            )
        self._publish(cut, result, start_offset)
        await metadata_file.write(intended.truncated_to(cut.truncation.end_offset))

    def _find_cut(self, offset: int, *, is_forced: bool) -> _Cut | None:
        """Return where to cut; `None` if the log ends at `offset`."""
        snapshot = self._context.state.snapshot
        start, end = snapshot.start, snapshot.durable.offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(offset, start=start, end=end)
        if offset == end:
            return None
        kept = tuple(s for s in snapshot.segments if s.base_offset < offset)
        truncation = Truncation(offset, -1, 0, 0)
        if kept:
            position, cut_offset = batch_start(kept[-1], offset, limit=kept[-1].size)
            if position == 0:
                kept = kept[:-1]
                position = kept[-1].size if kept else 0
            truncation = Truncation(cut_offset, -1, 0, 0)
            if kept:
                generation = getattr(kept[-1], "generation", 0)
                truncation = Truncation(cut_offset, kept[-1].base_offset, generation, position)
        if truncation.end_offset < start:
            raise OffsetOutOfRange(truncation.end_offset, start=start, end=end)
        if truncation.end_offset < self._high_watermark() and not is_forced:
            raise RequestError(
                f"{self._context.name} must not be truncated below its high watermark"
                f" {self._high_watermark()}, got {truncation.end_offset}"
            )
        return _Cut(truncation, kept)

    def _intend(self, truncation: Truncation, start_offset: int | None) -> PartitionMetadata:
        """Return the metadata that record a truncation before it begins."""
        partition, snapshot = self._context.metadata_file.partition, self._context.state.snapshot
        if start_offset is not None:
            decisions = partition.decisions
            if decisions is not None:
                copied = self._tombstones_copied
                decisions = replace(decisions, tombstones_copied=copied)
            return replace(
                partition,
                start_offset=start_offset,
                epochs=(LeaderEpoch(0, start_offset),),  # No batch is left that has another.
                eviction_floor=min(partition.eviction_floor, start_offset),
                truncation=truncation,
                decisions=decisions,
            )
        if snapshot.start > partition.start_offset:
            # Caps derive the start from the end, so it would move back.
            bases = (s.base_offset for s in snapshot.segments if s.next_offset > snapshot.start)
            partition = partition.starting_at(
                snapshot.start,
                first_base=next(bases, snapshot.start),
                eviction_floor=snapshot.eviction_floor,
                eviction_reason=snapshot.eviction_reason,
            )
        return replace(partition, truncation=truncation)

    async def _cut_files(self, cut: _Cut) -> CutLog:
        last = cut.kept[-1] if cut.kept else None
        created_ms = None
        for segment in self._context.state.snapshot.segments:
            if isinstance(segment, GrowingSegment):
                segment.open()  # Readers in flight keep the file that they read.
                if segment is last:
                    created_ms = segment.stats.created_ms
        work = partial(
            cut_log,
            self._context.log_directory,
            cut.truncation,
            now_ms=self._now_ms(),
            created_ms=created_ms,
            is_mapped=not isinstance(last, GrowingSegment),
        )
        return await self._context.background.run(work)

    def _publish(self, cut: _Cut, result: CutLog, start_offset: int | None) -> None:
        state = self._context.state
        for segment in state.snapshot.segments:
            if isinstance(segment, SealedSegment) and segment not in cut.kept[:-1]:
                segment.forget()
        end_offset, base_offset, _, size = cut.truncation
        segments = list(cut.kept)
        if result.last is not None:
            segments[-1] = result.last
        end = LogPosition(end_offset, base_offset, size)
        if start_offset is not None:
            state.restart_at(start_offset)
        else:
            state.truncate(segments, end)
        self._segments.restart()
        self._commit.restart(end_offset)
        self._on_repair(end_offset, OFFSET_INFINITY)  # What was damaged there is gone.
        self._queue.rewind(end_offset)
        self._queue.next_offset = end_offset

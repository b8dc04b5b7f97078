"""What the parts of a run of cleaning share: what is there, what to rewrite, what was done.

See `cleaning.py` for the rules that a run keeps.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from millstream.config.schema import LogConfig
from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.plan import SegmentGroup
from millstream.storage.compaction.rewrite import RewriteResult, ThrottleCallback, rewrite
from millstream.storage.compaction.rewrite_output import RewriteOutput
from millstream.storage.compaction.segment_swap import SegmentSwap
from millstream.storage.disk.executor import Executor
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import LogSnapshot
from millstream.storage.segment.segment import SealedSegment

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CleanerResult:
    """What a run of cleaning did."""

    segments_before: int = 0
    """Segments that were replaced, and below, how many took their place."""
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed_records: int = 0
    compacted_offset: int | None = None
    """Up to which offset the log was compacted, if it was."""
    seconds: float = 0.0

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to do."""
        return self.segments_before == 0 and self.compacted_offset is None


class CleanerMemory:
    """What is remembered from one run to the next, as long as the log is open."""

    def __init__(self) -> None:
        self.damaged: set[str] = set()
        """Segments that cannot be read, by path."""
        self.cleaned_offset = 0
        """How far compaction came, where a wall keeps that from being durable."""
        self.walls: tuple[SealedSegment, ...] = ()
        """The damaged segments that it went around then."""
        self.front_since_ms: dict[str, int] = {}
        """Since when segments are known to have a dead front, by path."""
        self.front_tried = ("", 0)
        """The segment whose dead front cannot be made smaller, and the first offset then."""


RunStart: TypeAlias = tuple[CleanerResult, float]
"""What had been done at some time, and when that was."""


class CleanerRun:
    """One run of cleaning."""

    def __init__(
        self,
        context: LogContext,
        switching: SegmentSwap,
        memory: CleanerMemory,
        *,
        config: LogConfig,
        removal_hooks: RemovalHooks | None,
        background: Executor,
        pace: ThrottleCallback,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        memory_bytes_max: int,
        seed: int,
        is_forced: bool,
    ) -> None:
        self.context = context
        self._switching = switching
        self.memory = memory
        self.config = config
        self.removal_hooks = removal_hooks
        self.background = background
        self.pace = pace
        self.now_ms = now_ms
        self.monotonic = monotonic
        self.memory_bytes_max = memory_bytes_max
        self.seed = seed
        self.is_forced = is_forced
        self._are_hooks_notified = False
        self.done = CleanerResult()

    async def look(self) -> tuple[LogSnapshot, int]:
        """Return what there is, with no change half done, and the end of what is settled."""
        snapshot = await self.context.metadata_file.run_exclusive(self._snapshot())
        end = snapshot.committed.offset
        hooks = self.removal_hooks
        return snapshot, end if hooks is None else min(end, hooks.stable_offset())

    async def _snapshot(self) -> LogSnapshot:
        return self.context.state.snapshot

    def cleaned_offset(self, snapshot: LogSnapshot) -> int:
        """Return how far the log is compacted.

        What is remembered beyond what is durable holds only while the segments that were left out
        are still damaged, or are gone: otherwise their keys would never be compared.
        """
        durable, memory = self.context.metadata_file.partition.cleaned_offset, self.memory
        present = [segment for segment in memory.walls if segment in snapshot.segments]
        is_true = all(self.is_damaged(segment, snapshot) for segment in present)
        return max(durable, memory.cleaned_offset if is_true else 0)

    async def rewrite(
        self, inputs: SegmentGroup, rules: FilterRules, *, keeps_markers: bool = False
    ) -> RewriteResult:
        """Rewrite some segments as one, and put that in their place."""
        counters, done = self.context.counters, self.done
        rewritten = await self.background.run(
            partial(
                rewrite,
                self.context.log_directory,
                inputs,
                rules,
                keeps_markers=keeps_markers,
                pace=self.pace,
            )
        )
        counters.cleaned_bytes_read += rewritten.bytes_read
        if rewritten.output is None:
            if rules.deleted:
                await self._switching.unmask(inputs[0], rules.deleted)
            return rewritten
        counters.cleaned_bytes_written += rewritten.bytes_written
        await self._switch(inputs, rewritten.output, rules.deleted)
        counters.removed_records += rewritten.removed_records
        done.removed_records += rewritten.removed_records
        done.segments_before += len(inputs)
        done.segments_after += 1
        done.bytes_before += sum(segment.size for segment in inputs)
        done.bytes_after += rewritten.output.segment.size
        return rewritten

    async def wait_for_removals(self) -> None:
        """Return when what was rewritten is gone from the disk, as far as it lets it go."""
        await self._switching.wait_for_removals()

    async def _switch(
        self, inputs: SegmentGroup, output: RewriteOutput, removed: array[int]
    ) -> None:
        """Put what was written in the place of what it was made from."""
        if self.removal_hooks is not None and not self._are_hooks_notified:
            # Not in turn with the changes of the log: the hooks may need one of these themselves.
            await self._switching.or_withdraw(output, self.removal_hooks.before_removal())
            self._are_hooks_notified = True
        await self._switching.switch(inputs, output, removed)

    def is_damaged(self, segment: SealedSegment, snapshot: LogSnapshot) -> bool:
        """Whether a segment is known to be damaged, or it is not known what was deleted in it."""
        mask = snapshot.masks.get(segment.base_offset)
        return segment.path in self.memory.damaged or (mask is not None and mask.damage is not None)

    def begin(self) -> RunStart:
        """Take note of what was done so far, for `tell`."""
        return replace(self.done), self.monotonic()

    def tell(self, what: str, first: int, end: int, begun: RunStart) -> None:
        """Tell the operator what was done since `begun`."""
        before, began = begun
        done = self.done
        logger.info(
            "%s: %s offsets %d to %d: %d segments with %d bytes became %d with %d bytes,"
            " %d records went, in %.3f s",
            *(self.context.name, what, first, end - 1),
            done.segments_before - before.segments_before,
            done.bytes_before - before.bytes_before,
            done.segments_after - before.segments_after,
            done.bytes_after - before.bytes_after,
            done.removed_records - before.removed_records,
            self.monotonic() - began,
        )


def deleted_offsets_in(segments: Sequence[SealedSegment], snapshot: LogSnapshot) -> array[int]:
    """Return the offsets of all records in some segments that are masked, in order."""
    masked = array("q")
    for segment in segments:
        if segment.base_offset in snapshot.masks:
            masked.extend(snapshot.masks[segment.base_offset].offsets)
    return masked

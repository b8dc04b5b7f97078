"""State that the passes of one cleaner run share.

See `cleaner.py` for the rules that a run keeps.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from millstream.config.schema import LogConfig
from millstream.records.decision import CleaningDecision
from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.plan import SegmentGroup, rewritable_segments
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
    """Result of a cleaner run."""

    segments_before: int = 0
    """Number of segments that were replaced; `segments_after` is the number that replaced them."""
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed_records: int = 0
    compacted_offset: int | None = None
    """Offset up to which the log was compacted, if it was."""
    seconds: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return self.segments_before == 0 and self.compacted_offset is None


class CleanerMemory:
    """State kept from one run to the next, as long as the log is open."""

    def __init__(self) -> None:
        self.damaged: set[str] = set()
        """Paths of segments that cannot be read."""
        self.cleaned_offset = 0
        """Offset up to which compaction is done, if a wall keeps it from being made durable."""
        self.walls: tuple[SealedSegment, ...] = ()
        """The damaged segments that were left out then."""
        self.carried_out: CleaningDecision | None = None
        """The decision that is carried out as far as these segments allow."""
        self.front_since_ms: dict[str, int] = {}
        """By path: since when a segment is known to have a dead front."""
        self.front_tried = ("", 0)
        """The segment whose dead front cannot be made smaller, and the start offset then."""


RunStart: TypeAlias = tuple[CleanerResult, float]
"""Copy of the results so far, and the time of the copy."""


class CleanerRun:
    """One run of the cleaner."""

    def __init__(
        self,
        context: LogContext,
        swap: SegmentSwap,
        memory: CleanerMemory,
        *,
        config: LogConfig,
        removal_hooks: RemovalHooks | None,
        background: Executor,
        throttle: ThrottleCallback,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        memory_bytes_max: int,
        seed: int,
        is_forced: bool,
        is_replica: bool,
    ) -> None:
        self.context = context
        self._swap = swap
        self.memory = memory
        self.config = config
        self.removal_hooks = removal_hooks
        self.background = background
        self.throttle = throttle
        self.now_ms = now_ms
        self.monotonic = monotonic
        self.memory_bytes_max = memory_bytes_max
        self.seed = seed
        self.is_forced = is_forced
        self._is_replica = is_replica
        self._are_hooks_notified = False
        self.done = CleanerResult()

    @property
    def decision(self) -> CleaningDecision | None:
        """What the leader has decided; `None` if the log has no replicas, and decides itself."""
        decisions = self.context.metadata_file.partition.decisions
        return None if decisions is None else decisions.cleaning

    @property
    def is_compacting(self) -> bool:
        """Whether keys are compared: as the log is set up, or because that was decided."""
        return self.config.is_compacted if self.decision is None else self.decision.upto > 0

    def rewritable(self, snapshot: LogSnapshot, end: int) -> list[SealedSegment]:
        """Return the segments before `end` that this run may rewrite."""
        segments = snapshot.segments[:-1] if self._is_replica else snapshot.segments
        return rewritable_segments(segments, start=snapshot.start, end=end)

    async def snapshot(self) -> tuple[LogSnapshot, int]:
        """Return a snapshot without half-done changes, and the end of the settled records."""
        snapshot = await self.context.metadata_file.run_exclusive(self._snapshot())
        end = snapshot.committed.offset
        hooks = self.removal_hooks
        return snapshot, end if hooks is None else min(end, hooks.stable_offset())

    async def _snapshot(self) -> LogSnapshot:
        return self.context.state.snapshot

    def cleaned_offset(self, snapshot: LogSnapshot) -> int:
        """Return the offset up to which the log is compacted.

        The value in memory may be beyond the durable one. It is valid only while the segments that
        were left out are still damaged, or gone: otherwise their keys would never be compared.
        """
        durable, memory = self.context.metadata_file.partition.cleaned_offset, self.memory
        present = [segment for segment in memory.walls if segment in snapshot.segments]
        is_true = all(self.is_damaged(segment, snapshot) for segment in present)
        return max(durable, memory.cleaned_offset if is_true else 0)

    async def rewrite(
        self, inputs: SegmentGroup, rules: FilterRules, *, keeps_markers: bool = False
    ) -> RewriteResult:
        """Rewrite segments as one, and swap it in."""
        counters, done = self.context.counters, self.done
        rewritten = await self.background.run(
            partial(
                rewrite,
                self.context.log_directory,
                inputs,
                rules,
                keeps_markers=keeps_markers,
                throttle=self.throttle,
            )
        )
        counters.cleaned_bytes_read += rewritten.bytes_read
        if rewritten.output is None:
            if rules.deleted:
                await self._swap.unmask(inputs[0], rules.deleted)
            return rewritten
        counters.cleaned_bytes_written += rewritten.bytes_written
        await self._swap_in(inputs, rewritten.output, rules.deleted)
        counters.removed_records += rewritten.removed_records
        done.removed_records += rewritten.removed_records
        done.segments_before += len(inputs)
        done.segments_after += 1
        done.bytes_before += sum(segment.size for segment in inputs)
        done.bytes_after += rewritten.output.segment.size
        return rewritten

    async def wait_for_removals(self) -> None:
        """Wait until the files of replaced segments are removed, as far as the disk allows."""
        await self._swap.wait_for_removals()

    async def _swap_in(
        self, inputs: SegmentGroup, output: RewriteOutput, removed: array[int]
    ) -> None:
        """Replace the inputs by the output."""
        if self.removal_hooks is not None and not self._are_hooks_notified:
            # Outside the exclusive section: the hooks may need to change the log themselves.
            await self._swap.withdraw_on_failure(output, self.removal_hooks.before_removal())
            self._are_hooks_notified = True
        await self._swap.swap(inputs, output, removed)

    def is_damaged(self, segment: SealedSegment, snapshot: LogSnapshot) -> bool:
        """Whether a segment is known to be damaged, or its deleted records are unknown."""
        mask = snapshot.masks.get(segment.base_offset)
        return segment.path in self.memory.damaged or (mask is not None and mask.damage is not None)

    def begin(self) -> RunStart:
        """Return the results so far, for `log_result`."""
        return replace(self.done), self.monotonic()

    def log_result(self, what: str, first: int, end: int, begun: RunStart) -> None:
        """Log what was done since `begun`."""
        before, began = begun
        done = self.done
        logger.info(
            "%s: %s offsets %d to %d: %d segments with %d bytes became %d with %d bytes,"
            " %d records removed, in %.3f s",
            *(self.context.name, what, first, end - 1),
            done.segments_before - before.segments_before,
            done.bytes_before - before.bytes_before,
            done.segments_after - before.segments_after,
            done.bytes_after - before.bytes_after,
            done.removed_records - before.removed_records,
            self.monotonic() - began,
        )


def deleted_offsets_in(segments: Sequence[SealedSegment], snapshot: LogSnapshot) -> array[int]:
    """Return the masked offsets of all records in some segments, in order."""
    masked = array("q")
    for segment in segments:
        if segment.base_offset in snapshot.masks:
            masked.extend(snapshot.masks[segment.base_offset].offsets)
    return masked

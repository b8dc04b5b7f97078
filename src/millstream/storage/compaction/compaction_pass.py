"""Compaction pass of a cleaner run: see `cleaner.py` for the rules that it keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from millstream.errors import Unavailable
from millstream.records.decision import CleaningDecision
from millstream.records.filter.keys.table import KeyTable
from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.cleaner_run import CleanerRun, deleted_offsets_in
from millstream.storage.compaction.plan import (
    OFFSET_INFINITY,
    CompactionPlan,
    SegmentGroup,
    first_unreadable_offset,
    group_segments,
    is_carried_out,
    plan_compaction,
    plan_decided,
)
from millstream.storage.compaction.rewrite import (
    NEVER_MS,
    RewriteResult,
    UnsettledTransaction,
    fill_key_table,
)
from millstream.storage.segment.log_state import LogSnapshot
from millstream.storage.segment.segment import SealedSegment


class KeyMemoryExceeded(Unavailable):
    """The memory is not enough for the keys of a single batch."""


class CompactionPass:
    """Keeps the latest record of each key."""

    def __init__(self, run: CleanerRun) -> None:
        self._run = run

    async def compact(self) -> None:
        """Compact what is worthwhile."""
        snapshot, settled_end = await self._run.snapshot()
        segments = self._run.rewritable(snapshot, settled_end)
        walls = tuple(segment for segment in segments if self._run.is_damaged(segment, snapshot))
        wall = first_unreadable_offset(
            segments, start=snapshot.start, is_damaged=walls.__contains__
        )
        cleaned, decision = self._run.cleaned_offset(snapshot), self._run.decision
        plan = self._plan([segment for segment in segments if segment not in walls], cleaned)
        if plan is None:
            return
        begun = self._run.begin()
        table = KeyTable(memory_bytes_max=self._run.memory_bytes_max, seed=self._run.seed)
        upto = OFFSET_INFINITY if decision is None else decision.upto
        end, torn = await self._fill_key_table(table, plan, snapshot, cleaned, upto)
        if end <= max(cleaned, plan.segments[0].base_offset) and plan.dirty:
            return
        due_ms, has_tombstones = NEVER_MS, False
        for group in group_segments(
            [segment for segment in plan.segments if segment.base_offset < end],
            config=self._run.config,
            breaks={wall, torn},
            is_forced=self._run.is_forced,
        ):
            rewritten = await self._compact_group(
                group, table, snapshot, end=end, wall=wall, decision=decision
            )
            due_ms = min(due_ms, rewritten.tombstones_due_ms)
            has_tombstones |= rewritten.has_tombstones
        await self._run.context.metadata_file.run_exclusive(
            self._write_cleaned(
                min(end, wall), due_ms, decision=decision, has_tombstones=has_tombstones
            )
        )
        memory = self._run.memory
        memory.cleaned_offset, memory.walls = end, walls
        if decision is not None and end >= decision.upto:
            memory.carried_out = decision
        self._run.done.compacted_offset = end
        self._run.log_result("compacted", plan.segments[0].base_offset, end, begun)

    def _plan(self, segments: list[SealedSegment], cleaned: int) -> CompactionPlan | None:
        """Return what to compact of the readable segments, if anything."""
        partition = self._run.context.metadata_file.partition
        if (decision := self._run.decision) is not None:
            memory = self._run.memory
            is_done = cleaned >= decision.upto and memory.carried_out == decision
            if is_done or is_carried_out(partition):
                return None
            return plan_decided(segments, decision, cleaned)
        return plan_compaction(
            segments,
            cleaned_offset=cleaned,
            config=self._run.config,
            now_ms=self._run.now_ms(),
            tombstones_due_ms=partition.tombstones_due_ms or None,
            is_forced=self._run.is_forced,
        )

    async def _compact_group(
        self,
        inputs: SegmentGroup,
        table: KeyTable,
        snapshot: LogSnapshot,
        *,
        end: int,
        wall: int,
        decision: CleaningDecision | None,
    ) -> RewriteResult:
        """Rewrite a group without the removed records.

        Tombstones and markers stay if some of the records that they refer to are unknown.
        """
        is_known = inputs[-1].next_offset <= wall
        may_remove_tombstones = is_known and inputs[-1].next_offset <= end
        rules = replace(
            self._rules(inputs, snapshot),
            key_table=table,
            now_ms=self._run.now_ms(),
            tombstone_ms=self._run.config.tombstone_ms if may_remove_tombstones else None,
        )
        if decision is not None:
            tombstones_before = min(decision.tombstones_before, end) if is_known else 0
            rules = replace(
                rules, tombstones_before=tombstones_before, cleanings_before=decision.upto
            )
        return await self._run.rewrite(inputs, rules, keeps_markers=not is_known)

    def _rules(self, inputs: SegmentGroup, snapshot: LogSnapshot) -> FilterRules:
        """Return the rules that remove records of some segments regardless of their keys."""
        removal_hooks, aborted = self._run.removal_hooks, None
        if removal_hooks is not None:
            aborted = removal_hooks.aborted(inputs[0].base_offset, inputs[-1].next_offset)
        return FilterRules(
            start_offset=snapshot.start,
            deleted=deleted_offsets_in(inputs, snapshot),
            aborted=aborted,
        )

    async def _fill_key_table(
        self, table: KeyTable, plan: CompactionPlan, snapshot: LogSnapshot, cleaned: int, upto: int
    ) -> tuple[int, int]:
        """Fill the table from the dirty segments; return E, and the segment that contains E, or -1.

        E is at most `upto`.
        If the memory is not enough for all of a segment, E is the start of that segment, and the
        keys of it in the table are harmless. Only if it is the first, E is inside it. A segment
        with transactions of unknown outcome is not compacted, nor what follows it.
        """
        for segment in plan.dirty:
            rules = self._rules((segment,), snapshot)
            try:
                added_until = await self._run.background.run(
                    partial(
                        fill_key_table,
                        table,
                        segment,
                        rules,
                        start=cleaned,
                        end=upto,
                        throttle=self._run.throttle,
                    )
                )
            except UnsettledTransaction:
                return segment.base_offset, -1
            if added_until == segment.next_offset:
                continue
            if added_until == upto:
                return upto, segment.base_offset
            if segment is not plan.dirty[0]:
                return segment.base_offset, -1
            if added_until <= max(cleaned, segment.base_offset):
                raise KeyMemoryExceeded(
                    f"the key table must have at most {self._run.memory_bytes_max} bytes, and the"
                    f" keys of the batch at offset {added_until} need more"
                )
            return added_until, segment.base_offset
        last = plan.segments[-1]
        return min(last.next_offset, upto), last.base_offset if last.next_offset > upto else -1

    async def _write_cleaned(
        self, offset: int, due_ms: int, *, decision: CleaningDecision | None, has_tombstones: bool
    ) -> None:
        """Save the compacted offset, and the time at which the next tombstone expires."""
        metadata_file = self._run.context.metadata_file
        partition = metadata_file.partition
        decisions = partition.decisions
        if decision is not None and decisions is not None:
            removed = min(decision.tombstones_before, offset)
            decisions = replace(
                decisions, tombstones_cleaned=max(decisions.tombstones_cleaned, removed)
            )
            # Which tombstones are left is known, and how old they are say the marks.
            times = [mark.ms for mark in decisions.marks if mark.upto > removed]
            is_waiting = has_tombstones and bool(times)
            due_ms = min(times) + self._run.config.tombstone_ms if is_waiting else NEVER_MS
        partition = replace(
            partition,
            cleaned_offset=max(partition.cleaned_offset, offset),
            tombstones_due_ms=0 if due_ms == NEVER_MS else due_ms,
            decisions=decisions,
        )
        if partition != metadata_file.partition:
            await metadata_file.write(partition)

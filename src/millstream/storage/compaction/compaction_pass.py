"""Compaction pass of a cleaner run: see `cleaner.py` for the rules that it keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from millstream.errors import Unavailable
from millstream.records.filter.keys.table import KeyTable
from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.cleaner_run import CleanerRun, deleted_offsets_in
from millstream.storage.compaction.plan import (
    CompactionPlan,
    SegmentGroup,
    first_unreadable_offset,
    group_segments,
    plan_compaction,
    rewritable_segments,
)
from millstream.storage.compaction.rewrite import NEVER_MS, UnsettledTransaction, fill_key_table
from millstream.storage.segment.log_state import LogSnapshot


class KeyMemoryExceeded(Unavailable):
    """The memory is not enough for the keys of a single batch."""


class CompactionPass:
    """Keeps the latest record of each key."""

    def __init__(self, run: CleanerRun) -> None:
        self._run = run

    async def compact(self) -> None:
        """Compact what is worthwhile."""
        snapshot, settled_end = await self._run.snapshot()
        segments = rewritable_segments(snapshot.segments, start=snapshot.start, end=settled_end)
        walls = tuple(segment for segment in segments if self._run.is_damaged(segment, snapshot))
        wall = first_unreadable_offset(
            segments, start=snapshot.start, is_damaged=walls.__contains__
        )
        cleaned = self._run.cleaned_offset(snapshot)
        plan = plan_compaction(
            [segment for segment in segments if segment not in walls],
            cleaned_offset=cleaned,
            config=self._run.config,
            now_ms=self._run.now_ms(),
            tombstones_due_ms=self._run.context.metadata_file.partition.tombstones_due_ms or None,
            is_forced=self._run.is_forced,
        )
        if plan is None:
            return
        begun = self._run.begin()
        table = KeyTable(memory_bytes_max=self._run.memory_bytes_max, seed=self._run.seed)
        end, torn = await self._fill_key_table(table, plan, snapshot, cleaned)
        if end <= max(cleaned, plan.segments[0].base_offset) and plan.dirty:
            return
        due_ms = NEVER_MS
        for group in group_segments(
            [segment for segment in plan.segments if segment.base_offset < end],
            config=self._run.config,
            breaks={wall, torn},
            is_forced=self._run.is_forced,
        ):
            due_ms = min(due_ms, await self._compact_group(group, table, snapshot, end, wall))
        await self._run.context.metadata_file.run_exclusive(
            self._write_cleaned(min(end, wall), due_ms)
        )
        self._run.memory.cleaned_offset, self._run.memory.walls = end, walls
        self._run.done.compacted_offset = end
        self._run.log_result("compacted", plan.segments[0].base_offset, end, begun)

    async def _compact_group(
        self, inputs: SegmentGroup, table: KeyTable, snapshot: LogSnapshot, end: int, wall: int
    ) -> int:
        """Rewrite a group without the removed records; return when its next tombstone expires.

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
        rewritten = await self._run.rewrite(inputs, rules, keeps_markers=not is_known)
        return rewritten.tombstones_due_ms

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
        self, table: KeyTable, plan: CompactionPlan, snapshot: LogSnapshot, cleaned: int
    ) -> tuple[int, int]:
        """Fill the table from the dirty segments; return E, and the segment that contains E, or -1.

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
                        throttle=self._run.throttle,
                    )
                )
            except UnsettledTransaction:
                return segment.base_offset, -1
            if added_until == segment.next_offset:
                continue
            if segment is not plan.dirty[0]:
                return segment.base_offset, -1
            if added_until <= max(cleaned, segment.base_offset):
                raise KeyMemoryExceeded(
                    f"the key table must have at most {self._run.memory_bytes_max} bytes, and the"
                    f" keys of the batch at offset {added_until} need more"
                )
            return added_until, segment.base_offset
        return plan.segments[-1].next_offset, -1

    async def _write_cleaned(self, offset: int, due_ms: int) -> None:
        """Save the compacted offset, and the time at which the next tombstone expires."""
        metadata_file = self._run.context.metadata_file
        partition = replace(
            metadata_file.partition,
            cleaned_offset=max(metadata_file.partition.cleaned_offset, offset),
            tombstones_due_ms=0 if due_ms == NEVER_MS else due_ms,
        )
        if partition != metadata_file.partition:
            await metadata_file.write(partition)

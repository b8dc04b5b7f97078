"""Reclaiming what was deleted, and merging, in a run of cleaning: no key is compared here.

Transactions are left as they are. See `cleaning.py` for the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.cleaner_run import CleanerRun, deleted_offsets_in
from millstream.storage.compaction.plan import (
    RULES_WAITING_MAX,
    SegmentGroup,
    first_deleted_offset,
    group_segments,
    is_worth_reclaiming,
    rewritable_segments,
)
from millstream.storage.segment.log_state import LogSnapshot
from millstream.storage.segment.segment import SealedSegment


class MergePass:
    """Takes deleted records out of the files, and makes few segments of many."""

    def __init__(self, run: CleanerRun) -> None:
        self._run = run

    async def tidy(self) -> None:
        """Reclaim and merge what is worth it."""
        snapshot, _ = await self._run.look()
        segments = [
            segment
            for segment in rewritable_segments(
                snapshot.segments, start=snapshot.start, end=snapshot.committed.offset
            )
            if not self._run.is_damaged(segment, snapshot)
        ]
        wanted = await self._wanted(segments, snapshot)
        for each in self._groups(segments, self._run.cleaned_offset(snapshot)):
            if len(each) > 1 or each[0] in wanted:
                begun = self._run.begin()
                rules = FilterRules(
                    start_offset=snapshot.start, deleted=deleted_offsets_in(each, snapshot)
                )
                rewritten = await self._run.rewrite(each, rules)
                if rewritten.output is None:
                    self._run.memory.front_tried = (each[0].path, snapshot.start)
                    continue
                what = "merged" if len(each) > 1 else "reclaimed"
                self._run.tell(what, each[0].base_offset, each[-1].next_offset, begun)

    def _groups(self, segments: Sequence[SealedSegment], cleaned: int) -> list[SegmentGroup]:
        """Divide segments into those that become one.

        Merging what is still to be compacted would only make it wait longer, since a segment is as
        young as the youngest in it; so only clean segments are merged, unless all shall be.
        """
        clean = [segment for segment in segments if segment.next_offset <= cleaned]
        dirty, config, is_forced = segments[len(clean) :], self._run.config, self._run.is_forced
        return [
            *group_segments(clean, config=config, is_forced=is_forced),
            *group_segments(dirty, config=config, is_merging=is_forced, is_forced=is_forced),
        ]

    async def _wanted(
        self, segments: Sequence[SealedSegment], snapshot: LogSnapshot
    ) -> set[SealedSegment]:
        """Return the segments that are to be rewritten without what was deleted from them."""
        since, now_ms = self._run.memory.front_since_ms, self._run.now_ms()
        rules = self._run.context.metadata_file.partition.deletions
        wanted: set[SealedSegment] = set()
        touched: dict[str, int] = {}
        for segment in segments:
            mask = snapshot.masks.get(segment.base_offset)
            front_bytes = await self._front_bytes(segment, snapshot.start)
            if mask is None and front_bytes == 0:
                continue
            touched[segment.path] = since.get(segment.path, now_ms)
            made_ms = [rule.made_ms for rule in rules if mask and rule.before > segment.base_offset]
            if is_worth_reclaiming(
                segment,
                mask,
                front_bytes=front_bytes,
                waited_ms=now_ms - min(touched[segment.path], *made_ms, now_ms),
                is_pressing=self._run.is_forced or len(rules) > RULES_WAITING_MAX,
            ):
                wanted.add(segment)
        self._run.memory.front_since_ms = touched
        return wanted

    async def _front_bytes(self, segment: SealedSegment, start: int) -> int:
        """Return how much of a segment lies before the first offset of the log; about so much."""
        is_tried = self._run.memory.front_tried == (segment.path, start)
        if segment.base_offset >= start or is_tried:
            return 0
        return await self._run.background.run(lambda: segment.index().for_offset(start).position)

    async def drop_rules(self) -> None:
        """Forget deletions of which nothing is left in any file.

        Not before the files are gone that held it: should what took their place be damaged before
        that, people may want to go back to them, and must not find there what was deleted.
        """
        await self._run.wait_for_removals()
        if self._run.context.metadata_file.partition.deletions:
            await self._run.context.metadata_file.run_exclusive(self._write_rules())

    async def _write_rules(self) -> None:
        metadata_file = self._run.context.metadata_file
        first = first_deleted_offset(self._run.context.state.snapshot.masks)
        left = tuple(rule for rule in metadata_file.partition.deletions if rule.before > first)
        if left != metadata_file.partition.deletions:
            await metadata_file.write(replace(metadata_file.partition, deletions=left))

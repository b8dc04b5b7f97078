"""Merge pass of a cleaner run: reclaims deleted records and merges segments.

It does not compare keys. Transactions are left as they are. See `cleaner.py` for the rules.
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
)
from millstream.storage.segment.log_state import LogSnapshot
from millstream.storage.segment.segment import SealedSegment


class MergePass:
    """Removes deleted records from the files, and merges small segments."""

    def __init__(self, run: CleanerRun) -> None:
        self._run = run

    async def merge(self) -> None:
        """Reclaim and merge what is worthwhile."""
        snapshot, _ = await self._run.snapshot()
        segments = [
            segment
            for segment in self._run.rewritable(snapshot, snapshot.committed.offset)
            if not self._run.is_damaged(segment, snapshot)
        ]
        reclaimable = await self._reclaimable(segments, snapshot)
        for group in self._groups(segments, self._run.cleaned_offset(snapshot)):
            if len(group) > 1 or group[0] in reclaimable:
                begun = self._run.begin()
                rules = FilterRules(
                    start_offset=snapshot.start, deleted=deleted_offsets_in(group, snapshot)
                )
                rewritten = await self._run.rewrite(group, rules)
                if rewritten.output is None:
                    self._run.memory.front_tried = (group[0].path, snapshot.start)
                    continue
                what = "merged" if len(group) > 1 else "reclaimed"
                self._run.log_result(what, group[0].base_offset, group[-1].next_offset, begun)

    def _groups(self, segments: Sequence[SealedSegment], cleaned: int) -> list[SegmentGroup]:
        """Divide segments into groups, each of which becomes one segment.

        Merging segments that are still to be compacted would only delay that, since a segment is as
        young as the youngest in it; so only clean segments are merged, unless the run is forced.
        """
        clean = [segment for segment in segments if segment.next_offset <= cleaned]
        dirty, config, is_forced = segments[len(clean) :], self._run.config, self._run.is_forced
        return [
            *group_segments(clean, config=config, is_forced=is_forced),
            *group_segments(dirty, config=config, is_merging=is_forced, is_forced=is_forced),
        ]

    async def _reclaimable(
        self, segments: Sequence[SealedSegment], snapshot: LogSnapshot
    ) -> set[SealedSegment]:
        """Return the segments to rewrite without their deleted records."""
        since, now_ms = self._run.memory.front_since_ms, self._run.now_ms()
        rules = self._run.context.metadata_file.partition.deletions
        reclaimable: set[SealedSegment] = set()
        touched: dict[str, int] = {}
        # What retention evicted from the front goes with the rest of its segment.
        deleted = snapshot.start if snapshot.start > snapshot.eviction_floor else 0
        for segment in segments:
            mask = snapshot.masks.get(segment.base_offset)
            front_bytes = await self._front_bytes(segment, deleted)
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
                reclaimable.add(segment)
        self._run.memory.front_since_ms = touched
        return reclaimable

    async def _front_bytes(self, segment: SealedSegment, start: int) -> int:
        """Return about how many bytes of a segment are before the start offset of the log."""
        is_tried = self._run.memory.front_tried == (segment.path, start)
        if segment.base_offset >= start or is_tried:
            return 0
        return await self._run.background.run(lambda: segment.index().for_offset(start).position)

    async def drop_rules(self) -> None:
        """Remove the rules of deletions whose records are gone from all files.

        Not before the replaced files are removed: if the new segment is damaged before that, an
        operator may want to go back to the old ones, and must not find deleted records there.
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

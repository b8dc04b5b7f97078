"""Deletion of records by key, anywhere in a log.

    delete_keys ──► which records of which segments? ──► rule durable ──► masks published ──► count
                    (key indexes, or a scan)             partition.json    records invisible

The rule is what is durable: a key or a prefix, and the offset before which it applies. The offsets
that it matches are found before it is written, and again whenever the log is opened; in between,
masks in memory hold them. The bytes are removed later, when segments are rewritten, and the rule
with the last of them. So after a crash either the rule exists or it does not.

If writing the rule fails, the caller gets an error, and the file may have the rule or not. The
masks are not published then. If the rule was written after all, its records disappear when the log
is opened the next time, unless another change has replaced the file before.

In a cluster a deletion is a decision in the log (`replica/log_decisions.py`), which comes here when
its batch is committed, and again after a crash: to apply a rule twice has no effect.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from millstream.errors import (
    MillstreamError,
    OffsetOutOfRange,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.disk.errors import transient_error
from millstream.storage.files.partition_metadata import DeletionRule, PartitionMetadata
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.keys.key_index import find_deleted_offsets
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import (
    DeletedOffsets,
    LogSnapshot,
    committed_size,
    merge_deleted_offsets,
    subtract_offsets,
    visible_segments,
)
from millstream.storage.segment.segment import GrowingSegment, Segment

logger = logging.getLogger(__name__)

DELETIONS_MAX = 10_000
"""Default for the number of rules that may be pending until their records are reclaimed."""

PATTERN_SIZE_MAX = 64 * 1024
"""Longer keys can be appended, and deleted by one of their prefixes."""

RULES_BYTES_MAX = 8 * 1024 * 1024
"""Size limit of all rules in `partition.json`: half of the size limit of that file."""

ROLL_BYTES_MIN = 16 * 1024 * 1024
"""A growing segment has no key index, so a deletion reads all of it. One of at least this size is
sealed afterwards, so that the next deletion does not read it again.
"""


def match_for(*, key: bytes | None = None, prefix: bytes | None = None) -> KeyMatch:
    """Return the match of a deletion: exactly one of a key and a prefix."""
    if (key is None) == (prefix is None):
        raise RequestError("a deletion needs either a key or a prefix")
    if prefix == b"":
        raise RequestError("an empty prefix matches every key: delete before an offset instead")
    pattern = key if key is not None else prefix
    assert pattern is not None
    if len(pattern) > PATTERN_SIZE_MAX:
        raise RequestError(
            f"a key or prefix must have at most {PATTERN_SIZE_MAX} bytes, got {len(pattern)}"
        )
    return KeyMatch(pattern, is_prefix=prefix is not None)


def resolve_deleted_offsets(
    segments: Sequence[Segment], partition: PartitionMetadata, end_offset: int
) -> dict[int, DeletedOffsets]:
    """Return the deleted offsets of all segments of a log that is being opened. Blocks.

    `Log` calls it in its constructor, in the thread that opens it. A segment whose deleted records
    cannot be determined gets a mask that says so; errors of the operating system are raised,
    because the next attempt may succeed.
    """
    masks: dict[int, DeletedOffsets] = {}
    for segment in segments if partition.deletions else ():
        rules = _rules_for(segment, partition.deletions)
        if not rules or segment.next_offset <= partition.start_offset:
            continue
        # All data that recovery found is committed.
        limit = segment.size if segment.base_offset < end_offset else 0
        try:
            mask = find_deleted_offsets(segment, rules, start=partition.start_offset, limit=limit)
        except MillstreamError as error:
            logger.warning("deleted records of %s cannot be determined: %s", segment.path, error)
            mask = DeletedOffsets(array("q"), 0, damage=error)
        if mask.offsets or mask.damage:
            masks[segment.base_offset] = mask
    return masks


def _rules_for(segment: Segment, deletions: Sequence[DeletionRule]) -> list[DeletionRule]:
    """Return the rules that can match records of a segment."""
    return [deletion for deletion in deletions if deletion.before > segment.base_offset]


class KeyDeletions:
    """The deletions by key of one log.

    `now_ms` returns the time of the retention clock. `roll` schedules the sealing of the growing
    segment.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        now_ms: Callable[[], int],
        deletions_max: int,
        roll: Callable[[], None],
    ) -> None:
        self._context = context
        self._now_ms = now_ms
        self._deletions_max = deletions_max
        self._roll = roll

    async def delete(self, match: KeyMatch, *, before: int) -> int:
        """Hide all matching records before offset `before`; return their number.

        The rule is durable when this returns, and the records are invisible. Nothing is written if
        nothing matches.
        """
        return await self._context.metadata_file.run_exclusive(self._delete(match, before))

    async def _delete(self, match: KeyMatch, before: int) -> int:
        self.check(match, before)
        return await self.apply(match, before)

    def check(self, match: KeyMatch, before: int | None) -> None:
        """Raise if a deletion is not possible: `OffsetOutOfRange`, or too many are pending."""
        context = self._context
        snapshot = context.state.snapshot
        if before is not None and before > snapshot.committed.offset:
            raise OffsetOutOfRange(before, start=snapshot.start, end=snapshot.committed.offset)
        cold = next((s for s in visible_segments(snapshot) if isinstance(s, ColdSegment)), None)
        if cold is not None and (before is None or cold.base_offset < before):
            raise RequestError(
                f"{context.name}: records cannot be deleted by key from segments in a cold store,"
                f" and offset {cold.base_offset} is in one; delete before an offset instead"
            )
        rule = DeletionRule(match, before or snapshot.committed.offset, self._now_ms())
        self._check_limits(with_deletion(context.metadata_file.partition, rule))

    async def apply(self, match: KeyMatch, before: int, *, decided_offset: int = 0) -> int:
        """Hide the matching records, as `delete` does. Only in the exclusive section of the log.

        `decided_offset` is that after the decision, if the deletion is one in the log.
        """
        context = self._context
        snapshot = context.state.snapshot
        deletion = DeletionRule(match, before, self._now_ms())
        partition = with_deletion(context.metadata_file.partition, deletion)
        if (applied := partition.decisions) is not None:
            offset = max(applied.offset, decided_offset)
            partition = replace(partition, decisions=replace(applied, offset=offset))
        hits = await self._find(deletion, snapshot)
        self._roll_if_large(snapshot)
        if not hits:
            return 0
        try:
            await context.metadata_file.write(partition)
        except OSError as error:
            # The file may have the rule or not: see the docstring of this module.
            failed = StorageFailed(f"{context.name}: the deletion may have failed: {error}")
            raise transient_error(context.name, error) or failed from error
        context.state.mask_deleted({base: hit.mask for base, hit in hits.items()})
        count = sum(hit.records for hit in hits.values())
        context.counters.deletions += 1
        context.counters.deleted_records += count
        context.on_change()
        logger.info(
            "%s: deleted %d records by %s before offset %d, %d bytes to reclaim",
            *(context.name, count, "prefix" if match.is_prefix else "key", before),
            sum(hit.bytes for hit in hits.values()),
        )
        return count

    async def _find(self, deletion: DeletionRule, snapshot: LogSnapshot) -> dict[int, _DeletionHit]:
        """Return the matching records that are not masked yet, by segment.

        One segment at a time, so that other work gets its turn on the disk's threads. Records
        committed meanwhile are at or after `before`.
        """
        context = self._context
        hits: dict[int, _DeletionHit] = {}
        for segment in visible_segments(snapshot):
            if segment.base_offset >= deletion.before:
                break
            try:
                hit = await context.background.run(partial(_hit, segment, deletion, snapshot))
            except OSError as error:
                failed = StorageFailed(f"{context.name}: nothing was deleted: {error}")
                raise transient_error(context.name, error) or failed from error
            if hit is not None:
                hits[segment.base_offset] = hit
        return hits

    def _check_limits(self, partition: PartitionMetadata) -> None:
        name, rules = self._context.name, partition.deletions
        if len(rules) > self._deletions_max:
            raise Unavailable(
                f"{name}: at most {self._deletions_max} deletions may be pending until their"
                f" records are reclaimed, {len(rules) - 1} are"
            )
        if (size := sum(_rule_size(rule) for rule in rules)) > RULES_BYTES_MAX:
            raise Unavailable(
                f"{name}: pending deletions must have at most {RULES_BYTES_MAX} bytes, got {size}"
            )

    def _roll_if_large(self, snapshot: LogSnapshot) -> None:
        last = snapshot.segments[-1] if snapshot.segments else None
        if isinstance(last, GrowingSegment) and last.size >= ROLL_BYTES_MIN:
            self._roll()


def with_deletion(partition: PartitionMetadata, deletion: DeletionRule) -> PartitionMetadata:
    """Return `partition` with one more rule. It replaces a rule with the same match.

    It keeps the age of that rule, whose records have been pending since then.
    """
    others = []
    for rule in partition.deletions:
        if rule.match == deletion.match:
            before, made_ms = max(deletion.before, rule.before), rule.made_ms
            deletion = DeletionRule(rule.match, before, made_ms)
        else:
            others.append(rule)
    return replace(partition, deletions=(*others, deletion))


def _rule_size(deletion: DeletionRule) -> int:
    """Return an upper bound for the size of a rule in `partition.json`."""
    return 2 * len(deletion.match.pattern) + 40


class _DeletionHit(NamedTuple):
    """The records of one segment that a deletion matches."""

    records: int
    """Number of records that were not masked before; `bytes` is their size."""
    bytes: int
    mask: DeletedOffsets
    """All deleted offsets of the segment, old and new."""


def _hit(segment: Segment, deletion: DeletionRule, snapshot: LogSnapshot) -> _DeletionHit | None:
    """Return the matching records of a segment that are not masked yet. Blocks."""
    limit = committed_size(snapshot, segment)
    matched = find_deleted_offsets(segment, [deletion], start=snapshot.start, limit=limit)
    known = snapshot.masks.get(segment.base_offset)
    if known is not None:
        matched = subtract_offsets(matched, known.offsets)
    if not matched.offsets:
        return None
    mask = matched if known is None else merge_deleted_offsets([known, matched])
    return _DeletionHit(len(matched.offsets), matched.bytes, mask)

"""Deleting records by key, wherever they lie in a log.

    delete_keys ──► which records of which segments? ──► rule durable ──► masks published ──► count
                    (key indexes, or a scan)             partition.json    nobody sees them

The durable thing is the rule: a key or a prefix, and the offset before which it counts. Which
offsets it hits is found before it is written down, and again whenever the log is opened; in
between, masks say it. The bytes go later, when segments are rewritten, and with the last of them
the rule. So a crash finds the rule or does not; what is masked is a matter of memory.

If the rule cannot be written the caller is told so, and the file may say either. The masks are not
published then. Should the rule be there after all, its records are gone once the log is opened
again, unless another change of the file has taken its place before.
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
"""How many rules may wait until their records are gone from the files, unless set otherwise."""

PATTERN_SIZE_MAX = 64 * 1024
"""Longer keys can be appended, and deleted by a prefix of them."""

RULES_BYTES_MAX = 8 * 1024 * 1024
"""How much all rules may take in `partition.json`, half of what that can be read with."""

ROLL_BYTES_MIN = 16 * 1024 * 1024
"""A growing segment has no key index, so a deletion reads all of it. One of this size is sealed
after that, so that the next deletion does not read it again."""


def match_for(*, key: bytes | None = None, prefix: bytes | None = None) -> KeyMatch:
    """Return what a deletion is to hit: exactly one of a key and a prefix."""
    if (key is None) == (prefix is None):
        raise RequestError("a deletion needs a key or a prefix, and not both")
    if prefix == b"":
        raise RequestError("a prefix of 0 bytes hits every key: delete before an offset instead")
    pattern = key if key is not None else prefix
    assert pattern is not None
    if len(pattern) > PATTERN_SIZE_MAX:
        raise RequestError(f"pattern has {len(pattern)} bytes, limit is {PATTERN_SIZE_MAX}")
    return KeyMatch(pattern, is_prefix=prefix is not None)


def resolve_deleted_offsets(
    segments: Sequence[Segment], partition: PartitionMetadata, end_offset: int
) -> dict[int, DeletedOffsets]:
    """Return what is masked in the segments of a log that is being opened. Blocks.

    `Log` calls it when it is made, in the thread that opens it, so nobody else has to. A segment
    in which it cannot be told what was deleted gets a mask that says so; what the operating system
    refuses is raised, because it may be different at the next try.
    """
    masks: dict[int, DeletedOffsets] = {}
    for segment in segments if partition.deletions else ():
        rules = _rules_for(segment, partition.deletions)
        if not rules or segment.next_offset <= partition.start_offset:
            continue
        # What recovery found is all committed.
        limit = segment.size if segment.base_offset < end_offset else 0
        try:
            mask = find_deleted_offsets(segment, rules, start=partition.start_offset, limit=limit)
        except MillstreamError as error:
            logger.warning("what was deleted in %s cannot be told: %s", segment.path, error)
            mask = DeletedOffsets(array("q"), 0, damage=error)
        if mask.offsets or mask.damage:
            masks[segment.base_offset] = mask
    return masks


def _rules_for(segment: Segment, deletions: Sequence[DeletionRule]) -> list[DeletionRule]:
    """Return the rules that can hit anything in a segment."""
    return [deletion for deletion in deletions if deletion.before > segment.base_offset]


class KeyDeletions:
    """The deletions by key of one log.

    `now_ms` is steady time. `roll` has the growing segment sealed, in its own time.
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
        """Hide all records that match and lie before `before`; returns how many it hid.

        The rule is durable when this returns, and the records are invisible. Nothing is written
        down where nothing is hit.
        """
        return await self._context.metadata_file.run_exclusive(self._delete(match, before))

    async def _delete(self, match: KeyMatch, before: int) -> int:
        context = self._context
        snapshot = context.state.snapshot
        if before > snapshot.committed.offset:
            raise OffsetOutOfRange(before, start=snapshot.start, end=snapshot.committed.offset)
        deletion = DeletionRule(match, before, self._now_ms())
        partition = _with_deletion(context.metadata_file.partition, deletion)
        self._check_limits(partition)
        hits = await self._find(deletion, snapshot)
        self._roll_if_large(snapshot)
        if not hits:
            return 0
        try:
            await context.metadata_file.write(partition)
        except OSError as error:
            # The file may say either: see the head of this file.
            failed = StorageFailed(f"{context.name}: may not have been deleted: {error}")
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
        """Return what is hit and not masked yet, by segment.

        One segment after the other, so that other work of the disk's threads gets its turn. What
        is committed meanwhile lies at or past `before`.
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
                f"{name}: {len(rules) - 1} deletions wait for their records to be reclaimed,"
                f" limit is {self._deletions_max}"
            )
        if (size := sum(_rule_size(rule) for rule in rules)) > RULES_BYTES_MAX:
            raise Unavailable(
                f"{name}: deletions that wait for their records to be reclaimed would take {size}"
                f" bytes, limit is {RULES_BYTES_MAX}"
            )

    def _roll_if_large(self, snapshot: LogSnapshot) -> None:
        last = snapshot.segments[-1] if snapshot.segments else None
        if isinstance(last, GrowingSegment) and last.size >= ROLL_BYTES_MIN:
            self._roll()


def _with_deletion(partition: PartitionMetadata, deletion: DeletionRule) -> PartitionMetadata:
    """Return the same with one more rule. It takes the place of a rule with the same match.

    It is as old as that, because what that hit has waited for as long.
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
    """Return about how many bytes a rule takes in `partition.json`, and not less."""
    return 2 * len(deletion.match.pattern) + 40


class _DeletionHit(NamedTuple):
    """What a deletion hits in one segment."""

    records: int
    """How many were not masked before, and how many bytes these take."""
    bytes: int
    mask: DeletedOffsets
    """What is masked then, with all that was."""


def _hit(segment: Segment, deletion: DeletionRule, snapshot: LogSnapshot) -> _DeletionHit | None:
    """Return what a deletion hits in a segment that is not masked already. Blocks."""
    limit = committed_size(snapshot, segment)
    found = find_deleted_offsets(segment, [deletion], start=snapshot.start, limit=limit)
    known = snapshot.masks.get(segment.base_offset)
    if known is not None:
        found = subtract_offsets(found, known.offsets)
    if not found.offsets:
        return None
    mask = found if known is None else merge_deleted_offsets([known, found])
    return _DeletionHit(len(found.offsets), found.bytes, mask)

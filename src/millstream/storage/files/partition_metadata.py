"""`partition.json`: metadata of a partition that its log does not contain.

Its durability class and its start offset, which recovery has to know before it can say what must be
there; and the history of its leader epochs: which epoch began at which offset. An epoch is durable
here before the first batch has it, so every batch can be checked against it.

Version 2 came with deletion: the start offset may be inside a segment, and segments before that one
may still exist. A release that knows only version 1 would consider such a log damaged, or even
remove what it believes was never acknowledged; so it must not read it. Until something is deleted
the two versions mean the same, and version 1 is written, which both can read.

Version 3 came with rewritten segments, deletion by key and eviction. A release that knows none of
them would show deleted records, or misread the files of a rewrite. It is written as soon as one of
these fields has a value:

    eviction_floor     records before it were evicted by retention; at most the start offset
    cleaned_offset     compaction has covered everything before it
    is_rewritten       whether there may be segments of generation 1 or more
    deletions          [["key" or "prefix", pattern in hex, before, made ms], ...]: rules that still
                       apply to files, and the time of the retention clock at which they were made
    tombstones_due_ms  when the next tombstone may be removed, by the retention clock; only if one
                       waits

Version 4 is written while the log is being truncated, and only then. A release that knows no
truncation would take the segments that are already removed for lost ones:

    truncation         [end offset, base offset, generation, bytes]: the end of the log, and the
                       last segment that stays, with the bytes of it that stay; base offset -1 if
                       none does. Opening the log finishes the truncation

Version 5 came with decisions in the log itself (`records/decision.py`), and is written for every
log of a cluster. A release that does not know them would show records that were deleted by one:

    decisions          offset             decisions in batches before it are applied: their rules
                                          are in `deletions`, or not needed any more
                       cleaning           [upto, tombstones before] of the newest cleaning decision
                       marks              [[upto, ms], ...]: when decisions up to this offset were
                                          applied here, by the retention clock of this node
                       tombstones_cleaned tombstones before it were removed from all files
                       tombstones_copied  the log was copied from one that had removed the
                                          tombstones before it

A log that a broker created has, in all versions, the id of its topic (`topic_id`); other releases
ignore it. A log with an id that is not in the metadata shows that the metadata was lost. A log
without one was created by an embedded store, which gives it an id of its own (`embedded_id`).
Cursors name these ids.

More fields may be in any version, because a release that does not know them loses nothing, and
only keeps records longer:

    caps               [bytes or null, records or null]: the limits by which readers see the end of
                       the log only. What they left is the same after a crash, and if other limits
                       apply later, the start is made durable first
    age_marks          [[offset, ms], ...]: records before the offset were appended before this time
                       of the retention clock
    eviction_reason    the policy that moved the eviction floor last: "age", "bytes" or "records";
                       missing if a release before this field moved it
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millstream.config.schema import Durability
from millstream.errors import CorruptFile
from millstream.records.decision import CleaningDecision
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.record import GAP_REASONS, RETENTION
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.ballast import BallastFile
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.names import PARTITION_FILE

_KIND = "millstream-partition"
_VERSION = 6
_VERSION_UNTIL_TIERS = 5
_VERSION_UNTIL_DECISIONS = 4
_VERSION_UNTIL_TRUNCATION = 3
_VERSION_UNTIL_REWRITING = 2
_VERSION_UNTIL_DELETION = 1
_KINDS = {"key": False, "prefix": True}
"""The kinds of a match, and whether each is a prefix match."""


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """A leader epoch, and the offset of the first batch that could have it."""

    number: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class DeletionRule:
    """A rule: records with a matching key and an offset below `before` are deleted."""

    match: KeyMatch
    before: int
    made_ms: int = 0
    """When it was requested, by the retention clock: its records leave the disk in bounded
    time.
    """


class Caps(NamedTuple):
    """Limits of what readers see of a log."""

    bytes_max: int | None
    records_max: int | None


NO_CAPS = Caps(None, None)


class AgeMark(NamedTuple):
    """Records before the offset were appended before this time of the retention clock."""

    offset: int
    ms: int


class Truncation(NamedTuple):
    """A truncation that is not finished: the new end of the log."""

    end_offset: int
    segment: int
    """Base offset of the last segment that stays; -1 if none does."""
    generation: int
    size: int
    """Bytes of that segment that stay."""


class CleaningMark(NamedTuple):
    """A cleaning decision up to the offset was applied at this time of the retention clock."""

    upto: int
    ms: int


NOTHING_DECIDED = CleaningDecision(0, 0)


@dataclass(frozen=True, slots=True)
class AppliedDecisions:
    """How far the decisions in a log are applied."""

    offset: int = 0
    """Decisions in batches before it are applied."""

    cleaning: CleaningDecision = NOTHING_DECIDED
    """The newest cleaning decision."""

    marks: tuple[CleaningMark, ...] = ()
    """Offsets and times increase."""

    tombstones_cleaned: int = 0
    """Tombstones before it were removed from all files."""

    tombstones_copied: int = 0
    """The log was copied from one that had removed the tombstones before it."""

    @property
    def tombstones_removed(self) -> int:
        """Tombstones before it may be missing."""
        return max(self.cleaning.tombstones_before, self.tombstones_copied)

    def ending_at(self, end_offset: int) -> AppliedDecisions:
        """Return a copy for a log that has lost everything from `end_offset` on."""
        cleaning = self.cleaning
        return replace(
            self,
            offset=min(self.offset, end_offset),
            cleaning=CleaningDecision(
                min(cleaning.upto, end_offset), min(cleaning.tombstones_before, end_offset)
            ),
            marks=tuple(mark for mark in self.marks if mark.upto <= end_offset),
            tombstones_cleaned=min(self.tombstones_cleaned, end_offset),
        )


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The content of `partition.json`."""

    durability: Durability = Durability.FSYNC

    start_offset: int = 0
    """First offset of the log: at the start of its first segment, or inside it."""

    epochs: tuple[LeaderEpoch, ...] = (LeaderEpoch(0, 0),)
    """Never empty; numbers increase, start offsets never decrease."""

    eviction_floor: int = 0
    """Records before it were evicted: a reader below it gets a gap."""

    cleaned_offset: int = 0
    """Compaction has covered everything before it."""

    is_rewritten: bool = False
    """Whether there may be rewritten segments."""

    deletions: tuple[DeletionRule, ...] = ()
    """Rules that may still apply to records in a file, in the order in which they were made."""

    tombstones_due_ms: int = 0
    """When compaction may remove the next known tombstone, by the retention clock; 0 is never."""

    topic_id: uuid.UUID | None = None
    """The id of the topic in the metadata of a broker; `None` if no broker has used the log."""

    embedded_id: uuid.UUID | None = None
    """The id that an embedded store gave to the log."""

    caps: Caps = NO_CAPS
    """Records that these limits leave out are evicted, even before the start offset is."""

    age_marks: tuple[AgeMark, ...] = ()
    """Offsets and times increase."""

    eviction_reason: str = RETENTION
    """Why the floor was moved last. It is the reason of the whole gap."""

    truncation: Truncation | None = None
    """What is left to do: everything from its end offset on is to be removed."""

    decisions: AppliedDecisions | None = None
    """`None`: the log was never part of a cluster, and has no decisions."""

    is_tiered: bool = False
    """Whether there may be segments whose `.log` is only in a cold store."""

    @property
    def cursor_id(self) -> uuid.UUID | None:
        """The id that cursors of the log name."""
        return self.topic_id or self.embedded_id

    @property
    def leader_epoch(self) -> int:
        """The newest epoch."""
        return self.epochs[-1].number

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of a segment with base offset `offset`."""
        count = bisect_right(self.epochs, offset, key=lambda epoch: epoch.start_offset)
        return self.epochs[max(count - 1, 0)].number

    def epoch_end(self, epoch: int, end_offset: int) -> tuple[int, int] | None:
        """Return the newest epoch not after `epoch`, and the offset after its last batch.

        `end_offset` is that of the log. `None` if `epoch` is newer than all that are known, or
        negative. For an epoch before the first known one the answer is that epoch itself, and the
        start of the first: nothing of it is left.
        """
        if epoch == self.leader_epoch:
            return epoch, end_offset
        after = bisect_right(self.epochs, epoch, key=lambda known: known.number)
        if epoch < 0 or after == len(self.epochs):
            return None
        number = self.epochs[after - 1].number if after > 0 else epoch
        return number, self.epochs[after].start_offset

    def with_epoch(self, number: int, start_offset: int) -> PartitionMetadata:
        """Return a copy with one more epoch. An epoch that no batch ever had is replaced."""
        kept = tuple(epoch for epoch in self.epochs if epoch.start_offset < start_offset)
        return replace(self, epochs=(*kept, LeaderEpoch(number, start_offset)))

    def starting_at(
        self,
        start_offset: int,
        *,
        first_base: int,
        eviction_floor: int | None = None,
        eviction_reason: str | None = None,
    ) -> PartitionMetadata:
        """Return a copy with all records before `start_offset` deleted.

        `first_base` is the base offset of the first segment that is kept. Epochs that ended before
        it are dropped: no batch has them any more. The eviction floor and its reason stay unless
        they are given.
        """
        first = bisect_right(self.epochs, first_base, key=lambda epoch: epoch.start_offset)
        return replace(
            self,
            start_offset=start_offset,
            epochs=self.epochs[max(first - 1, 0) :],
            eviction_floor=self.eviction_floor if eviction_floor is None else eviction_floor,
            eviction_reason=eviction_reason or self.eviction_reason,
            age_marks=tuple(mark for mark in self.age_marks if mark.offset > start_offset),
        )

    def ending_at(self, end_offset: int) -> PartitionMetadata:
        """Return a copy for a log that has lost everything from `end_offset` on.

        Offsets from there on are assigned again, to records that no rule and no compaction has
        covered.
        """
        return replace(
            self,
            cleaned_offset=min(self.cleaned_offset, end_offset),
            deletions=tuple(
                replace(deletion, before=min(deletion.before, end_offset))
                for deletion in self.deletions
            ),
            age_marks=tuple(
                mark._replace(offset=min(mark.offset, end_offset)) for mark in self.age_marks
            ),
            decisions=None if self.decisions is None else self.decisions.ending_at(end_offset),
        )

    def with_unclean(self, offset: int) -> PartitionMetadata:
        """Return a copy for a log that got other segments from `offset` on, less clean perhaps."""
        decisions = self.decisions
        if decisions is not None:
            decisions = replace(
                decisions,
                offset=min(decisions.offset, offset),
                tombstones_cleaned=min(decisions.tombstones_cleaned, offset),
            )
        cleaned_offset = min(self.cleaned_offset, offset)
        return replace(self, cleaned_offset=cleaned_offset, decisions=decisions)

    def truncated_to(self, end_offset: int) -> PartitionMetadata:
        """Return a copy for a log that was truncated to `end_offset`.

        Epochs of which no batch is left are forgotten: others may come in their place.
        """
        kept = tuple(epoch for epoch in self.epochs if epoch.start_offset < end_offset)
        return replace(
            self.ending_at(end_offset),
            epochs=kept or (LeaderEpoch(0, end_offset),),
            truncation=None,
        )


def read_partition_metadata(filesystem: Filesystem, directory: str) -> PartitionMetadata:
    """Read `partition.json`; raise `FileNotFoundError` or `CorruptFile`."""
    path = join(directory, PARTITION_FILE)
    content = read_document(filesystem, path, _KIND, _VERSION)
    try:
        partition = PartitionMetadata(
            durability=Durability(content["durability"]),
            start_offset=int(content["start_offset"]),
            epochs=tuple(_epoch(item) for item in content["leader_epochs"]),
            eviction_floor=int(content.get("eviction_floor", 0)),
            cleaned_offset=int(content.get("cleaned_offset", 0)),
            is_rewritten=bool(content.get("is_rewritten", False)),
            tombstones_due_ms=int(content.get("tombstones_due_ms", 0)),
            deletions=tuple(_deletion(item) for item in content.get("deletions", ())),
            topic_id=_id(content.get("topic_id")),
            embedded_id=_id(content.get("embedded_id")),
            caps=_caps(content.get("caps", NO_CAPS)),
            age_marks=tuple(_age_mark(item) for item in content.get("age_marks", ())),
            eviction_reason=_reason(content.get("eviction_reason")),
            truncation=_truncation(content.get("truncation")),
            decisions=_decisions(content.get("decisions")),
            is_tiered=bool(content.get("is_tiered", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(f"{path}: {error!r}") from error
    if not partition.epochs:
        raise CorruptFile(f"{path}: no leader epoch")
    if not 0 <= partition.eviction_floor <= partition.start_offset:
        raise CorruptFile(
            f"{path}: eviction floor {partition.eviction_floor}"
            f" is beyond start offset {partition.start_offset}"
        )
    return partition


def write_partition_metadata(
    filesystem: Filesystem,
    directory: str,
    partition: PartitionMetadata,
    *,
    ballast: BallastFile | None = None,
) -> None:
    """Replace `partition.json`; durable when this returns. On a full disk, `ballast` is used."""
    epochs = [[epoch.number, epoch.start_offset] for epoch in partition.epochs]
    content: dict[str, Any] = {
        "durability": partition.durability.value,
        "start_offset": partition.start_offset,
        "leader_epochs": epochs,
    }
    if partition.topic_id is not None:
        content["topic_id"] = str(partition.topic_id)
    version = _VERSION_UNTIL_REWRITING if partition.start_offset > 0 else _VERSION_UNTIL_DELETION
    later: dict[str, Any] = {
        "eviction_floor": partition.eviction_floor,
        "cleaned_offset": partition.cleaned_offset,
        "is_rewritten": partition.is_rewritten,
        "deletions": [_as_item(deletion) for deletion in partition.deletions],
    }
    if partition.tombstones_due_ms:
        later["tombstones_due_ms"] = partition.tombstones_due_ms
    if any(later.values()):
        content |= later
        version = _VERSION_UNTIL_TRUNCATION
    if partition.truncation is not None:
        content["truncation"] = list(partition.truncation)
        version = _VERSION_UNTIL_DECISIONS
    if partition.decisions is not None:
        content["decisions"] = _as_document(partition.decisions)
        version = _VERSION_UNTIL_TIERS
    if partition.is_tiered:
        content["is_tiered"] = True
        version = _VERSION
    if partition.caps != NO_CAPS:
        content["caps"] = list(partition.caps)
    if partition.age_marks:
        content["age_marks"] = [list(mark) for mark in partition.age_marks]
    if partition.eviction_reason != RETENTION:
        content["eviction_reason"] = partition.eviction_reason
    if partition.embedded_id is not None:
        content["embedded_id"] = str(partition.embedded_id)
    write_document(
        filesystem,
        directory,
        PARTITION_FILE,
        content,
        kind=_KIND,
        version=version,
        ballast=ballast,
    )


def _epoch(item: Any) -> LeaderEpoch:
    number, start_offset = item
    return LeaderEpoch(int(number), int(start_offset))


def _id(text: Any) -> uuid.UUID | None:
    return None if text is None else uuid.UUID(text)


def _caps(item: Any) -> Caps:
    bytes_max, records_max = (None if limit is None else int(limit) for limit in item)
    return Caps(bytes_max, records_max)


def _age_mark(item: Any) -> AgeMark:
    offset, ms = item
    return AgeMark(int(offset), int(ms))


def _truncation(item: Any) -> Truncation | None:
    return None if item is None else Truncation(*(int(number) for number in item))


def _decisions(item: Any) -> AppliedDecisions | None:
    if item is None:
        return None
    return AppliedDecisions(
        offset=int(item["offset"]),
        cleaning=CleaningDecision(*(int(offset) for offset in item["cleaning"])),
        marks=tuple(CleaningMark(int(upto), int(ms)) for upto, ms in item["marks"]),
        tombstones_cleaned=int(item["tombstones_cleaned"]),
        tombstones_copied=int(item["tombstones_copied"]),
    )


def _as_document(decisions: AppliedDecisions) -> dict[str, Any]:
    return {
        "offset": decisions.offset,
        "cleaning": [decisions.cleaning.upto, decisions.cleaning.tombstones_before],
        "marks": [list(mark) for mark in decisions.marks],
        "tombstones_cleaned": decisions.tombstones_cleaned,
        "tombstones_copied": decisions.tombstones_copied,
    }


def _reason(stored: Any) -> str:
    """Return a stored reason; one of a later release is shown as the general one."""
    return stored if stored in GAP_REASONS else RETENTION


def _deletion(item: Any) -> DeletionRule:
    kind, pattern, before, made_ms = item
    match = KeyMatch(bytes.fromhex(pattern), is_prefix=_KINDS[kind])
    return DeletionRule(match, int(before), int(made_ms))


def _as_item(deletion: DeletionRule) -> list[str | int]:
    kind = "prefix" if deletion.match.is_prefix else "key"
    return [kind, deletion.match.pattern.hex(), deletion.before, deletion.made_ms]

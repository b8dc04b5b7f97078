"""What a verification found."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from millstream.audit.verification.ack_index import IndexedAck
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding, FindingKind

DISCREPANCIES_MAX = 100
"""Records that are lost or different and are listed; all are counted."""

FINDINGS_MAX = 1000
"""Findings that are listed; all are counted."""


class AckOutcome(enum.Enum):
    """What became of a record that was acknowledged."""

    FOUND = "found"
    """It is there, and is what was sent."""

    BEFORE_START = "before_start"
    """It lies before the first offset of its partition: retention took it, or a deletion."""

    COMPACTED = "compacted"
    """It is gone, and so it may be: a later record has its key, or it was a tombstone."""

    DELETED = "deleted"
    """It was deleted by key, or whoever verifies says that it may have been."""

    ABORTED = "aborted"
    """It is there, as part of a transaction that was aborted: nobody is to see it."""

    MADE_ANEW = "made_anew"
    """Its topic was deleted: there is one of that name, with another id."""

    UNPLACED = "unplaced"
    """It was acknowledged without an offset, so nobody can say where it should be."""

    DIFFERENT = "different"
    """There is another record in its place."""

    LOST = "lost"
    """It should be there, and is not."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A record that is lost, or is not what it was."""

    where: TopicPartition
    offset: int
    fate: AckOutcome
    why: str
    file: str
    line: int


@dataclass(slots=True)
class Report:
    """All that was found."""

    fates: Counter[AckOutcome] = field(default_factory=Counter)
    by_topic: dict[str, Counter[AckOutcome]] = field(default_factory=dict)
    misses: list[Discrepancy] = field(default_factory=list)
    """The first of those that are lost or different."""
    findings: list[Finding] = field(default_factory=list)
    """The first things that are damaged or unfinished, whatever was acknowledged."""
    damaged: int = 0
    unfinished: int = 0
    absent: int = 0
    """Gaps between offsets, of which a node does not say why they are there."""
    torn_files: list[str] = field(default_factory=list)
    """Acknowledgement files whose last line was not finished."""
    bytes: int = 0
    """Bytes of logs that were checked."""
    records: int = 0
    """Acknowledgements that were read."""
    offsets_probed: int = 0
    times_probed: int = 0

    @property
    def lost(self) -> int:
        """How many records are not there, or not as they were."""
        return self.fates[AckOutcome.LOST] + self.fates[AckOutcome.DIFFERENT]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost, and nothing damaged."""
        return not self.lost and not self.damaged

    def count(self, topic: str, fate: AckOutcome, number: int = 1) -> None:
        """Note that so many records of a topic met this fate."""
        self.fates[fate] += number
        self.by_topic.setdefault(topic, Counter())[fate] += number

    def miss(self, where: TopicPartition, noted: IndexedAck, fate: AckOutcome, why: str) -> None:
        """Note a record that is lost or different."""
        self.count(where.topic, fate)
        if len(self.misses) < DISCREPANCIES_MAX:
            self.misses.append(Discrepancy(where, noted.offset, fate, why, noted.file, noted.line))

    def find(self, found: Finding) -> None:
        """Note something about a file or a partition."""
        if found.is_damage:
            self.damaged += 1
        elif found.kind is FindingKind.ABSENT:
            self.absent += 1
        else:
            self.unfinished += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(found)

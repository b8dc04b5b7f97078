"""Result of a verification."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from millstream.audit.verification.ack_index import IndexedAck
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding, FindingKind

DISCREPANCIES_MAX = 100
"""Lost and different records that are listed; all are counted."""

FINDINGS_MAX = 1000
"""Findings that are listed; all are counted."""


class AckOutcome(enum.Enum):
    """What the verification found for an acknowledged record."""

    FOUND = "found"
    """Present, with the content that was sent."""

    BEFORE_START = "before_start"
    """Before the first offset of its partition: deleted by retention or on request."""

    COMPACTED = "compacted"
    """Deleted by compaction, rightly: a later record has its key, or it was a tombstone."""

    DELETED = "deleted"
    """Deleted by key, or in a topic whose records may be missing (`--deleted`)."""

    ABORTED = "aborted"
    """Present, as part of an aborted transaction: readers do not see it."""

    RECREATED = "made_anew"
    """Its topic was deleted, and another one was created with the same name."""

    UNPLACED = "unplaced"
    """Acknowledged without an offset, so it cannot be looked for."""

    DIFFERENT = "different"
    """There is another record at its offset."""

    LOST = "lost"
    """It must be present, and is not."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Record that is lost or different."""

    partition: TopicPartition
    offset: int
    outcome: AckOutcome
    why: str
    file: str
    line: int


@dataclass(slots=True)
class Report:
    """Counts, discrepancies and findings."""

    outcomes: Counter[AckOutcome] = field(default_factory=Counter)
    by_topic: dict[str, Counter[AckOutcome]] = field(default_factory=dict)
    discrepancies: list[Discrepancy] = field(default_factory=list)
    """The first lost and different records."""
    findings: list[Finding] = field(default_factory=list)
    """The first damaged or unfinished files, whatever was acknowledged."""
    damaged: int = 0
    unfinished: int = 0
    absent: int = 0
    """Gaps between offsets that a node does not explain."""
    torn_files: list[str] = field(default_factory=list)
    """Acknowledgement files with an unfinished last line."""
    bytes: int = 0
    """Bytes of logs that were checked."""
    records: int = 0
    """Acknowledgements that were read."""
    offsets_probed: int = 0
    times_probed: int = 0

    @property
    def lost(self) -> int:
        """Number of lost and different records."""
        return self.outcomes[AckOutcome.LOST] + self.outcomes[AckOutcome.DIFFERENT]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost and nothing damaged."""
        return not self.lost and not self.damaged

    def count(self, topic: str, outcome: AckOutcome, number: int = 1) -> None:
        """Count records of a topic with this outcome."""
        self.outcomes[outcome] += number
        self.by_topic.setdefault(topic, Counter())[outcome] += number

    def add_discrepancy(
        self, partition: TopicPartition, ack: IndexedAck, outcome: AckOutcome, why: str
    ) -> None:
        """Add a record that is lost or different."""
        self.count(partition.topic, outcome)
        if len(self.discrepancies) < DISCREPANCIES_MAX:
            self.discrepancies.append(
                Discrepancy(partition, ack.offset, outcome, why, ack.file, ack.line)
            )

    def add_finding(self, finding: Finding) -> None:
        """Add a finding about a file or a partition."""
        if finding.is_damage:
            self.damaged += 1
        elif finding.kind is FindingKind.ABSENT:
            self.absent += 1
        else:
            self.unfinished += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

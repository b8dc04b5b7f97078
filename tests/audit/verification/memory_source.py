"""In-memory verification source with chosen batches and acknowledgements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream import AcknowledgementFile
from millstream.audit.verification.ack_index import AckIndex
from millstream.audit.verification.partition_check import PartitionCheck
from millstream.audit.verification.report import Report
from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.records.batch import split, stamp
from millstream.records.build import build_batch
from millstream.records.control import build_marker
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding

WHERE = TopicPartition("orders", 0)
NOW = 1_700_000_000_000


class MemorySource:
    """A source with one partition. `facts()` returns `later` if it is given."""

    def __init__(
        self, batches: Sequence[bytes], facts: PartitionFacts, later: PartitionFacts | None = None
    ) -> None:
        self._batches = batches
        self._facts = later or facts

    def facts(self, where: TopicPartition) -> PartitionFacts | str:
        return self._facts

    def batches(
        self, where: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        for batch in self._batches:
            for header, data in split(batch):
                if header.last_offset >= facts.start:
                    yield IntactBatch(header, data)


def batch(base: int, *records: Record, producer: int = -1, is_transactional: bool = False) -> bytes:
    built = build_batch(
        list(records),
        now_ms=NOW,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        is_transactional=is_transactional,
    )
    return stamp(built, base_offset=base, leader_epoch=0)


def marker(base: int, producer: int, *, is_commit: bool) -> bytes:
    built = build_marker(producer, 0, is_commit=is_commit, coordinator_epoch=0, now_ms=NOW)
    return stamp(built, base_offset=base, leader_epoch=0)


def check(
    directory: Path,
    noted: AcknowledgementFile,
    batches: Sequence[bytes],
    facts: PartitionFacts,
    *,
    later: PartitionFacts | None = None,
    may_be_missing: bool = False,
    entries_max: int = 3,
) -> Report:
    """Check one partition against every recorded acknowledgement, with a small memory limit."""
    noted.flush()
    report = Report()
    source = MemorySource(batches, facts, later)
    with AckIndex(entries_max=entries_max) as ack_index:
        ack_index.read(noted.path)
        for where, due in ack_index.partitions():
            PartitionCheck(
                source,
                where,
                facts,
                ack_index=ack_index,
                report=report,
                may_be_missing=may_be_missing,
            ).run(due)
    return report

"""Comparison of the acknowledgements of one partition with its log.

Both are sorted by offset, so one pass over the log decides about all of them, with two exceptions
that are decided at the end: records that compaction may have deleted, and transactions without a
marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millstream.audit.acknowledgements.checksums import bytes_checksum, headers_checksum
from millstream.audit.verification.ack_index import AckIndex, IndexedAck
from millstream.audit.verification.report import DISCREPANCIES_MAX, AckOutcome, Report
from millstream.audit.verification.source import IntactBatch, PartitionFacts, VerificationSource
from millstream.audit.verification.superseded_keys import SupersededKeys
from millstream.errors import CorruptBatch
from millstream.records.control import read_marker
from millstream.records.iterate import read_records
from millstream.records.record import StoredRecord
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding

_ABORTED = "is part of a transaction that was aborted, though its commit was acknowledged"


@dataclass(slots=True)
class _OpenTransaction:
    """Acknowledged records of a transaction whose marker was not read yet."""

    count: int = 0
    committed: int = 0
    """Number of records that were acknowledged as committed."""
    first: list[IndexedAck] = field(default_factory=list)
    """The first of these: they are lost if the transaction was aborted."""


class PartitionCheck:
    """One pass over one partition."""

    def __init__(
        self,
        source: VerificationSource,
        partition: TopicPartition,
        facts: PartitionFacts,
        *,
        ack_index: AckIndex,
        report: Report,
        may_be_missing: bool = False,
        on_batch: Callable[[IntactBatch], None] | None = None,
    ) -> None:
        self._source = source
        self._partition = partition
        self._facts = facts
        self._facts_are_current = True
        self._report = report
        self._may_be_missing = may_be_missing
        self._on_batch = on_batch
        self._superseded = SupersededKeys(ack_index)
        self._open: dict[int, _OpenTransaction] = {}
        self._acks: Iterator[IndexedAck] = iter(())
        self._next_ack: IndexedAck | None = None
        self._next_offset = facts.start
        """Offset after the last batch that was read."""

    def run(self, acks: Iterator[IndexedAck]) -> None:
        """Read the partition and report the outcome of each of `acks`."""
        with self._superseded:
            self._acks = acks
            self._advance()
            for item in self._source.batches(self._partition, self._facts):
                if isinstance(item, Finding):
                    self._report.add_finding(item)
                    continue
                if self._on_batch is not None:
                    self._on_batch(item)
                self._check_batch(item)
            self._report_missing_before(None)
            for transaction in self._open.values():
                self._count(AckOutcome.FOUND, transaction.count + transaction.committed)
            for missing, may_be_gone in self._superseded.missing():
                if may_be_gone:
                    self._count(AckOutcome.COMPACTED)
                else:
                    self._record_lost(
                        missing,
                        "is missing from a compacted log, and there is no later record of its key",
                    )

    # Reading.

    def _check_batch(self, batch: IntactBatch) -> None:
        header = batch.header
        self._facts_are_current = False
        self._report_missing_before(header.base_offset)
        self._next_offset = header.next_offset
        if header.is_control and header.is_transactional:  # Others end no transaction.
            self._end_transaction(header.producer_id, batch)
        is_due = self._next_ack is not None and self._next_ack.offset < header.next_offset
        if not is_due and not self._superseded.has_missing:
            return
        try:
            records = read_records(batch.data)
        except CorruptBatch as error:
            while self._next_ack is not None and self._next_ack.offset < header.next_offset:
                self._record_lost(self._next_ack, f"its batch cannot be decoded: {error}")
                self._advance()
            return
        if is_due:
            self._compare(batch, records)
        if self._superseded.has_missing and not header.is_control:
            for record in records:
                if record.key is not None:
                    key = bytes_checksum(record.key)
                    assert key is not None
                    self._superseded.add_present(key, record.offset)

    def _compare(self, batch: IntactBatch, records: list[StoredRecord]) -> None:
        by_offset = {record.offset: record for record in records}
        while (ack := self._next_ack) is not None and ack.offset < batch.header.next_offset:
            record = by_offset.get(ack.offset)
            if self._is_of_another_topic(ack):
                self._count(AckOutcome.RECREATED)
            elif ack.offset < self._facts.start:
                self._count(AckOutcome.BEFORE_START)
            elif record is None:
                self._record_missing(ack, "its batch no longer contains it")
            elif batch.header.is_control:
                self._record_different(ack, "a control batch is at its offset")
            elif differences := _differences(ack, record):
                self._record_different(
                    ack, f"the record at its offset has another {' and '.join(differences)}"
                )
            else:
                self._record_match(ack, batch, record)
            self._advance()

    def _record_match(self, ack: IndexedAck, batch: IntactBatch, record: StoredRecord) -> None:
        if self._is_deleted(record.key, ack.offset):
            self._count(AckOutcome.DELETED)
        elif not batch.header.is_transactional:
            self._count(AckOutcome.FOUND)
        else:
            opened = self._open.setdefault(batch.header.producer_id, _OpenTransaction())
            if ack.is_committed:
                opened.committed += 1
                if len(opened.first) < DISCREPANCIES_MAX:
                    opened.first.append(ack)
            else:
                opened.count += 1

    def _end_transaction(self, producer_id: int, batch: IntactBatch) -> None:
        """Decide about the records of a transaction by the marker that ends it."""
        if producer_id not in self._open:
            return
        try:
            marker = read_marker(batch.data)
            if marker is None:  # A control batch of another type.
                return
            is_commit = marker.is_commit
        except CorruptBatch as error:
            what = f"offset {batch.header.base_offset}: {error}"
            self._report.add_finding(Finding(str(self._partition), None, what))
            is_commit = True
        ended = self._open.pop(producer_id)
        if is_commit:
            self._count(AckOutcome.FOUND, ended.count + ended.committed)
            return
        self._count(AckOutcome.ABORTED, ended.count)
        for ack in ended.first:
            self._record_lost(ack, _ABORTED)
        self._count(AckOutcome.LOST, ended.committed - len(ended.first))

    # Missing records.

    def _report_missing_before(self, offset: int | None) -> None:
        """Report all acks before `offset`, or all remaining ones: no batch holds them."""
        while (ack := self._next_ack) is not None and (offset is None or ack.offset < offset):
            if self._is_of_another_topic(ack):
                self._count(AckOutcome.RECREATED)
            elif offset is None and ack.offset >= self._next_offset:
                self._record_missing(ack, f"the partition ends at offset {self._next_offset}")
            else:
                self._record_missing(ack, "no intact batch contains its offset")
            self._advance()

    def _record_missing(self, ack: IndexedAck, why: str) -> None:
        """Report a missing record, after checking whether it may have been deleted."""
        if not self._facts_are_current and ack.offset >= self._facts.start:
            # Retention and compaction may run while this reads.
            facts = self._source.facts(self._partition)
            self._facts = self._facts if isinstance(facts, str) else facts
            self._facts_are_current = True
        if ack.offset < self._facts.start:
            self._count(AckOutcome.BEFORE_START)
        elif self._may_be_missing or self._may_be_deleted(ack):
            self._count(AckOutcome.DELETED)
        elif ack.key is not None and ack.offset < self._facts.compacted_before:
            self._superseded.add_missing(ack)
        else:
            self._record_lost(ack, why)

    def _may_be_deleted(self, ack: IndexedAck) -> bool:
        return any(
            ack.offset < rule.before
            and not rule.match.is_prefix
            and bytes_checksum(rule.match.pattern) == ack.key
            for rule in self._facts.deletions
        )

    def _is_deleted(self, key: bytes | None, offset: int) -> bool:
        return any(
            offset < rule.before and rule.match.matches(key) for rule in self._facts.deletions
        )

    def _is_of_another_topic(self, ack: IndexedAck) -> bool:
        current = self._facts.topic_id
        return None not in (current, ack.topic_id) and ack.topic_id != current

    # Reporting.

    def _advance(self) -> None:
        self._next_ack = next(self._acks, None)

    def _count(self, outcome: AckOutcome, number: int = 1) -> None:
        if number:
            self._report.count(self._partition.topic, outcome, number)

    def _record_lost(self, ack: IndexedAck, why: str) -> None:
        self._report.add_discrepancy(
            self._partition, ack, AckOutcome.LOST, why + self._facts.promise
        )

    def _record_different(self, ack: IndexedAck, why: str) -> None:
        self._report.add_discrepancy(self._partition, ack, AckOutcome.DIFFERENT, why)


def _differences(ack: IndexedAck, record: StoredRecord) -> list[str]:
    """Return the fields of a record that differ from the acknowledgement."""
    differences = []
    if bytes_checksum(record.key) != ack.key:
        differences.append("key")
    if bytes_checksum(record.value) != ack.value:
        differences.append("value")
    if ack.headers is not None and headers_checksum(record.headers) != ack.headers:
        differences.append("headers")
    if ack.timestamp_ms is not None and record.timestamp_ms != ack.timestamp_ms:
        differences.append("timestamp")
    return differences

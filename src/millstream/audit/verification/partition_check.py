"""One partition: everything that was acknowledged in it, against everything that is there.

Both come by rising offset, so one pass over the log decides about all of them, with two exceptions
that are settled at its end: what compaction may have taken, and transactions without a marker.
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
    """What was found of a transaction of which it is not known yet how it ended."""

    count: int = 0
    committed: int = 0
    """How many of them were acknowledged as committed."""
    first: list[IndexedAck] = field(default_factory=list)
    """The first of these: if it was aborted, they are lost."""


class PartitionCheck:
    """A pass over one partition."""

    def __init__(
        self,
        source: VerificationSource,
        where: TopicPartition,
        facts: PartitionFacts,
        *,
        books: AckIndex,
        report: Report,
        is_forgiven: bool = False,
        on_batch: Callable[[IntactBatch], None] | None = None,
    ) -> None:
        self._source = source
        self._where = where
        self._facts = facts
        self._is_fresh = True
        self._report = report
        self._is_forgiven = is_forgiven
        self._on_batch = on_batch
        self._superseded = SupersededKeys(books)
        self._open: dict[int, _OpenTransaction] = {}
        self._noted: Iterator[IndexedAck] = iter(())
        self._due: IndexedAck | None = None
        self._next_offset = facts.start
        """Behind the last batch that was read."""

    def run(self, noted: Iterator[IndexedAck]) -> None:
        """Read the partition, and report what became of all that was `noted` of it."""
        with self._superseded:
            self._noted = noted
            self._advance()
            for found in self._source.batches(self._where, self._facts):
                if isinstance(found, Finding):
                    self._report.find(found)
                    continue
                if self._on_batch is not None:
                    self._on_batch(found)
                self._take(found)
            self._pass_to(None)
            for one in self._open.values():
                self._count(AckOutcome.FOUND, one.count + one.committed)
            for missing, may_be_gone in self._superseded.missing():
                if may_be_gone:
                    self._count(AckOutcome.COMPACTED)
                else:
                    self._lose(
                        missing,
                        "is gone from a log that was compacted, and nothing later of its key is"
                        " there",
                    )

    # Reading.

    def _take(self, held: IntactBatch) -> None:
        header = held.header
        self._is_fresh = False
        self._pass_to(header.base_offset)
        self._next_offset = header.next_offset
        if header.is_control:
            self._end(header.producer_id, held)
        is_due = self._due is not None and self._due.offset < header.next_offset
        if not is_due and not self._superseded.has_missing:
            return
        try:
            records = read_records(held.data)
        except CorruptBatch as error:
            while self._due is not None and self._due.offset < header.next_offset:
                self._lose(self._due, f"its batch cannot be opened: {error}")
                self._advance()
            return
        if is_due:
            self._compare(held, records)
        if self._superseded.has_missing and not header.is_control:
            for record in records:
                if record.key is not None:
                    key = bytes_checksum(record.key)
                    assert key is not None
                    self._superseded.add_there(key, record.offset)

    def _compare(self, held: IntactBatch, records: list[StoredRecord]) -> None:
        by_offset = {record.offset: record for record in records}
        while (noted := self._due) is not None and noted.offset < held.header.next_offset:
            record = by_offset.get(noted.offset)
            if self._is_of_another_topic(noted):
                self._count(AckOutcome.MADE_ANEW)
            elif noted.offset < self._facts.start:
                self._count(AckOutcome.BEFORE_START)
            elif record is None:
                self._miss(noted, "its batch does not hold it any more")
            elif held.header.is_control:
                self._differ(noted, "the end of a transaction is in its place")
            elif differences := _differences(noted, record):
                self._differ(noted, f"there is another {' and '.join(differences)} in its place")
            else:
                self._find(noted, held, record)
            self._advance()

    def _find(self, noted: IndexedAck, held: IntactBatch, record: StoredRecord) -> None:
        if self._is_deleted(record.key, noted.offset):
            self._count(AckOutcome.DELETED)
        elif not held.header.is_transactional:
            self._count(AckOutcome.FOUND)
        else:
            opened = self._open.setdefault(held.header.producer_id, _OpenTransaction())
            if noted.is_committed:
                opened.committed += 1
                if len(opened.first) < DISCREPANCIES_MAX:
                    opened.first.append(noted)
            else:
                opened.count += 1

    def _end(self, producer_id: int, held: IntactBatch) -> None:
        """Decide about what was found of a transaction, by the marker that ends it."""
        ended = self._open.pop(producer_id, None)
        if ended is None:
            return
        try:
            is_commit = read_marker(held.data).is_commit
        except CorruptBatch as error:
            what = f"offset {held.header.base_offset}: {error}"
            self._report.find(Finding(str(self._where), None, what))
            is_commit = True
        if is_commit:
            self._count(AckOutcome.FOUND, ended.count + ended.committed)
            return
        self._count(AckOutcome.ABORTED, ended.count)
        for noted in ended.first:
            self._lose(noted, _ABORTED)
        self._count(AckOutcome.LOST, ended.committed - len(ended.first))

    # What is not there.

    def _pass_to(self, offset: int | None) -> None:
        """Report all that is due before `offset`, or all that is left: no batch holds it."""
        while (noted := self._due) is not None and (offset is None or noted.offset < offset):
            if self._is_of_another_topic(noted):
                self._count(AckOutcome.MADE_ANEW)
            elif offset is None and noted.offset >= self._next_offset:
                self._miss(noted, f"the partition ends at offset {self._next_offset}")
            else:
                self._miss(noted, "no sound batch holds its offset")
            self._advance()

    def _miss(self, noted: IndexedAck, why: str) -> None:
        """Report a record that is not there, once it was looked whether it may be gone."""
        if not self._is_fresh and noted.offset >= self._facts.start:
            # Retention and compaction go on while this reads.
            found = self._source.facts(self._where)
            self._facts = self._facts if isinstance(found, str) else found
            self._is_fresh = True
        if noted.offset < self._facts.start:
            self._count(AckOutcome.BEFORE_START)
        elif self._is_forgiven or self._may_be_deleted(noted):
            self._count(AckOutcome.DELETED)
        elif noted.key is not None and noted.offset < self._facts.compacted_before:
            self._superseded.add_missing(noted)
        else:
            self._lose(noted, why)

    def _may_be_deleted(self, noted: IndexedAck) -> bool:
        return any(
            noted.offset < rule.before
            and not rule.match.is_prefix
            and bytes_checksum(rule.match.pattern) == noted.key
            for rule in self._facts.deletions
        )

    def _is_deleted(self, key: bytes | None, offset: int) -> bool:
        return any(
            offset < rule.before and rule.match.matches(key) for rule in self._facts.deletions
        )

    def _is_of_another_topic(self, noted: IndexedAck) -> bool:
        current = self._facts.topic_id
        return None not in (current, noted.topic_id) and noted.topic_id != current

    # Reporting.

    def _advance(self) -> None:
        self._due = next(self._noted, None)

    def _count(self, fate: AckOutcome, number: int = 1) -> None:
        if number:
            self._report.count(self._where.topic, fate, number)

    def _lose(self, noted: IndexedAck, why: str) -> None:
        self._report.miss(self._where, noted, AckOutcome.LOST, why + self._facts.promise)

    def _differ(self, noted: IndexedAck, why: str) -> None:
        self._report.miss(self._where, noted, AckOutcome.DIFFERENT, why)


def _differences(noted: IndexedAck, record: StoredRecord) -> list[str]:
    """Return what of a record is not as it was acknowledged."""
    found = []
    if bytes_checksum(record.key) != noted.key:
        found.append("key")
    if bytes_checksum(record.value) != noted.value:
        found.append("value")
    if noted.headers is not None and headers_checksum(record.headers) != noted.headers:
        found.append("headers")
    if noted.timestamp_ms is not None and record.timestamp_ms != noted.timestamp_ms:
        found.append("timestamp")
    return found

"""Outcome of each acknowledged record: found, removed as expected, different or lost."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import AcknowledgementFile, Record
from millstream.audit.verification.report import DISCREPANCIES_MAX, AckOutcome
from millstream.audit.verification.source import PartitionFacts
from millstream.records.batch import HEADER_SIZE, decode_header, seal
from millstream.records.filter.batch_filter import remove_offsets
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.files.partition_metadata import DeletionRule

from .memory_source import NOW, batch, check, marker

OPEN = PartitionFacts(0, 100)
OLD, NEW = uuid.uuid4(), uuid.uuid4()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[AcknowledgementFile]:
    with AcknowledgementFile(tmp_path / "acknowledged") as made:
        yield made


def note(file: AcknowledgementFile, offset: int, record: Record, **more: object) -> None:
    file.note(
        "orders",
        0,
        offset,
        value=record.value,
        key=record.key,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        **more,  # type: ignore[arg-type]
    )


def outcomes(report) -> dict[str, int]:
    return {outcome.value: count for outcome, count in report.outcomes.items() if count}


def keyed(*keys: str) -> list[Record]:
    return [
        Record(f"v{number}".encode(), key.encode(), timestamp_ms=NOW)
        for number, key in enumerate(keys)
    ]


A, B, C = keyed("a", "b", "c")


def test_what_is_there_is_found_in_whatever_order_it_was_acknowledged(tmp_path, file) -> None:
    for offset, record in [(4, B), (0, A), (3, A), (1, B), (2, C), (0, A)]:
        note(file, offset, record)
    report = check(tmp_path, file, [batch(0, A, B, C), batch(3, A, B)], OPEN)
    assert outcomes(report) == {"found": 6}
    assert report.is_sound


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (Record(b"w0", b"a", timestamp_ms=NOW), "value"),
        (Record(None, b"a", timestamp_ms=NOW), "value"),
        (Record(b"v0", b"b", timestamp_ms=NOW), "key"),
        (Record(b"v0", None, timestamp_ms=NOW), "key"),
        (Record(b"v0", b"a", (("h", b"1"),), timestamp_ms=NOW), "headers"),
        (Record(b"v0", b"a", timestamp_ms=NOW + 1), "timestamp"),
        (Record(b"w0", b"b", timestamp_ms=NOW), "key and value"),
    ],
)
def test_another_record_in_its_place_is_told(tmp_path, file, sent: Record, what: str) -> None:
    note(file, 0, sent)
    report = check(tmp_path, file, [batch(0, A, B)], OPEN)
    assert outcomes(report) == {"different": 1}
    (miss,) = report.discrepancies
    assert miss.why == f"the record at its offset has another {what}"
    assert (miss.offset, miss.file, miss.line) == (0, file.path, 2)


def test_headers_and_times_that_nobody_noted_are_not_compared(tmp_path, file) -> None:
    file.note("orders", 0, 0, value=b"v0", key=b"a")
    record = Record(b"v0", b"a", (("h", b"1"),), timestamp_ms=5)
    assert outcomes(check(tmp_path, file, [batch(0, record)], OPEN)) == {"found": 1}


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (1, "its batch no longer contains it"),
        (4, "no intact batch contains its offset"),
        (8, "the partition ends at offset 8"),
    ],
)
def test_what_is_not_there_is_lost(tmp_path, file, offset: int, why: str) -> None:
    note(file, offset, B)
    log = [remove_offsets(batch(0, A, B, C), array("q", [1])), batch(6, A, B)]
    report = check(tmp_path, file, log, OPEN)
    assert outcomes(report) == {"lost": 1}
    assert report.discrepancies[0].why == why


def test_a_batch_that_cannot_be_opened_has_lost_its_records(tmp_path, file) -> None:
    note(file, 0, A)
    note(file, 1, B)
    note(file, 2, C)
    good = batch(0, A, B)
    bad = seal(decode_header(good), bytes(len(good) - HEADER_SIZE))
    report = check(tmp_path, file, [bad, batch(2, C)], OPEN)
    assert outcomes(report) == {"lost": 2, "found": 1}
    assert report.discrepancies[0].why.startswith("its batch cannot be decoded")


def test_what_lies_before_the_start_is_rightly_gone(tmp_path, file) -> None:
    for offset, record in enumerate([A, B, C]):
        note(file, offset, record)
    report = check(tmp_path, file, [batch(0, A, B, C)], PartitionFacts(2, 3))
    assert outcomes(report) == {"before_start": 2, "found": 1}


def test_what_retention_takes_while_the_log_is_read_is_not_lost(tmp_path, file) -> None:
    for offset, record in enumerate([A, B, C]):
        note(file, offset, record)
    for log, gone in [([batch(2, C)], 2), ([batch(0, A), batch(2, C)], 1)]:
        report = check(tmp_path, file, log, PartitionFacts(0, 3), later=PartitionFacts(2, 3))
        assert outcomes(report) == {"before_start": gone, "found": 3 - gone}


def test_a_record_whose_key_came_again_may_be_compacted_away(tmp_path, file) -> None:
    for offset, record in enumerate(keyed("a", "b", "a", "c", "b")):
        note(file, offset, record)
    left = remove_offsets(batch(0, *keyed("a", "b", "a", "c", "b")), array("q", [0, 1]))
    facts = PartitionFacts(0, 5, compacted_before=5)
    assert outcomes(check(tmp_path, file, [left], facts)) == {"compacted": 2, "found": 3}
    assert outcomes(check(tmp_path, file, [left], PartitionFacts(0, 5))) == {"lost": 2, "found": 3}


def test_the_latest_record_of_a_key_may_not_be_compacted_away(tmp_path, file) -> None:
    for offset, record in enumerate(keyed("a", "b", "a")):
        note(file, offset, record)
    left = remove_offsets(batch(0, *keyed("a", "b", "a")), array("q", [1, 2]))
    report = check(tmp_path, file, [left], PartitionFacts(0, 3, compacted_before=3))
    assert outcomes(report) == {"found": 1, "lost": 2}
    assert {miss.offset for miss in report.discrepancies} == {1, 2}


def test_a_record_without_a_key_may_not_be_compacted_away(tmp_path, file) -> None:
    note(file, 0, Record(b"v"))
    left = remove_offsets(batch(0, Record(b"v"), A), array("q", [0]))
    assert outcomes(check(tmp_path, file, [left], PartitionFacts(0, 2, compacted_before=2))) == {
        "lost": 1
    }


def test_a_tombstone_explains_what_came_before_it_even_when_it_is_gone(tmp_path, file) -> None:
    sent = [A, Record(None, b"a", timestamp_ms=NOW), B]
    for offset, record in enumerate(sent):
        note(file, offset, record)
    left = remove_offsets(batch(0, *sent), array("q", [0, 1]))
    report = check(tmp_path, file, [left], PartitionFacts(0, 3, compacted_before=3))
    assert outcomes(report) == {"compacted": 2, "found": 1}


def test_a_tombstone_explains_nothing_that_came_after_it(tmp_path, file) -> None:
    note(file, 0, Record(None, b"a", timestamp_ms=NOW))
    note(file, 1, A)
    left = remove_offsets(batch(0, Record(None, b"a"), A, B), array("q", [0, 1]))
    report = check(tmp_path, file, [left], PartitionFacts(0, 3, compacted_before=3))
    assert outcomes(report) == {"compacted": 1, "lost": 1}


def test_what_a_rule_deletes_counts_as_deleted_while_it_is_still_there_and_after(
    tmp_path, file
) -> None:
    for offset, record in enumerate(keyed("a1", "a2", "b", "a1")):
        note(file, offset, record)
    whole = batch(0, *keyed("a1", "a2", "b", "a1"))
    rules = (
        DeletionRule(KeyMatch(b"a", is_prefix=True), 3),
        DeletionRule(KeyMatch(b"b", is_prefix=False), 4),
    )
    facts = PartitionFacts(0, 4, deletions=rules)
    assert outcomes(check(tmp_path, file, [whole], facts)) == {"deleted": 3, "found": 1}
    left = remove_offsets(whole, array("q", [2]))
    assert outcomes(check(tmp_path, file, [left], facts)) == {"deleted": 3, "found": 1}
    assert outcomes(check(tmp_path, file, [left], PartitionFacts(0, 4))) == {"lost": 1, "found": 3}


def test_who_says_that_records_were_deleted_misses_none(tmp_path, file) -> None:
    note(file, 0, A)
    note(file, 1, C)
    left = remove_offsets(batch(0, A, B), array("q", [0]))
    report = check(tmp_path, file, [left], OPEN, may_be_missing=True)
    assert outcomes(report) == {"deleted": 1, "different": 1}, "what is there has to be right"


def transaction(*, is_commit: bool | None) -> list[bytes]:
    log = [batch(0, A, B, producer=7, is_transactional=True), batch(2, C)]
    return log if is_commit is None else [*log, marker(3, 7, is_commit=is_commit), batch(4, A)]


@pytest.mark.parametrize(
    ("is_commit", "found"),
    [
        (True, {"found": 3}),
        (False, {"aborted": 2, "found": 1}),
        (None, {"found": 3}),
    ],
)
def test_records_of_an_aborted_transaction_are_rightly_not_seen(
    tmp_path, file, is_commit: bool | None, found: dict[str, int]
) -> None:
    for offset, record in enumerate([A, B, C]):
        note(file, offset, record)
    assert outcomes(check(tmp_path, file, transaction(is_commit=is_commit), OPEN)) == found


def test_a_transaction_that_was_committed_and_is_aborted_is_lost(tmp_path, file) -> None:
    held = file.transaction()
    for offset, record in enumerate([A, B]):
        held.add(file.acknowledgement("orders", 0, offset, value=record.value, key=record.key))
    held.committed()
    assert outcomes(check(tmp_path, file, transaction(is_commit=True), OPEN)) == {"found": 2}
    report = check(tmp_path, file, transaction(is_commit=False), OPEN)
    assert outcomes(report) == {"lost": 2}
    assert "though its commit was acknowledged" in report.discrepancies[0].why


def test_the_next_transaction_of_a_producer_is_another_one(tmp_path, file) -> None:
    for offset in (0, 2):
        note(file, offset, A)
    log = [
        batch(0, A, producer=7, is_transactional=True),
        marker(1, 7, is_commit=False),
        batch(2, A, producer=7, is_transactional=True),
        marker(3, 7, is_commit=True),
    ]
    assert outcomes(check(tmp_path, file, log, OPEN)) == {"aborted": 1, "found": 1}


def test_a_marker_in_the_place_of_a_record_is_told(tmp_path, file) -> None:
    note(file, 0, A)
    report = check(tmp_path, file, [marker(0, 7, is_commit=True)], OPEN)
    assert report.discrepancies[0].why == "a control batch is at its offset"


def test_records_of_a_topic_that_was_made_anew_are_not_missed(tmp_path, file) -> None:
    note(file, 0, B, topic_id=OLD)
    note(file, 0, A, topic_id=NEW)
    note(file, 0, A)
    note(file, 9, A, topic_id=OLD)
    facts = PartitionFacts(0, 1, NEW)
    assert outcomes(check(tmp_path, file, [batch(0, A)], facts)) == {"made_anew": 2, "found": 2}
    report = check(tmp_path, file, [batch(0, A)], PartitionFacts(0, 1))
    assert outcomes(report) == {"different": 1, "lost": 1, "found": 2}, "nobody knows which it is"


def test_what_is_lost_is_counted_whole_and_listed_in_part(tmp_path, file) -> None:
    for offset in range(DISCREPANCIES_MAX + 50):
        note(file, offset, A)
    report = check(tmp_path, file, [], OPEN, entries_max=1000)
    assert report.outcomes[AckOutcome.LOST] == DISCREPANCIES_MAX + 50
    assert [miss.offset for miss in report.discrepancies] == list(range(DISCREPANCIES_MAX))
    assert not report.is_sound

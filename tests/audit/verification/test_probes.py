"""Probes detect wrong index lookups, and report nothing when a node rewrites segments meanwhile."""

from __future__ import annotations

import random

import pytest

from millstream.audit.verification.probes import PROBES_MAX, Probes, choose_offsets
from millstream.audit.verification.report import Report
from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.records.batch import BatchHeader, decode_header
from millstream.records.iterate import read_records
from millstream.records.record import Record

from .memory_source import NOW, WHERE, batch, marker

TIMES = [5, 3, 9, 9, 12, 1]
"""Times of batches with two records each; the second record is one millisecond later."""


def times(*values: int) -> list[bytes]:
    return [
        batch(
            2 * number,
            Record(b"", timestamp_ms=NOW + 10 * value),
            Record(b"", timestamp_ms=NOW + 10 * value + 1),
        )
        for number, value in enumerate(values)
    ]


class FakeNode:
    """Answers from its batches, unless a wrong answer is set for an offset or a timestamp."""

    def __init__(self, batches: list[bytes]) -> None:
        self.batches = batches
        self.wrong_batches: dict[int, bytes | None] = {}
        self.wrong_times: dict[int, int | None] = {}
        self.start = 0

    def batch_at(self, where, offset: int) -> IntactBatch | None:
        if offset < self.start:
            raise OffsetOutOfRange(offset, start=self.start, end=100)
        found = next(one for one in self.batches if decode_header(one).last_offset >= offset)
        found = self.wrong_batches.get(offset, found)
        return None if found is None else IntactBatch(decode_header(found), found)

    def header_holding(self, where, offset: int, start: int) -> BatchHeader | None:
        headers = map(decode_header, self.batches)
        return next((one for one in headers if one.last_offset >= offset), None)

    def offset_at(self, where, timestamp_ms: int) -> int | None:
        if timestamp_ms in self.wrong_times:
            return self.wrong_times[timestamp_ms]
        records = (record for one in self.batches for record in read_records(one))
        return next((one.offset for one in records if one.timestamp_ms >= timestamp_ms), None)


def probe(node: FakeNode, batches: list[bytes]) -> Report:
    """Read all of `batches`, then look up all their offsets in what the node has now."""
    end = decode_header(batches[-1]).next_offset
    probes = Probes(WHERE, PartitionFacts(0, end), count=2 * end, rng=random.Random(1))
    for one in batches:
        probes.take(IntactBatch(decode_header(one), one))
    report = Report()
    probes.check(node, report)  # type: ignore[arg-type]
    return report


def test_a_node_that_finds_all_is_sound() -> None:
    log = times(*TIMES)
    report = probe(FakeNode(log), log)
    assert report.findings == []
    assert report.offsets_probed == 12
    assert report.times_probed == 4, "5, 9 and 12 are later than all before; and what comes after"


@pytest.mark.parametrize("offset", range(12))
def test_a_fetch_that_begins_elsewhere_is_caught(offset: int) -> None:
    log = times(*TIMES)
    for wrong in (log[(offset // 2 + 1) % 6], None):
        node = FakeNode(log)
        node.wrong_batches[offset] = wrong
        (found,) = probe(node, log).findings
        assert found.message.startswith(f"offset {offset}: a fetch from it starts with")
        assert found.is_damage


@pytest.mark.parametrize("time", [51, 91, 121, 122])
@pytest.mark.parametrize("answer", [0, None, 7])
def test_a_time_that_leads_elsewhere_is_caught(time: int, answer: int | None) -> None:
    log = times(*TIMES)
    node = FakeNode(log)
    if node.offset_at(WHERE, NOW + time) == answer:
        return
    node.wrong_times[NOW + time] = answer
    (found,) = probe(node, log).findings
    assert found.message.startswith(f"time {NOW + time}: ")


def test_what_was_rewritten_meanwhile_is_looked_at_again() -> None:
    log = times(*TIMES)
    node = FakeNode([*log[:2], batch(4, Record(b"other", timestamp_ms=NOW)), *log[3:]])
    assert probe(node, log).findings == []


def test_what_retention_took_meanwhile_is_no_finding() -> None:
    log = times(*TIMES)
    node = FakeNode(log)
    node.start = 100
    node.wrong_times = dict.fromkeys((NOW + 51, NOW + 91, NOW + 121), None)
    assert probe(node, log).findings == []


def test_gaps_and_markers_are_not_looked_up_by_time() -> None:
    log = [*times(1, 2), marker(4, 7, is_commit=True), batch(9, Record(b"", timestamp_ms=NOW + 1))]
    report = probe(FakeNode(log), log)
    assert report.findings == []
    assert report.offsets_probed == 6


def test_offsets_are_chosen_at_both_ends_evenly_and_by_chance() -> None:
    chosen = choose_offsets(100, 10_100, 32, random.Random(3))
    assert chosen == choose_offsets(100, 10_100, 32, random.Random(3))
    assert chosen != choose_offsets(100, 10_100, 32, random.Random(4))
    assert {100, 725, 10_099} <= set(chosen)
    assert 17 <= len(chosen) <= 35
    assert choose_offsets(5, 5, 32, random.Random(1)) == []
    assert choose_offsets(5, 9, 0, random.Random(1)) == []
    assert choose_offsets(5, 7, 10_000, random.Random(1)) == [5, 6]


def test_how_many_are_chosen_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match=f"between 0 and {PROBES_MAX}"):
        Probes(WHERE, PartitionFacts(0, 1), count=PROBES_MAX + 1, rng=random.Random(1))

"""Which records of `millstream chaos run` count as lost, doubled or out of order."""

from __future__ import annotations

import pytest

from millstream.cli.chaos.chaos_run import ChaosPlan
from millstream.cli.chaos.ledger import DeliveryCounts, PartitionLedger, total
from millstream.cli.chaos.numbered_record import (
    SIZE_MIN,
    NumberedRecord,
    decode_value,
    encode_value,
)
from millstream.cli.chaos.run import _problems

PLAN = ChaosPlan(
    bootstrap="",
    topic="t",
    topic_id=None,
    partitions=4,
    run="a1",
    records_per_second=8,
    record_size=100,
    timeout_s=1,
)


def problems(counts: DeliveryCounts) -> list[str]:
    fields = {name: getattr(counts, name) for name in counts.__slots__}
    return list(_problems(fields, is_new_topic=True))


def acknowledged(count: int) -> PartitionLedger:
    ledger = PartitionLedger(0)
    ledger.acknowledge(ledger.send(count, 0.0), 0.0)
    return ledger


def read_all(ledger: PartitionLedger, *numbers: int) -> DeliveryCounts:
    for offset, number in enumerate(numbers):
        ledger.cover(offset, offset + 1)
        ledger.read(number, offset, 1.0)
    return ledger.counts(1.0)


def test_records_that_are_read_once_and_in_order_are_no_problem():
    counts = read_all(acknowledged(5), 0, 1, 2, 3, 4)
    assert (counts.sent, counts.acknowledged, counts.read, counts.lost) == (5, 5, 5, 0)
    assert problems(counts) == counts.examples == []


def test_a_record_that_was_acknowledged_and_not_read_is_lost():
    counts = read_all(acknowledged(4), 0, 1, 3)
    assert (counts.read, counts.lost) == (3, 1)
    assert problems(counts) == ["1 acknowledged records were not read"]
    assert counts.examples == ["partition 0: acknowledged and not read: record 2"]


def test_a_record_that_is_read_twice_is_doubled():
    counts = read_all(acknowledged(3), 0, 1, 1, 2, 0)
    assert (counts.read, counts.doubled) == (3, 2)
    assert problems(counts) == ["2 records were read more than once"]
    assert counts.examples[0] == "partition 0: record 1 at offset 2 was read before"


def test_a_record_that_is_read_twice_before_its_acknowledgement_is_doubled():
    ledger = PartitionLedger(0)
    numbers = ledger.send(1, 0.0)
    read_all(ledger, 0, 0)
    ledger.acknowledge(numbers, 2.0)
    counts = ledger.counts(2.0)
    assert (counts.doubled, counts.lost, counts.read) == (1, 0, 1)


def test_a_record_of_unknown_outcome_that_is_read_twice_is_doubled():
    ledger = PartitionLedger(0)
    ledger.give_up(ledger.send(1, 0.0))
    counts = read_all(ledger, 0, 0)
    assert (counts.unknown, counts.unknown_stored, counts.doubled) == (1, 1, 1)


def test_a_record_that_is_read_after_a_later_one_is_out_of_order():
    counts = read_all(acknowledged(3), 0, 2, 1)
    assert counts.out_of_order == 1
    assert problems(counts) == ["1 records were read out of order"]
    assert counts.examples == ["partition 0: record 1 at offset 2 was read after record 2"]


def test_records_of_one_batch_that_are_swapped_before_their_acknowledgement_are_out_of_order():
    ledger = PartitionLedger(0)
    ledger.send(2, 0.0)
    assert read_all(ledger, 1, 0).out_of_order == 1


def test_a_record_of_unknown_outcome_may_be_stored_or_not_and_may_arrive_late():
    ledger = PartitionLedger(0)
    ledger.give_up(ledger.send(2, 0.0))
    ledger.acknowledge(ledger.send(1, 0.0), 1.0)
    counts = read_all(ledger, 2, 1)
    assert (counts.unknown, counts.unknown_stored, counts.lost) == (2, 1, 0)
    assert problems(counts) == []


def test_a_record_that_was_read_before_its_outcome_became_unknown_is_stored():
    ledger = PartitionLedger(0)
    numbers = ledger.send(1, 0.0)
    read_all(ledger, 0)
    ledger.give_up(numbers)
    assert ledger.counts(1.0).unknown_stored == 1
    ledger.read(0, 1, 2.0)
    assert ledger.counts(2.0).doubled == 1


def test_a_record_that_was_never_sent_is_a_problem():
    counts = read_all(acknowledged(1), 0, 1)
    assert (counts.unexpected, counts.doubled) == (1, 0)
    assert problems(counts) == ["1 records were read that were not sent there"]


def test_offsets_without_a_record_are_gaps_from_where_the_run_began():
    ledger = acknowledged(2)
    ledger.cover(10, 10)
    ledger.cover(10, 12)
    ledger.cover(15, 16)
    counts = ledger.counts(0.0)
    assert counts.gaps == 3
    assert "partition 0: no record has the offsets 12 to 14" in counts.examples
    fields = {name: getattr(counts, name) for name in counts.__slots__} | {"lost": 0}
    assert list(_problems(fields, is_new_topic=True)) == ["3 offsets have no record"]
    assert list(_problems(fields, is_new_topic=False)) == [], "others may delete and compact"


def test_a_run_without_an_acknowledgement_shows_nothing():
    ledger = PartitionLedger(0)
    ledger.give_up(ledger.send(1, 0.0))
    assert problems(ledger.counts(0.0)) == ["nothing was acknowledged"]


def test_a_pause_in_writes_begins_when_a_record_is_due_and_none_is_acknowledged():
    ledger = PartitionLedger(0)
    ledger.acknowledge(ledger.send(1, 10.0), 10.5)
    assert ledger.counts(90.0).write_pause_s == 0.5, "nothing was due"
    numbers = ledger.send(1, 100.0)
    assert ledger.counts(103.0).write_pause_s == 3.0, "it is not over"
    ledger.give_up(numbers)
    ledger.acknowledge(ledger.send(1, 101.0), 107.0)
    assert ledger.counts(200.0).write_pause_s == 7.0, "an unknown outcome does not end it"


def test_a_pause_in_reads_begins_when_a_record_is_acknowledged_and_none_is_read():
    ledger = acknowledged(1)
    ledger.read(0, 0, 2.0)
    assert ledger.counts(50.0).read_pause_s == 2.0
    ledger.acknowledge(ledger.send(2, 50.0), 50.0)
    assert ledger.counts(55.0).read_pause_s == 5.0
    ledger.read(1, 1, 56.0)
    ledger.read(2, 2, 57.0)
    assert ledger.counts(99.0).read_pause_s == 6.0


def test_the_counts_of_partitions_add_up_and_pauses_do_not():
    first, second = acknowledged(1), acknowledged(2)
    first.read(0, 0, 2.0)
    counts = total([first.counts(3.0), second.counts(3.0)])
    assert (counts.sent, counts.read, counts.lost) == (3, 1, 2)
    assert counts.read_pause_s == 3.0


def test_a_ledger_forgets_what_is_settled():
    ledger = PartitionLedger(0)
    for number in range(1000):
        ledger.acknowledge(ledger.send(1, 0.0), 0.0)
        ledger.read(number, number, 0.0)
    held = (ledger._in_flight, ledger._read_early, ledger._unread, ledger._unknown)
    assert [len(each) for each in held] == [0, 0, 0, 0]


def test_records_are_due_at_the_rate_in_turns():
    assert [PLAN.due(index, 0.0) for index in range(4)] == [1, 0, 0, 0]
    assert [PLAN.due(index, 0.25) for index in range(4)] == [1, 1, 1, 0]
    assert sum(PLAN.due(index, 9.9999) for index in range(4)) == 80
    for index in range(4):
        for number in range(5):
            at = PLAN.due_at(index, number)
            assert PLAN.due(index, at) == number + 1
            assert PLAN.due(index, at - 0.001) == number


@pytest.mark.parametrize("size", [SIZE_MIN, 100, 5000])
def test_a_value_tells_run_partition_and_number(size: int):
    record = NumberedRecord(99, 10**12)
    value = encode_value("a1b2c3d4e5f6", record, size)
    assert len(value) == size
    assert decode_value("a1b2c3d4e5f6", value) == record
    assert decode_value("a1b2c3d4e5f7", value) is None, "of another run"


@pytest.mark.parametrize("value", [None, b"", b"chaos a1 x 1 .", b"chaos a1 1 1 ..!", b"order 17"])
def test_values_of_others_are_passed_over(value: bytes | None):
    assert decode_value("a1", value) is None

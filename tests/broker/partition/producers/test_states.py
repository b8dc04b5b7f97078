"""Producer rules: which batches are accepted, and which errors the others get."""

from __future__ import annotations

import pytest

from millstream.broker.partition.producers.entry import BATCHES_REMEMBERED, SEQUENCE_MAX
from millstream.broker.partition.producers.states import (
    IDLE_MS_MIN,
    DuplicateBatch,
    ProducerStates,
    ReusedSequence,
)
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    MillstreamError,
    OutOfOrderSequence,
    Unavailable,
    UnknownProducer,
)
from millstream.records.batch import BatchHeader, decode_header
from millstream.records.build import build_batch
from millstream.records.control import Marker
from millstream.records.record import Record

HOUR_MS = 3_600_000


def header(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    is_transactional: bool = False,
    value: bytes = b"",
) -> BatchHeader:
    return decode_header(
        build_batch(
            [Record(value)] * count,
            now_ms=1,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


class Line:
    """Accepts batches at increasing offsets, as a log does."""

    def __init__(self, **options: int) -> None:
        self.states = ProducerStates(**{"expiration_ms": HOUR_MS, **options})
        self.offset = 0
        self.now_ms = 0

    def send(
        self, sequence: int, count: int = 1, *, expected_marker_offset: int | None = None, **fields
    ) -> int:
        first = self.offset
        self.states.admit(
            header(sequence, count, **fields),
            first,
            now_ms=self.now_ms,
            expected_marker_offset=expected_marker_offset,
        )
        self.offset += count
        return first

    def end(
        self, *, is_commit: bool = True, producer_id: int = 7, epoch: int = 0, coordinator: int = 0
    ) -> int:
        first = self.offset
        self.states.admit_marker(
            header(0, producer_id=producer_id, epoch=epoch),
            Marker(is_commit, coordinator),
            first,
            now_ms=self.now_ms,
        )
        self.offset += 1
        return first

    def commit(self) -> None:
        self.states.committed(self.offset)


def refuses(error: type[MillstreamError], line: Line, *args, **fields) -> str:
    before = line.states.all(), line.states.first_unstable_offset, line.states.has_uncommitted
    with pytest.raises(error) as caught:
        line.send(*args, **fields)
    assert (
        line.states.all(),
        line.states.first_unstable_offset,
        line.states.has_uncommitted,
    ) == before, "a refused batch leaves no trace"
    return str(caught.value)


class TestSequences:
    def test_batches_in_order_are_taken(self):
        line = Line()
        assert [line.send(0, 3), line.send(3), line.send(4, 2)] == [0, 3, 4]
        assert line.states.get(7).last_sequence == 5

    def test_a_gap_is_refused_and_says_what_was_expected(self):
        line = Line()
        line.send(0, 3)
        assert "sent sequence 4, expected 3" in refuses(OutOfOrderSequence, line, 4)

    def test_after_the_last_sequence_comes_zero(self):
        line = Line()
        line.states.replay(header(SEQUENCE_MAX - 1), None, now_ms=0)
        line.offset = 1
        line.send(SEQUENCE_MAX)
        line.send(0)
        assert line.states.get(7).last_sequence == 0

    def test_a_batch_may_span_the_end_of_the_sequences_and_is_known_again(self):
        line = Line()
        line.states.replay(header(SEQUENCE_MAX - 2), None, now_ms=0)
        line.offset = 1
        line.send(SEQUENCE_MAX - 1, 5)
        assert line.states.get(7).last_sequence == 2
        with pytest.raises(DuplicateBatch) as found:
            line.send(SEQUENCE_MAX - 1, 5)
        assert found.value.first.first_offset == 1
        line.send(3)

    def test_producers_do_not_mind_each_other(self):
        line = Line()
        line.send(0, producer_id=1)
        line.send(0, producer_id=2)
        line.send(1, producer_id=1)


class TestDuplicates:
    def test_each_of_the_last_five_is_known_again_with_its_own_offsets(self):
        line = Line()
        sent = [(line.send(n * 2, 2), n * 2) for n in range(BATCHES_REMEMBERED)]
        for offset, sequence in sent:
            with pytest.raises(DuplicateBatch) as found:
                line.send(sequence, 2)
            assert found.value.first[:4] == (sequence, sequence + 1, offset, offset + 1)

    def test_an_older_one_is_out_of_order(self):
        line = Line()
        for sequence in range(BATCHES_REMEMBERED + 1):
            line.send(sequence)
        refuses(OutOfOrderSequence, line, 0)

    def test_the_same_sequences_cut_otherwise_are_no_duplicate(self):
        line = Line()
        line.send(0, 4)
        refuses(OutOfOrderSequence, line, 0, 2)
        refuses(OutOfOrderSequence, line, 2, 2)

    def test_the_same_sequences_with_other_records_are_no_duplicate(self):
        line = Line()
        line.send(0, value=b"x")
        line.send(1, value=b"y")
        told = refuses(ReusedSequence, line, 0, value=b"y")
        assert "sent sequence 0 again with other records, expected 2" in told
        refuses(DuplicateBatch, line, 0, value=b"x")
        assert line.states.find_duplicate(header(0, value=b"y")) is None
        assert line.states.find_duplicate(header(0, value=b"x")).first_offset == 0

    def test_of_another_epoch_it_is_none_either(self):
        line = Line()
        line.send(0)
        line.send(0, epoch=1)
        refuses(InvalidProducerEpoch, line, 0, epoch=0)


class TestEpochs:
    def test_a_newer_epoch_starts_at_zero(self):
        line = Line()
        line.send(0, 3)
        refuses(OutOfOrderSequence, line, 3, epoch=1)
        line.send(0, epoch=1)

    def test_an_older_epoch_is_refused(self):
        line = Line()
        line.send(0, epoch=5)
        assert "epoch 4, its newest epoch is 5" in refuses(InvalidProducerEpoch, line, 0, epoch=4)

    def test_a_newer_epoch_does_not_walk_into_an_open_transaction(self):
        line = Line()
        line.send(0, is_transactional=True)
        refuses(InvalidTransactionState, line, 0, epoch=1, is_transactional=True)


class TestUnknownProducers:
    def test_one_that_is_new_starts_at_zero(self):
        line = Line()
        assert "starts with sequence 3, expected 0" in refuses(OutOfOrderSequence, line, 3)

    def test_one_that_was_forgotten_is_told_so(self):
        line = Line()
        line.send(0)
        line.commit()
        line.now_ms = HOUR_MS
        line.states.expire(line.now_ms)
        refuses(UnknownProducer, line, 1)

    def test_a_newer_one_than_any_that_was_forgotten_has_a_gap(self):
        line = Line()
        line.send(0, producer_id=7)
        line.commit()
        line.now_ms = HOUR_MS
        line.states.expire(line.now_ms)
        refuses(OutOfOrderSequence, line, 1, producer_id=8)

    def test_a_forgotten_one_may_begin_a_new_epoch(self):
        line = Line()
        line.send(0)
        line.commit()
        line.states.expire(HOUR_MS)
        line.send(0, epoch=1)


class TestTransactions:
    def test_the_first_batch_opens_it_and_the_marker_ends_it(self):
        line = Line()
        line.send(0, producer_id=1)
        first = line.send(0, is_transactional=True)
        line.send(1, is_transactional=True)
        line.commit()
        assert line.states.first_unstable_offset == first
        line.end()
        assert line.states.first_unstable_offset == first, "the marker is not committed yet"
        line.commit()
        assert line.states.first_unstable_offset is None

    def test_others_hold_readers_back_too(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        second = line.send(0, producer_id=2, is_transactional=True)
        line.end(producer_id=1)
        line.commit()
        assert line.states.first_unstable_offset == second

    def test_a_plain_batch_in_the_middle_is_refused(self):
        line = Line()
        line.send(0, is_transactional=True)
        refuses(InvalidTransactionState, line, 1)

    def test_sequences_go_on_after_a_marker_of_the_same_epoch(self):
        line = Line()
        line.send(0, is_transactional=True)
        line.end()
        line.send(1, is_transactional=True)

    @pytest.mark.parametrize("is_commit", [False, True])
    def test_batches_of_an_ended_transaction_do_not_answer_for_the_next_one(self, is_commit):
        line = Line()
        line.send(0, is_transactional=True, value=b"x")
        line.end(is_commit=is_commit)
        refuses(OutOfOrderSequence, line, 0, is_transactional=True, value=b"y")
        told = refuses(OutOfOrderSequence, line, 0, is_transactional=True, value=b"x")
        assert "sent sequence 0, expected 1" in told
        line.send(1, is_transactional=True, value=b"y")
        refuses(DuplicateBatch, line, 1, is_transactional=True, value=b"y")

    def test_they_start_anew_after_a_marker_with_the_next_epoch(self):
        line = Line()
        line.send(0, is_transactional=True)
        line.end(epoch=1)
        refuses(InvalidProducerEpoch, line, 1, is_transactional=True)
        refuses(OutOfOrderSequence, line, 1, epoch=1, is_transactional=True)
        line.send(0, epoch=1, is_transactional=True)

    def test_a_marker_of_an_older_epoch_is_fenced(self):
        line = Line()
        line.send(0, epoch=3, is_transactional=True)
        with pytest.raises(InvalidProducerEpoch):
            line.end(epoch=2)
        assert line.states.get(7).is_in_transaction

    def test_a_marker_of_an_older_coordinator_is_fenced(self):
        line = Line()
        line.send(0, is_transactional=True)
        line.end(coordinator=5)
        with pytest.raises(InvalidTransactionState):
            line.end(coordinator=4)

    def test_a_marker_without_a_transaction_aborts_nothing(self):
        line = Line()
        line.end(is_commit=False)
        line.commit()
        assert len(line.states.aborted) == 0
        assert line.states.first_unstable_offset is None

    def test_an_aborted_one_is_listed_and_a_committed_one_is_not(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        line.send(0, producer_id=2, is_transactional=True)
        line.end(producer_id=1)
        line.end(producer_id=2, is_commit=False)
        assert [tuple(item) for item in line.states.aborted] == [(2, 1, 3, 4)]

    def test_a_reader_before_the_last_stable_offset_is_told_of_those_that_ended_later(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        line.send(0, producer_id=2, is_transactional=True)
        line.end(producer_id=2, is_commit=False)
        line.end(producer_id=1, is_commit=False)
        assert [tuple(item) for item in line.states.aborted] == [(2, 1, 2, 0), (1, 0, 3, 4)]
        assert [item.producer_id for item in line.states.aborted.between(0, 1)] == [1]

    def test_a_late_batch_does_not_open_what_was_ended_meanwhile(self):
        line = Line()
        none = -1
        line.send(0, is_transactional=True, expected_marker_offset=none)
        line.send(1, is_transactional=True, expected_marker_offset=none)
        marker = line.end(is_commit=False)
        refuses(
            InvalidTransactionState, line, 2, is_transactional=True, expected_marker_offset=none
        )
        line.send(2, is_transactional=True, expected_marker_offset=marker)


class TestTakingBack:
    def test_a_batch_that_is_taken_back_was_never_there(self):
        line = Line()
        line.send(0)
        line.commit()
        before = line.states.all()
        line.send(1)
        line.send(2)
        line.states.rewind(1)
        assert line.states.all() == before
        line.offset = 1
        line.send(1)

    def test_a_new_producer_is_forgotten_and_an_old_epoch_is_back(self):
        line = Line()
        line.send(0, producer_id=1)
        line.commit()
        line.send(0, producer_id=1, epoch=4)
        line.send(0, producer_id=2)
        line.states.rewind(1)
        assert line.states.get(2) is None
        assert line.states.get(1).epoch == 0

    def test_a_transaction_that_was_opened_is_closed_again(self):
        line = Line()
        line.send(0, is_transactional=True)
        line.states.rewind(0)
        assert line.states.first_unstable_offset is None

    def test_a_transaction_that_was_ended_is_open_again_in_its_place(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        line.send(0, producer_id=2, is_transactional=True)
        line.commit()
        line.end(producer_id=1, is_commit=False)
        line.end(producer_id=2, is_commit=False)
        line.states.rewind(2)
        assert line.states.first_unstable_offset == 0
        assert len(line.states.aborted) == 0
        line.offset = 2
        line.end(producer_id=1)
        line.commit()
        assert line.states.first_unstable_offset == 1

    def test_only_the_end_is_taken_back(self):
        line = Line()
        line.send(0)
        line.send(1)
        line.send(2)
        line.states.rewind(2)
        assert line.states.get(7).last_sequence == 1

    def test_the_five_that_are_kept_are_back_too(self):
        line = Line()
        for sequence in range(BATCHES_REMEMBERED):
            line.send(sequence)
        line.commit()
        for sequence in range(BATCHES_REMEMBERED, 2 * BATCHES_REMEMBERED):
            line.send(sequence)
        line.states.rewind(BATCHES_REMEMBERED)
        with pytest.raises(DuplicateBatch):
            line.send(0)


class TestSettled:
    def test_what_is_under_way_is_not_part_of_it(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        line.send(0, producer_id=2, is_transactional=True)
        line.end(producer_id=2, is_commit=False)
        line.commit()
        line.send(1, producer_id=1, is_transactional=True)
        line.end(producer_id=1, is_commit=False)
        line.send(0, producer_id=3)
        settled = line.states.snapshot(3)
        assert settled.offset == 3
        assert sorted(settled.entries) == [1, 2]
        assert settled.entries[1].last_sequence == 0
        assert settled.entries[1].is_in_transaction
        assert [item.producer_id for item in settled.aborted] == [2]
        assert sorted(line.states.all()) == [1, 2, 3], "and it still is under way"

    def test_it_can_be_begun_with(self):
        line, other = Line(), Line()
        line.send(0, producer_id=2, is_transactional=True)
        line.send(0, producer_id=1, is_transactional=True)
        line.commit()
        other.states.restore(line.states.snapshot(2))
        assert other.states.all() == line.states.all()
        assert other.states.first_unstable_offset == 0
        other.offset = 2
        other.end(producer_id=2)
        other.commit()
        assert other.states.first_unstable_offset == 1


class TestForgetting:
    def test_an_idle_producer_is_forgotten_and_a_busy_one_is_not(self):
        line = Line()
        line.send(0, producer_id=1)
        line.now_ms = 1
        line.send(0, producer_id=2)
        line.commit()
        line.states.expire(HOUR_MS)
        assert line.states.get(1) is None
        assert line.states.get(2) is not None

    def test_never_one_with_a_transaction_open_or_a_batch_under_way(self):
        line = Line()
        line.send(0, producer_id=1, is_transactional=True)
        line.commit()
        line.send(0, producer_id=2)
        line.states.expire(10 * HOUR_MS)
        assert len(line.states) == 2

    def test_too_many_push_out_the_longest_idle(self):
        line = Line(producers_max=3)
        for producer_id in (1, 2, 3):
            line.now_ms = producer_id
            line.send(0, producer_id=producer_id)
        line.commit()
        line.now_ms = 3 + IDLE_MS_MIN
        line.send(0, producer_id=4)
        assert sorted(line.states.all()) == [2, 3, 4]
        refuses(UnknownProducer, line, 1, producer_id=1)

    def test_but_not_those_that_may_still_retry(self):
        line = Line(producers_max=2)
        line.send(0, producer_id=1)
        line.send(0, producer_id=2)
        line.commit()
        assert "limit is 2" in refuses(Unavailable, line, 0, producer_id=3)

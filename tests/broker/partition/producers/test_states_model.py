"""Producer states against a model that stores the complete log.

The model is a list of everything in the log, and derives each answer from the first batch on. The
real implementation must give the same answers while batches are rewound and committed, and after
it is restored from any snapshot or from none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.broker.partition.producers.snapshot import decode_snapshot, encode_snapshot
from millstream.broker.partition.producers.states import (
    DuplicateBatch,
    ProducerStates,
    ReusedSequence,
)
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    MillstreamError,
    OutOfOrderSequence,
)
from millstream.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from millstream.records.control import Marker

SEQUENCES = 2**31
EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200


class Entry(NamedTuple):
    """One batch in the log."""

    header: BatchHeader
    marker: Marker | None

    @property
    def first(self) -> int:
        return self.header.base_offset

    @property
    def sequences(self) -> tuple[int, int]:
        start = self.header.base_sequence
        return start, (start + self.header.last_offset_delta) % SEQUENCES


@dataclass
class Known:
    """The state of one producer, derived from the log."""

    epoch: int = -1
    batches: list[Entry] = field(default_factory=list)
    first_offset: int = -1
    marker_offset: int = -1
    coordinator_epoch: int = -1

    def take(self, entry: Entry) -> None:
        if entry.header.producer_epoch != self.epoch:
            self.epoch = entry.header.producer_epoch
            self.batches = []
        if entry.marker is not None:
            self.first_offset = -1
            self.marker_offset = entry.first
            self.coordinator_epoch = entry.marker.coordinator_epoch
            return
        self.batches.append(entry)
        if entry.header.is_transactional and self.first_offset < 0:
            self.first_offset = entry.first


def make_header(
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int,
    offset: int,
    attributes: int,
    crc: int = 0,
) -> BatchHeader:
    return BatchHeader(
        offset, 49, 0, 2, crc, attributes, count - 1, 5, 5, producer_id, epoch, sequence, count
    )


class Producers(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.log: list[Entry] = []
        self.committed = 0
        self.states = ProducerStates(expiration_ms=10**9)
        self.snapshots: list[tuple[int, bytes]] = []

    # The model.

    @property
    def end(self) -> int:
        return self.log[-1].header.next_offset if self.log else 0

    def known(self, log: list[Entry]) -> dict[int, Known]:
        found: dict[int, Known] = {}
        for entry in log:
            found.setdefault(entry.header.producer_id, Known()).take(entry)
        return found

    def expected(self, header: BatchHeader) -> type[MillstreamError] | Entry | None:
        known = self.known(self.log).get(header.producer_id)
        sequence = header.base_sequence
        if known is None:
            return None if sequence == 0 else OutOfOrderSequence
        new = Entry(header, None)
        if header.producer_epoch == known.epoch:
            last = known.batches[-1].sequences[1] if known.batches else -1
            if sequence != (last + 1) % SEQUENCES:
                for old in known.batches[-5:]:
                    if old.sequences == new.sequences and old.first > known.marker_offset:
                        return old if old.header.crc == header.crc else ReusedSequence
                return OutOfOrderSequence
        elif header.producer_epoch < known.epoch:
            return InvalidProducerEpoch
        elif sequence != 0:
            return OutOfOrderSequence
        is_part = header.is_transactional and header.producer_epoch == known.epoch
        if known.first_offset >= 0 and not is_part:
            return InvalidTransactionState
        return None

    def aborted(self, log: list[Entry]) -> list[tuple[int, int, int]]:
        opened: dict[int, int] = {}
        found = []
        for entry in log:
            producer_id = entry.header.producer_id
            if entry.marker is None:
                if entry.header.is_transactional:
                    opened.setdefault(producer_id, entry.first)
            elif (
                first := opened.pop(producer_id, None)
            ) is not None and not entry.marker.is_commit:
                found.append((producer_id, first, entry.first))
        return found

    def first_unstable(self) -> int | None:
        """Return the first batch of a transaction that has no committed marker."""
        opened: dict[int, int] = {}
        unstable = []
        for entry in self.log:
            producer_id = entry.header.producer_id
            if entry.marker is None:
                if entry.header.is_transactional:
                    opened.setdefault(producer_id, entry.first)
            else:
                first = opened.pop(producer_id, None)
                if first is not None and entry.first >= self.committed:
                    unstable.append(first)
        return min([*opened.values(), *unstable], default=None)

    # Rules.

    @rule(
        producer_id=st.integers(0, 2),
        epoch=st.integers(-1, 1),
        how=st.sampled_from(["next", "next", "next", "again", "other", "zero", "gap", "behind"]),
        back=st.integers(1, 7),
        count=st.sampled_from([1, 2, 2**30, 2**31 - 1]),
        is_transactional=st.booleans(),
        crc=st.sampled_from([0, 2**32 - 1]),
    )
    def append(self, producer_id, epoch, how, back, count, is_transactional, crc):
        known = self.known(self.log).get(producer_id, Known())
        epoch = max(0, known.epoch + epoch)
        last = known.batches[-1].sequences[1] if known.batches else -1
        sequence = {"zero": 0, "gap": last + 1 + back, "behind": last - back}.get(how, last + 1)
        if known.first_offset >= 0:
            is_transactional = is_transactional or how == "next"
        attributes = TRANSACTIONAL_BIT if is_transactional else 0
        header = make_header(
            producer_id, epoch, sequence % SEQUENCES, count, self.end, attributes, crc
        )
        if how in ("again", "other") and len(known.batches) >= back:
            header = known.batches[-back].header._replace(base_offset=self.end)
            if how == "other":
                header = header._replace(crc=header.crc ^ 1)
        expected = self.expected(header)
        if isinstance(expected, Entry):
            with pytest.raises(DuplicateBatch) as found:
                self.states.admit(header, self.end, now_ms=0)
            kept = found.value.first
            assert (kept.first_sequence, kept.last_sequence) == expected.sequences
            assert kept.first_offset == expected.first
            assert kept.last_offset == expected.header.last_offset
        elif expected is not None:
            with pytest.raises(expected) as refused:
                self.states.admit(header, self.end, now_ms=0)
            assert refused.type is expected
        else:
            self.states.admit(header, self.end, now_ms=0)
            self.log.append(Entry(header, None))

    @rule(
        producer_id=st.integers(0, 2),
        epoch=st.integers(-1, 1),
        coordinator=st.integers(0, 2),
        is_commit=st.booleans(),
    )
    def end_transaction(self, producer_id, epoch, coordinator, is_commit):
        known = self.known(self.log).get(producer_id, Known())
        epoch = max(0, known.epoch + epoch)
        attributes = TRANSACTIONAL_BIT | CONTROL_BIT
        header = make_header(producer_id, epoch, -1, 1, self.end, attributes)
        marker = Marker(is_commit, coordinator)
        try:
            self.states.admit_marker(header, marker, self.end, now_ms=0)
        except InvalidProducerEpoch:
            assert epoch < known.epoch
        except InvalidTransactionState:
            assert coordinator < known.coordinator_epoch
        else:
            assert epoch >= known.epoch
            assert coordinator >= known.coordinator_epoch
            self.log.append(Entry(header, marker))

    @rule(share=st.floats(0, 1))
    def commit(self, share):
        waiting = [entry for entry in self.log if entry.first >= self.committed]
        for entry in waiting[: round(len(waiting) * share)]:
            self.committed = entry.header.next_offset
        self.states.committed(self.committed)

    @rule(share=st.floats(0, 1))
    def take_back(self, share):
        waiting = [entry for entry in self.log if entry.first >= self.committed]
        doomed = waiting[round(len(waiting) * share) :]
        if doomed:
            self.log = self.log[: len(self.log) - len(doomed)]
            self.states.rewind(doomed[0].first)

    @rule()
    def save(self):
        found = self.states.snapshot(self.committed)
        self.snapshots.append(
            (self.committed, encode_snapshot(found, tail_crc=0, now_ms=0)),
        )

    @rule(survivors=st.floats(0, 1), data=st.data())
    def crash_and_open_again(self, survivors, data):
        waiting = [entry for entry in self.log if entry.first >= self.committed]
        gone = len(waiting) - round(len(waiting) * survivors)
        self.log = self.log[: len(self.log) - gone]
        self.committed = self.end
        self.states = ProducerStates(expiration_ms=10**9)
        offset, snapshot = data.draw(st.sampled_from([(0, None), *self.snapshots]))
        if snapshot is not None:
            self.states.restore(decode_snapshot(snapshot, now_ms=0)[0])
        for entry in self.log:
            if entry.first >= offset:
                self.states.replay(entry.header, entry.marker, now_ms=0)

    # Invariants.

    @invariant()
    def remembers_what_follows_from_the_log(self):
        found = {
            producer_id: (
                entry.epoch,
                [(b.first_sequence, b.last_sequence, b.first_offset, b.crc) for b in entry.batches],
                entry.first_offset,
                entry.marker_offset,
                entry.coordinator_epoch,
            )
            for producer_id, entry in self.states.all().items()
        }
        assert found == {
            producer_id: (
                known.epoch,
                [(*b.sequences, b.first, b.header.crc) for b in known.batches[-5:]],
                known.first_offset,
                known.marker_offset,
                known.coordinator_epoch,
            )
            for producer_id, known in self.known(self.log).items()
        }

    @invariant()
    def holds_readers_back_where_it_must(self):
        assert self.states.first_unstable_offset == self.first_unstable()

    @invariant()
    def tells_readers_what_to_leave_out(self):
        expected = self.aborted(self.log)
        assert [item[:3] for item in self.states.aborted] == expected
        offsets = sorted({entry.first for entry in self.log})
        for start in offsets:
            for end in (offset for offset in offsets if offset > start):
                told = [tuple(item) for item in self.states.aborted.between(start, end)]
                assert told == [(p, f) for p, f, last in expected if last >= start and f < end]


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)

"""The producers of one partition: who may append what, and what was appended before.

Rules, as Kafka has them:

1. A producer's batches bear rising sequences without a gap; a new epoch starts at 0. An older
   epoch is refused.
2. A batch that is one of the last five again is not appended again: it is answered as it was.
3. A transactional batch opens a transaction where it lies; until a marker ends it, all batches of
   its producer must be part of it.
4. Readers of committed records stop at the first offset of a transaction that is open, or whose
   marker is not committed yet.

One rule is stricter than Kafka's. There, a producer of whom nothing is known may start at any
sequence, so a gap at its very start goes unseen, and its first batches may be stored out of order.
Here it must start at 0. Where it may be one that was forgotten, it is told so (`UnknownProducer`),
which its client answers with a new epoch; else it is a gap like any other. Producer ids are given
out in rising order, so one number separates the two: the greatest id that was ever forgotten.

Offsets that were given can be taken back as long as they are not committed. For each batch under
way, what was remembered before it is kept, and put back when it goes.

No loop, no clock, no disk: the time is passed in, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from millstream.broker.partition.producers.aborted_index import AbortedIndex, AbortedRange
from millstream.broker.partition.producers.entry import (
    NOTHING,
    AppendedBatch,
    ProducerEntry,
    next_sequence,
    with_batch,
    with_marker,
)
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    RequestError,
    Unavailable,
    UnknownProducer,
)
from millstream.records.batch import TRANSACTIONAL_BIT, BatchHeader
from millstream.records.control import Marker

PRODUCERS_MAX = 100_000
"""How many producers a partition remembers: some 50 MB at the worst. Each client has one."""

IDLE_MS_MIN = 900_000
"""When there are too many, those idle for so long are forgotten early: the longest that a
transaction may last, and far longer than clients go on retrying."""

ALL_PRODUCER_IDS = 2**63 - 1
"""As the greatest forgotten id: nobody is known to be new."""


class DuplicateBatch(RequestError):
    """The batch was appended before. Never reaches a client: it is answered as it was then."""

    def __init__(self, kept: AppendedBatch) -> None:
        super().__init__(f"appended before, at offset {kept.first_offset}")
        self.kept = kept


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """All that is remembered of the producers of a partition, as of one offset."""

    offset: int
    entries: Mapping[int, ProducerEntry]
    aborted: Iterable[AbortedRange]
    forgotten_max: int = NOTHING


_UncommittedStep: TypeAlias = tuple[int, int, ProducerEntry | None]
"""A batch under way: its offset, its producer, and what was remembered of that before."""


class ProducerStates:
    """The producers of one partition."""

    def __init__(self, *, expiration_ms: int, producers_max: int = PRODUCERS_MAX) -> None:
        self._expiration_ms = expiration_ms
        self._producers_max = producers_max
        self._entries: dict[int, ProducerEntry] = {}
        self._steps: deque[_UncommittedStep] = deque()
        self._open: dict[int, int] = {}
        """Open transactions: producer ids by first offset, in rising order."""
        self._ending: deque[tuple[int, int]] = deque()
        """Transactions whose marker is under way: its offset, and the first offset."""
        self.aborted = AbortedIndex()
        self.forgotten_max = NOTHING
        """The greatest id of a producer that was forgotten."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return what is remembered of a producer."""
        return self._entries.get(producer_id)

    def all(self) -> dict[int, ProducerEntry]:
        """Return what is remembered of every producer, by id."""
        return dict(self._entries)

    @property
    def has_steps(self) -> bool:
        """Whether anything is under way."""
        return bool(self._steps)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that readers of committed records must not see yet."""
        first = next(iter(self._open), None)
        if not self._ending:
            return first
        ending = min(first_offset for _, first_offset in self._ending)
        return ending if first is None else min(first, ending)

    # What comes in.

    def admit(
        self,
        header: BatchHeader,
        base_offset: int,
        *,
        now_ms: int,
        expected_marker_offset: int | None = None,
    ) -> None:
        """Take a client's batch that gets `base_offset`, or raise and change nothing.

        `expected_marker_offset` is the `marker_offset` of the producer's entry from when its
        transaction was looked up: if there was another marker since, the batch is too late to open
        a transaction.
        """
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            self._check_unknown(header, now_ms)
        else:
            _check_known(entry, header)
        if expected_marker_offset is not None and header.is_transactional:
            _check_marker_offset(entry, header, expected_marker_offset)
        self._steps.append((base_offset, producer_id, entry))
        after = with_batch(entry, header, base_offset, now_ms)
        if entry is not None and entry.first_offset == after.first_offset:
            self._entries[producer_id] = after
        else:
            self._put(producer_id, after)

    def admit_marker(
        self, header: BatchHeader, marker: Marker, offset: int, *, now_ms: int
    ) -> None:
        """Take a marker that gets `offset`, or raise and change nothing."""
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            _check_marker(entry, header, marker)
        self._steps.append((offset, header.producer_id, entry))
        if entry is not None and entry.is_in_transaction:
            self._ending.append((offset, entry.first_offset))
        self._end(header, marker, offset, now_ms)

    def kept(self, header: BatchHeader) -> AppendedBatch | None:
        """Return what is remembered of this batch, if it was appended before."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        last_sequence = next_sequence(header.base_sequence, header.last_offset_delta)
        return entry.kept(header.base_sequence, last_sequence)

    def replay(self, header: BatchHeader, marker: Marker | None, *, now_ms: int) -> None:
        """Take a batch that is in the log already, as it is; `marker` if it is a control batch."""
        if marker is not None:
            self._end(header, marker, header.base_offset, now_ms)
            return
        entry = self._entries.get(header.producer_id)
        self._put(header.producer_id, with_batch(entry, header, header.base_offset, now_ms))

    def _end(self, header: BatchHeader, marker: Marker, offset: int, now_ms: int) -> None:
        """End a producer's transaction, if one is open."""
        entry = self._entries.get(header.producer_id)
        ended = with_marker(entry, header, offset, marker.coordinator_epoch, now_ms)
        self._put(header.producer_id, ended)
        if entry is not None and entry.is_in_transaction and not marker.is_commit:
            stable = next(iter(self._open), offset + 1)
            self.aborted.add(AbortedRange(header.producer_id, entry.first_offset, offset, stable))

    def _check_unknown(self, header: BatchHeader, now_ms: int) -> None:
        if header.base_sequence != 0:
            found = f"producer {header.producer_id} starts with sequence {header.base_sequence}"
            if header.producer_id <= self.forgotten_max:
                raise UnknownProducer(f"{found}, and what it wrote before is not remembered")
            raise OutOfOrderSequence(f"{found}, expected 0")
        if len(self._entries) >= self._producers_max:
            self._make_room(now_ms)

    # What becomes of it.

    def committed(self, offset: int) -> None:
        """Take note that everything before `offset` stays."""
        steps = self._steps
        while steps and steps[0][0] < offset:
            steps.popleft()
        while self._ending and self._ending[0][0] < offset:
            self._ending.popleft()

    def rewind(self, offset: int) -> None:
        """Undo everything at `offset` and after it, exactly."""
        while self._ending and self._ending[-1][0] >= offset:
            self._ending.pop()
        while self._steps and self._steps[-1][0] >= offset:
            _, producer_id, before = self._steps.pop()
            self._put(producer_id, before)
        self.aborted.rewind(offset)

    def trim(self, start_offset: int) -> None:
        """Forget aborted transactions of which the log has nothing left."""
        self.aborted.trim(start_offset)

    def expire(self, now_ms: int) -> None:
        """Forget producers that were idle for too long; never one with a transaction open."""
        self._forget(self._idle(now_ms, self._expiration_ms))

    def _make_room(self, now_ms: int) -> None:
        """Forget the longest idle early, a tenth at once, so that this is rare."""
        idle = self._idle(now_ms, min(IDLE_MS_MIN, self._expiration_ms))
        idle.sort(key=lambda producer_id: self._entries[producer_id].seen_ms)
        self._forget(idle[: max(1, self._producers_max // 10)])
        if len(self._entries) >= self._producers_max:
            raise Unavailable(
                f"{len(self._entries)} producers are remembered, limit is {self._producers_max}"
            )

    def _idle(self, now_ms: int, idle_ms: int) -> list[int]:
        busy = {producer_id for _, producer_id, _ in self._steps}
        return [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.seen_ms >= idle_ms
            and not entry.is_in_transaction
            and producer_id not in busy
        ]

    def _forget(self, producer_ids: Iterable[int]) -> None:
        for producer_id in producer_ids:
            del self._entries[producer_id]
            self.forgotten_max = max(self.forgotten_max, producer_id)

    def _put(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Remember something else of a producer, or nothing, and keep `_open` in step."""
        old = self._entries.get(producer_id)
        before = old.first_offset if old is not None else NOTHING
        after = entry.first_offset if entry is not None else NOTHING
        if before != after:
            if before != NOTHING:
                del self._open[before]
            if after != NOTHING:
                is_last = not self._open or next(reversed(self._open)) < after
                self._open[after] = producer_id
                if not is_last:  # A marker was undone.
                    self._open = dict(sorted(self._open.items()))
        if entry is None:
            del self._entries[producer_id]
        else:
            self._entries[producer_id] = entry

    # To and from the disk.

    def settled(self, offset: int) -> ProducerSnapshot:
        """Return what holds whatever becomes of the batches under way, which start at `offset`."""
        entries = dict(self._entries)
        for _, producer_id, before in reversed(self._steps):
            if before is None:
                del entries[producer_id]
            else:
                entries[producer_id] = before
        return ProducerSnapshot(offset, entries, self.aborted.before(offset), self.forgotten_max)

    def restore(self, found: ProducerSnapshot) -> None:
        """Begin with what was remembered; nothing may have come in before."""
        assert not self._entries, "restored once, before anything else"
        self._entries = dict(found.entries)
        self._open = {
            entry.first_offset: producer_id
            for producer_id, entry in sorted(
                found.entries.items(), key=lambda item: item[1].first_offset
            )
            if entry.is_in_transaction
        }
        self.aborted = AbortedIndex(found.aborted)
        self.forgotten_max = found.forgotten_max


def _check_known(entry: ProducerEntry, header: BatchHeader) -> None:
    """Raise unless a batch may follow what is remembered."""
    epoch, sequence = header.producer_epoch, header.base_sequence
    is_transactional = header.attributes & TRANSACTIONAL_BIT
    if epoch == entry.epoch:
        if sequence != entry.next_sequence:
            last_sequence = next_sequence(sequence, header.last_offset_delta)
            if kept := entry.kept(sequence, last_sequence):
                raise DuplicateBatch(kept)
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sends sequence {sequence},"
                f" expected {entry.next_sequence}"
            )
        if entry.first_offset == NOTHING or is_transactional:
            return
    elif epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} has epoch {epoch}, newest is {entry.epoch}"
        )
    elif sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} starts epoch {epoch} with sequence {sequence},"
            " expected 0"
        )
    if entry.is_in_transaction:
        raise InvalidTransactionState(
            f"producer {header.producer_id} has a transaction open since offset"
            f" {entry.first_offset} in epoch {entry.epoch}, which a batch of epoch {epoch}"
            " must end or be part of"
        )


def _check_marker_offset(
    entry: ProducerEntry | None, header: BatchHeader, expected_offset: int
) -> None:
    """Raise if a batch would open a transaction that was ended while it was on its way."""
    if entry is None or entry.is_in_transaction or entry.marker_offset == expected_offset:
        return
    raise InvalidTransactionState(
        f"producer {header.producer_id} had its transaction ended at offset"
        f" {entry.marker_offset} while this batch was on its way"
    )


def _check_marker(entry: ProducerEntry, header: BatchHeader, marker: Marker) -> None:
    """Raise unless a marker may end what is remembered."""
    if header.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} is ended in epoch {header.producer_epoch},"
            f" newest is {entry.epoch}"
        )
    if marker.coordinator_epoch < entry.coordinator_epoch:
        raise InvalidTransactionState(
            f"producer {header.producer_id} is ended by a coordinator of epoch"
            f" {marker.coordinator_epoch}, newest is {entry.coordinator_epoch}"
        )

"""Producer states of one partition: sequence checks, duplicates and open transactions.

Rules, as in Kafka:

1. The sequences of a producer's batches rise without gaps; a new epoch starts at 0. Batches of an
   older epoch are rejected.
2. A batch that repeats one of the last five is not appended again: it is acknowledged like the
   first one. It repeats one if it has the same sequences and the same content, and if no marker has
   ended the transaction of the first one since. The same checksum proves the same content; without
   it, the caller has to compare the records (`ReusedSequence`).
3. A transactional batch opens a transaction at its offset; until a marker ends that, all batches of
   its producer must be part of it.
4. Readers of committed records stop at the first offset of a transaction that is open, or whose
   marker is not committed yet.

Two rules are stricter than Kafka's. There, a batch with the sequences of an earlier one is a
duplicate whatever it contains: if a client uses a sequence twice, the records of the second batch
are acknowledged and lost. Here that is an error.

And there, an unknown producer may start at any sequence, so a gap at its very start goes unnoticed,
and its first batches may be stored out of order. Here it must start at 0. If it may be a producer
that was forgotten, it gets `UnknownProducer`, which its client answers with a new epoch; otherwise
the gap is an error like any other. Producer ids are assigned in rising order, so one number
separates the two cases: the greatest id that was ever forgotten.

Offsets can be taken back until they are committed. For each uncommitted batch the previous entry of
its producer is kept, and restored if the batch is taken back.

No event loop, clock or disk: the time is a parameter, in milliseconds of a monotonic clock.
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
"""Producers that a partition remembers: about 50 MB at worst. Each client has one."""

IDLE_MS_MIN = 900_000
"""If there are too many producers, those that were idle for this long are forgotten early: the
longest duration of a transaction, and far longer than clients keep retrying."""

ALL_PRODUCER_IDS = 2**63 - 1
"""As the greatest forgotten id: any producer may be one that was forgotten."""


class DuplicateBatch(RequestError):
    """The batch was appended before. Clients get the result of the first one instead."""

    def __init__(self, first: AppendedBatch) -> None:
        super().__init__(f"already appended at offset {first.first_offset}")
        self.first = first


class ReusedSequence(OutOfOrderSequence):
    """The batch has the sequences of an earlier one and another checksum.

    It is a duplicate if its records are those of the first one: some clients encode a batch again
    to repeat it, with other timestamps, and the broker itself may have changed what it stored.
    """

    def __init__(self, message: str, first: AppendedBatch) -> None:
        super().__init__(message)
        self.first = first


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """The producer states of a partition as of one offset."""

    offset: int
    entries: Mapping[int, ProducerEntry]
    aborted: Iterable[AbortedRange]
    forgotten_max: int = NOTHING


_UncommittedBatch: TypeAlias = tuple[int, int, ProducerEntry | None]
"""The offset of a batch, its producer, and the entry of the producer from before the batch."""


class ProducerStates:
    """The producer states of one partition."""

    def __init__(self, *, expiration_ms: int, producers_max: int = PRODUCERS_MAX) -> None:
        self._expiration_ms = expiration_ms
        self._producers_max = producers_max
        self._entries: dict[int, ProducerEntry] = {}
        self._uncommitted: deque[_UncommittedBatch] = deque()
        self._open: dict[int, int] = {}
        """Open transactions: producer ids by first offset, in rising order."""
        self._ending: deque[tuple[int, int]] = deque()
        """Transactions with an uncommitted marker: its offset, and the first offset."""
        self.aborted = AbortedIndex()
        self.forgotten_max = NOTHING
        """The greatest id of a producer that was forgotten."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def all(self) -> dict[int, ProducerEntry]:
        """Return a copy of all entries, by producer id."""
        return dict(self._entries)

    @property
    def has_uncommitted(self) -> bool:
        """Whether any batch or marker is uncommitted."""
        return bool(self._uncommitted)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that readers of committed records must not see yet."""
        first = next(iter(self._open), None)
        if not self._ending:
            return first
        ending = min(first_offset for _, first_offset in self._ending)
        return ending if first is None else min(first, ending)

    # Admission.

    def admit(
        self,
        header: BatchHeader,
        base_offset: int,
        *,
        now_ms: int,
        expected_marker_offset: int | None = None,
    ) -> None:
        """Record a client's batch that gets `base_offset`, or raise and change nothing.

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
        self._uncommitted.append((base_offset, producer_id, entry))
        after = with_batch(entry, header, base_offset, now_ms)
        if entry is not None and entry.first_offset == after.first_offset:
            self._entries[producer_id] = after
        else:
            self._put(producer_id, after)

    def admit_marker(
        self, header: BatchHeader, marker: Marker, offset: int, *, now_ms: int
    ) -> None:
        """Record a marker that gets `offset`, or raise and change nothing."""
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            _check_marker(entry, header, marker)
        self._uncommitted.append((offset, header.producer_id, entry))
        if entry is not None and entry.is_in_transaction:
            self._ending.append((offset, entry.first_offset))
        self._end(header, marker, offset, now_ms)

    def find_duplicate(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the remembered batch that this one repeats, if any."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        first = entry.find_batch(header)
        return first if first is not None and first.crc == header.crc else None

    def replay(self, header: BatchHeader, marker: Marker | None, *, now_ms: int) -> None:
        """Record a batch from the log without checks; `marker` if it is a control batch."""
        if marker is not None:
            self._end(header, marker, header.base_offset, now_ms)
            return
        entry = self._entries.get(header.producer_id)
        self._put(header.producer_id, with_batch(entry, header, header.base_offset, now_ms))

    def replay_uncommitted(
        self, header: BatchHeader, marker: Marker | None, *, now_ms: int
    ) -> None:
        """Record a batch from the log that may still be taken back, without checks."""
        entry = self._entries.get(header.producer_id)
        self._uncommitted.append((header.base_offset, header.producer_id, entry))
        if marker is not None and entry is not None and entry.is_in_transaction:
            self._ending.append((header.base_offset, entry.first_offset))
        self.replay(header, marker, now_ms=now_ms)

    def drop_open(self) -> int | None:
        """Drop the open transactions, and return the first offset of the oldest, if there is one.

        For a replay that comes to damaged batches: one of them may have ended any of these.
        """
        first = next(iter(self._open), None)
        for producer_id in tuple(self._open.values()):
            self._put(producer_id, self._entries[producer_id]._replace(first_offset=NOTHING))
        return first

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
            start = f"producer {header.producer_id} starts with sequence {header.base_sequence}"
            if header.producer_id <= self.forgotten_max:
                raise UnknownProducer(f"{start}, but its earlier batches are no longer remembered")
            raise OutOfOrderSequence(f"{start}, expected 0")
        if len(self._entries) >= self._producers_max:
            self._evict_idle(now_ms)

    # Commit and rollback.

    def committed(self, offset: int) -> None:
        """Note that everything before `offset` is committed."""
        steps = self._uncommitted
        while steps and steps[0][0] < offset:
            steps.popleft()
        while self._ending and self._ending[0][0] < offset:
            self._ending.popleft()

    def rewind(self, offset: int) -> None:
        """Undo everything from `offset` on, exactly."""
        while self._ending and self._ending[-1][0] >= offset:
            self._ending.pop()
        while self._uncommitted and self._uncommitted[-1][0] >= offset:
            _, producer_id, before = self._uncommitted.pop()
            self._put(producer_id, before)
        self.aborted.rewind(offset)

    def trim(self, start_offset: int) -> None:
        """Forget aborted transactions that have no records left in the log."""
        self.aborted.trim(start_offset)

    def expire(self, now_ms: int) -> None:
        """Forget producers that were idle for too long, but never one with an open transaction."""
        self._forget(self._idle(now_ms, self._expiration_ms))

    def _evict_idle(self, now_ms: int) -> None:
        """Forget the producers that were idle longest, a tenth at once, so that this is rare."""
        idle = self._idle(now_ms, min(IDLE_MS_MIN, self._expiration_ms))
        idle.sort(key=lambda producer_id: self._entries[producer_id].seen_ms)
        self._forget(idle[: max(1, self._producers_max // 10)])
        if len(self._entries) >= self._producers_max:
            raise Unavailable(
                f"the partition has {len(self._entries)} producers, limit is {self._producers_max}"
            )

    def _idle(self, now_ms: int, idle_ms: int) -> list[int]:
        busy = {producer_id for _, producer_id, _ in self._uncommitted}
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
        """Set or remove the entry of a producer, and update `_open`."""
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

    # Snapshots.

    def snapshot(self, offset: int) -> ProducerSnapshot:
        """Return the states without the uncommitted batches, which start at `offset`."""
        entries = dict(self._entries)
        for _, producer_id, before in reversed(self._uncommitted):
            if before is None:
                del entries[producer_id]
            else:
                entries[producer_id] = before
        return ProducerSnapshot(offset, entries, self.aborted.before(offset), self.forgotten_max)

    def restore(self, snapshot: ProducerSnapshot) -> None:
        """Load a snapshot into empty states."""
        assert not self._entries, "restore comes before everything else"
        self._entries = dict(snapshot.entries)
        self._open = {
            entry.first_offset: producer_id
            for producer_id, entry in sorted(
                snapshot.entries.items(), key=lambda item: item[1].first_offset
            )
            if entry.is_in_transaction
        }
        self.aborted = AbortedIndex(snapshot.aborted)
        self.forgotten_max = snapshot.forgotten_max


def _check_known(entry: ProducerEntry, header: BatchHeader) -> None:
    """Raise unless the batch may follow the producer's entry."""
    epoch, sequence = header.producer_epoch, header.base_sequence
    is_transactional = header.attributes & TRANSACTIONAL_BIT
    if epoch == entry.epoch:
        if sequence != entry.next_sequence:
            first = entry.find_batch(header)
            if first is None:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} sent sequence {sequence},"
                    f" expected {entry.next_sequence}"
                )
            if first.crc == header.crc:
                raise DuplicateBatch(first)
            raise ReusedSequence(
                f"producer {header.producer_id} sent sequence {sequence} again with other records,"
                f" expected {entry.next_sequence}",
                first,
            )
        if entry.first_offset == NOTHING or is_transactional:
            return
    elif epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} sent epoch {epoch}, its newest epoch is {entry.epoch}"
        )
    elif sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} starts epoch {epoch} with sequence {sequence},"
            " expected 0"
        )
    if entry.is_in_transaction:
        raise InvalidTransactionState(
            f"producer {header.producer_id} has an open transaction from offset"
            f" {entry.first_offset} in epoch {entry.epoch}; this batch of epoch {epoch}"
            " is not part of it"
        )


def _check_marker_offset(
    entry: ProducerEntry | None, header: BatchHeader, expected_offset: int
) -> None:
    """Raise if the batch would open a transaction although one was ended while it was in flight."""
    if entry is None or entry.is_in_transaction or entry.marker_offset == expected_offset:
        return
    raise InvalidTransactionState(
        f"producer {header.producer_id} had its transaction ended at offset"
        f" {entry.marker_offset} while this batch was in flight"
    )


def _check_marker(entry: ProducerEntry, header: BatchHeader, marker: Marker) -> None:
    """Raise unless the marker may follow the producer's entry."""
    if header.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"marker of producer {header.producer_id} has epoch {header.producer_epoch},"
            f" but its newest epoch is {entry.epoch}"
        )
    if marker.coordinator_epoch < entry.coordinator_epoch:
        raise InvalidTransactionState(
            f"marker of producer {header.producer_id} has coordinator epoch"
            f" {marker.coordinator_epoch}, but the newest is {entry.coordinator_epoch}"
        )

"""What is remembered of one producer in one partition.

Values, not objects that change: what was true before a batch can be kept and put back whole when
the batch is taken back.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.records.batch import TRANSACTIONAL_BIT, BatchHeader

BATCHES_REMEMBERED = 5
"""As many as a client may have under way at once, so every retry finds the batch that it repeats.
Kafka's clients and Kafka itself count on the same number."""

SEQUENCE_MAX = 2**31 - 1
"""After this one comes 0."""

NOTHING = -1
"""Stands for "none" among offsets, sequences and epochs, as it does on the wire."""


class AppendedBatch(NamedTuple):
    """A batch that was appended: how to know it again, and what to answer then."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int
    """The greatest of its records."""


class ProducerEntry(NamedTuple):
    """What is remembered of one producer."""

    epoch: int
    batches: tuple[AppendedBatch, ...] = ()
    """The last of this epoch, oldest first."""
    first_offset: int = NOTHING
    """Where its open transaction began."""
    marker_offset: int = NOTHING
    """Where its last transaction ended."""
    coordinator_epoch: int = NOTHING
    timestamp_ms: int = NOTHING
    """The greatest of the last batch, by whatever clock dates the records."""
    seen_ms: int = 0
    """When it was last heard of, by the clock of whoever keeps the entry."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.first_offset != NOTHING

    @property
    def last_sequence(self) -> int:
        """The last sequence of this epoch."""
        return self.batches[-1].last_sequence if self.batches else NOTHING

    @property
    def next_sequence(self) -> int:
        """The only sequence that may follow."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX if self.batches else 0

    def kept(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        """Return the kept batch with exactly these sequences."""
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None


def next_sequence(sequence: int, count: int = 1) -> int:
    """Return the sequence `count` steps on."""
    return (sequence + count) & SEQUENCE_MAX


def with_batch(
    entry: ProducerEntry | None, header: BatchHeader, base_offset: int, seen_ms: int
) -> ProducerEntry:
    """Return what is to be remembered once a batch of records has its offset."""
    delta, timestamp_ms = header.last_offset_delta, header.max_timestamp
    batch = AppendedBatch(
        header.base_sequence,
        (header.base_sequence + delta) & SEQUENCE_MAX,
        base_offset,
        base_offset + delta,
        timestamp_ms,
    )
    first_offset = base_offset if header.attributes & TRANSACTIONAL_BIT else NOTHING
    epoch = header.producer_epoch
    if entry is None:
        return ProducerEntry(
            epoch, (batch,), first_offset, timestamp_ms=timestamp_ms, seen_ms=seen_ms
        )
    return ProducerEntry(
        epoch,
        (*entry.batches[1 - BATCHES_REMEMBERED :], batch) if entry.epoch == epoch else (batch,),
        entry.first_offset if entry.first_offset != NOTHING else first_offset,
        entry.marker_offset,
        entry.coordinator_epoch,
        timestamp_ms,
        seen_ms,
    )


def with_marker(
    entry: ProducerEntry | None,
    header: BatchHeader,
    offset: int,
    coordinator_epoch: int,
    seen_ms: int,
) -> ProducerEntry:
    """Return what is to be remembered once a marker has its offset."""
    is_same_epoch = entry is not None and entry.epoch == header.producer_epoch
    return ProducerEntry(
        header.producer_epoch,
        entry.batches if entry is not None and is_same_epoch else (),
        marker_offset=offset,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=header.max_timestamp,
        seen_ms=seen_ms,
    )

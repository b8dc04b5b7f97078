"""State of one producer in one partition.

Entries are immutable values: the entry from before a batch can be kept, and restored if the log
takes the batch back.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.records.batch import TRANSACTIONAL_BIT, BatchHeader

BATCHES_REMEMBERED = 5
"""As many as a client may have in flight, so that every retry finds the batch that it repeats.
Kafka and its clients rely on the same number."""

SEQUENCE_MAX = 2**31 - 1
"""The next sequence after it is 0."""

NOTHING = -1
"""Means "none" for offsets, sequences and epochs, as in Kafka's protocol."""


class AppendedBatch(NamedTuple):
    """An appended batch: how to recognise a duplicate of it, and how to acknowledge that."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int
    """The greatest timestamp of its records."""
    crc: int
    """Its checksum as it is stored; `NOTHING` if it comes from a snapshot of version 1."""


class ProducerEntry(NamedTuple):
    """The state of one producer."""

    epoch: int
    batches: tuple[AppendedBatch, ...] = ()
    """The last batches of this epoch, oldest first."""
    first_offset: int = NOTHING
    """The first offset of its open transaction."""
    marker_offset: int = NOTHING
    """The offset of the marker of its last transaction."""
    coordinator_epoch: int = NOTHING
    timestamp_ms: int = NOTHING
    """The greatest timestamp in the last batch, by the clock that dates records."""
    seen_ms: int = 0
    """The time of its last batch or marker, by the clock of the caller."""

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

    def find_batch(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the remembered batch with exactly these sequences, which `header` may repeat.

        Batches before the last marker are not found: their transaction has ended, and a client that
        starts over with the sequences of an aborted one must not take their place.
        """
        first_sequence = header.base_sequence
        last_sequence = (first_sequence + header.last_offset_delta) & SEQUENCE_MAX
        for batch in self.batches:
            if (
                batch.first_sequence == first_sequence
                and batch.last_sequence == last_sequence
                and batch.first_offset > self.marker_offset
            ):
                return batch
        return None


def with_batch(
    entry: ProducerEntry | None, header: BatchHeader, base_offset: int, seen_ms: int
) -> ProducerEntry:
    """Return the entry after a batch of records got its offset."""
    delta, timestamp_ms = header.last_offset_delta, header.max_timestamp
    batch = AppendedBatch(
        header.base_sequence,
        (header.base_sequence + delta) & SEQUENCE_MAX,
        base_offset,
        base_offset + delta,
        timestamp_ms,
        header.crc,
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
    """Return the entry after a marker got its offset."""
    is_same_epoch = entry is not None and entry.epoch == header.producer_epoch
    return ProducerEntry(
        header.producer_epoch,
        entry.batches if entry is not None and is_same_epoch else (),
        marker_offset=offset,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=header.max_timestamp,
        seen_ms=seen_ms,
    )

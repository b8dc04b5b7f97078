"""What a reader of a data directory sees, worked out as Kafka's clients do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.clients.partition import BatchChunk, Isolation
from millstream.records.batch import split
from millstream.records.iterate import read_all
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.data_directory import DataDirectory

COMMITTED, ALL = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def shown(stretch: BatchChunk, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
    """The records of a stretch that are not void, each with its offset."""
    waiting = {producer_id: list(firsts) for producer_id, firsts in stretch.aborted.items()}
    void: set[int] = set()
    for header, batch in split(stretch.data):
        firsts: Sequence[int] = waiting.get(header.producer_id, ())
        if firsts and firsts[0] <= header.last_offset:
            waiting[header.producer_id].pop(0)
            void.add(header.producer_id)
        if header.is_control:
            void.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in void):
            for record in read_all(batch):
                if start <= record.offset < end:
                    yield record.offset, record.value


def records(
    directory: DataDirectory,
    where: TopicPartition,
    *,
    start: int | None = None,
    isolation: Isolation = COMMITTED,
) -> list[tuple[int, bytes | None]]:
    """All that can be read of a partition, from `start` on."""
    bounds = directory.bounds([where], isolation=isolation)[where]
    first = bounds.start if start is None else start
    found: list[tuple[int, bytes | None]] = []
    position = first
    for stretch in directory.stretches(where, first, bounds.end, isolation=isolation):
        (header, _), *_ = split(stretch.data)
        assert header.base_offset <= position < header.next_offset, "no gap, and nothing twice"
        found += shown(stretch, first, bounds.end)
        position = stretch.next_offset
    assert position >= bounds.end
    return found

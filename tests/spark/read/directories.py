"""Records that a reader of a data directory sees, filtered as Kafka's clients do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.clients.partition import BatchChunk, Isolation
from millstream.records.batch import split
from millstream.records.iterate import read_all
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.data_directory import DataDirectory

COMMITTED, ALL = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def shown(chunk: BatchChunk, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
    """Return the records of a chunk that are not aborted, with their offsets."""
    waiting = {producer_id: list(firsts) for producer_id, firsts in chunk.aborted.items()}
    void: set[int] = set()
    for header, batch in split(chunk.data):
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
    """Return all readable records of a partition from `start`."""
    bounds = directory.bounds([where], isolation=isolation)[where]
    first = bounds.start if start is None else start
    found: list[tuple[int, bytes | None]] = []
    position = first
    for chunk in directory.chunks(where, first, bounds.end, isolation=isolation):
        (header, _), *_ = split(chunk.data)
        assert header.base_offset <= position < header.next_offset, "no gap, and nothing twice"
        found += shown(chunk, first, bounds.end)
        position = chunk.next_offset
    assert position >= bounds.end
    return found

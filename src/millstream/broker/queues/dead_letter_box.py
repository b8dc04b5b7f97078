"""The dead letters of a queue: listed, moved back to the queue (redrive), or deleted (purge).

    redrive:  append letters to the queue's topic, durable  ->  delete them from the dead-letter
              topic, durable

A crash or an error between the two steps leaves letters that are jobs already, and the next redrive
makes jobs of them again: at least once, as every delivery of a queue. No letter is lost.

Records are deleted up to an offset, so redrive and purge stop at the first record that is not a
letter of the queue. They also stop before letters of a move that is not finished: after a crash,
the mover looks for these to know what it has moved (`dead_letter_mover.py`). Letters for batches
that cannot be decoded are no jobs: a redrive appends them to the dead-letter topic again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from millstream.broker.access.caller import Caller
from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import read_page, size_of
from millstream.broker.queues.dead_letter_mover import (
    BATCH_BYTES_MAX,
    DAMAGED,
    DELIVERIES_HEADER,
    JOBS_MAX,
    OFFSET_HEADER,
    PARTITION_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    SEAL_HEADER,
    TIMESTAMP_HEADER,
)
from millstream.broker.queues.job_browser import RecordPosition
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.queues import WorkQueues
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.errors import InvalidRequest, NotLeader, Unavailable
from millstream.records.record import Record, StoredRecord

REDRIVE_MAX = 1_000
"""Letters of one redrive; the caller repeats it until none remains."""

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Size of the letters of one page; a single one may be larger."""

LETTER_HEADERS = frozenset(
    {
        QUEUE_HEADER,
        PARTITION_HEADER,
        OFFSET_HEADER,
        DELIVERIES_HEADER,
        REASON_HEADER,
        TIMESTAMP_HEADER,
        SEAL_HEADER,
    }
)
"""Headers that a letter has in addition to those of its job."""


class DeadLetter(NamedTuple):
    """A record of a dead-letter topic."""

    partition: int
    record: StoredRecord


class DeadLetterPage(NamedTuple):
    """Some records of a dead-letter topic, by partition and offset."""

    letters: list[DeadLetter]
    next: RecordPosition | None
    """The last position looked at, if there may be more after it."""
    size: int
    """Offsets in the topic."""


class RedriveResult(NamedTuple):
    """Number of letters that were moved or deleted, and of offsets that are left."""

    moved: int
    remaining: int


class DeadLetterBox:
    """The dead letters of all queues of a node. Used on its event loop only."""

    def __init__(self, *, topics: Topics, queues: WorkQueues, appends: RecordAppender) -> None:
        self._topics = topics
        self._queues = queues
        self._appends = appends
        self._locks = KeyedLocks()
        """One change of the letters of a queue at a time: two redrives would move them twice."""

    async def close(self) -> None:
        """Wait for changes in flight; further ones are refused."""
        await self._locks.close()

    async def page(
        self, queue: WorkQueue, *, after: RecordPosition | None, limit: int
    ) -> DeadLetterPage:
        """Return the records of the dead-letter topic of a queue after a position."""
        letters: list[DeadLetter] = []
        position = after or RecordPosition(0, -1)
        next_position: RecordPosition | None = None
        offsets, size = 0, 0
        async for partition in self._partitions(queue):
            start, end = partition.log_start_offset, partition.high_watermark
            offsets += end - start
            if partition.index < position.partition:
                continue
            cursor = max(start, position.offset + 1 if partition.index == position.partition else 0)
            while cursor < end and next_position is None:
                if len(letters) == limit or size >= PAGE_BYTES_MAX:
                    next_position = RecordPosition(partition.index, cursor - 1)
                    break
                wanted = limit - len(letters)
                page = await read_page(partition, cursor, limit=wanted, size_max=PAGE_BYTES_MAX)
                letters += [DeadLetter(partition.index, record) for record in page.records]
                size += sum(map(size_of, page.records))
                if page.next_offset == cursor:
                    break
                cursor = page.next_offset
        return DeadLetterPage(letters, next_position, offsets)

    async def redrive(
        self, queue: WorkQueue, limit: int = REDRIVE_MAX, caller: Caller | None = None
    ) -> RedriveResult:
        """Append up to `limit` letters to the topic of the queue as new jobs, and delete them.

        Their keys, values and headers are those of the first job; deliveries count from 0 again.
        Raises `InvalidRequest` if the first record is not a letter of this queue.
        """
        return await self._locks.run(queue.name, self._redrive(queue, limit, caller))

    async def purge(self, queue: WorkQueue) -> RedriveResult:
        """Delete all letters of the queue. Raises as `redrive` does."""
        return await self._locks.run(queue.name, self._purge(queue))

    async def _redrive(self, queue: WorkQueue, limit: int, caller: Caller | None) -> RedriveResult:
        self._check_not_a_queue(queue)
        moved = 0
        async for partition in self._partitions(queue):
            end = self._end(queue, partition)
            while moved < limit and partition.log_start_offset < end:
                letters, next_offset = await self._own_letters(
                    queue, partition, end, limit=min(JOBS_MAX, limit - moved), moved=moved
                )
                jobs = [_job_of(letter) for letter in letters if not _is_damaged(letter)]
                if jobs:
                    topic = self._topics.by_id(queue.store.topic.id)
                    await self._appends.append(topic, jobs, caller=caller)
                await self._keep(partition, [letter for letter in letters if _is_damaged(letter)])
                if not await _delete(partition, next_offset):
                    break
                moved += len(jobs)
        return RedriveResult(moved, await self._remaining(queue))

    async def _keep(self, partition: ReadablePartition, letters: list[StoredRecord]) -> None:
        """Append letters to their partition again, because everything before is deleted."""
        if letters:
            records = [
                Record(letter.value, letter.key, letter.headers, letter.timestamp_ms)
                for letter in letters
            ]
            topic = self._topics.by_id(partition.topic_id)
            partitions = [partition.index] * len(records)
            await self._appends.append(topic, records, partitions=partitions)

    async def _purge(self, queue: WorkQueue) -> RedriveResult:
        self._check_not_a_queue(queue)
        purged = 0
        async for partition in self._partitions(queue):
            end = self._end(queue, partition)
            while partition.log_start_offset < end:
                letters, next_offset = await self._own_letters(
                    queue, partition, end, limit=REDRIVE_MAX, moved=purged
                )
                if not await _delete(partition, next_offset):
                    break
                purged += len(letters)
        return RedriveResult(purged, await self._remaining(queue))

    async def _own_letters(
        self, queue: WorkQueue, partition: ReadablePartition, end: int, *, limit: int, moved: int
    ) -> tuple[list[StoredRecord], int]:
        """Return the first letters of a partition, and the offset after them."""
        page = await read_page(
            partition, partition.log_start_offset, limit=limit, size_max=BATCH_BYTES_MAX
        )
        letters: list[StoredRecord] = []
        for record in page.records:
            if record.offset >= end:
                return letters, end
            if dict(record.headers).get(QUEUE_HEADER) != queue.name.encode():
                if not letters and not moved:
                    raise InvalidRequest(
                        f"record {record.offset} of {partition} is not a dead letter of queue"
                        f" {queue.name}: letters are moved and deleted in order, so move or delete"
                        " this record first"
                    )
                return letters, record.offset
            letters.append(record)
        return letters, min(end, page.next_offset)

    def _end(self, queue: WorkQueue, partition: ReadablePartition) -> int:
        """Return the offset before which letters may be deleted."""
        end = partition.last_stable_offset
        intent = queue.store.state.intent
        if intent is None:
            return end
        is_known = (
            partition.index < len(intent.ends) and intent.topic_id == partition.topic_id.bytes
        )
        return min(end, intent.ends[partition.index]) if is_known else 0

    async def _remaining(self, queue: WorkQueue) -> int:
        remaining = 0
        async for partition in self._partitions(queue):
            remaining += partition.high_watermark - partition.log_start_offset
        return remaining

    async def _partitions(self, queue: WorkQueue) -> AsyncIterator[ReadablePartition]:
        """Yield the partitions of the dead-letter topic, open; none if it does not exist."""
        await queue.store.usable()
        topic = self._dead_letter_topic(queue)
        for partition in [] if topic is None else list(topic.partitions):
            await partition.anywhere.open()
            await partition.anywhere.settle()
            yield partition.anywhere

    def _dead_letter_topic(self, queue: WorkQueue) -> Topic | None:
        return self._topics.find(queue.config.dead_letter)

    def _check_not_a_queue(self, queue: WorkQueue) -> None:
        """Raise if the dead-letter topic is a queue: its letters are jobs of other workers."""
        name = queue.config.dead_letter
        if not self._queues.knows(name):
            return
        raise InvalidRequest(
            f"the dead letters of queue {queue.name} are jobs of queue {name}: claim them there"
        )


async def _delete(partition: ReadablePartition, offset: int) -> bool:
    """Delete the records before `offset`; return whether there were any.

    Their jobs may have been appended already, so no error may say that nothing was done.
    """
    if offset <= partition.log_start_offset:
        return False
    try:
        await partition.delete_before(offset)
    except NotLeader as error:
        raise Unavailable(f"some letters may have been moved already: {error}") from error
    return True


def _is_damaged(letter: StoredRecord) -> bool:
    """Return whether a letter stands for records that cannot be decoded: it is no job."""
    return dict(letter.headers).get(REASON_HEADER) == DAMAGED.encode()


def _job_of(letter: StoredRecord) -> Record:
    headers = tuple(header for header in letter.headers if header[0] not in LETTER_HEADERS)
    return Record(letter.value, letter.key, headers)

"""Dead letters: moves exhausted jobs to another topic, exactly once.

    intent durable -> appended to the dead-letter topic -> move durable: the counts change
         |                                                       |
         +-- after a crash or an error: look for letters that ---+
             were appended since the intent, append the others

A dead letter keeps key, value, headers and timestamp of its job, and has additional headers that
tell where it came from. One of them is sealed with the secret of the queue, so that nobody else can
write a record that is taken for it. The value of a letter for a batch that cannot be decoded is
that batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.results import FetchResult
from millstream.broker.queues.decisions import (
    exhausted_jobs,
    is_expired,
    is_returned_by_worker,
)
from millstream.broker.queues.events import (
    DeadLettersIntended,
    DeadLettersMoved,
    JobPosition,
    group_jobs,
)
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.read_ahead import read_offsets
from millstream.broker.topics.configs.topic_config import NO_LIMIT
from millstream.broker.topics.configs.topic_settings import DURABILITY, RETENTION_MS
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.clock import Timer, Timers
from millstream.config.schema import KIB
from millstream.errors import (
    CorruptBatch,
    DamagedRecords,
    InvalidTimestamp,
    MillstreamError,
    RequestError,
    TopicExists,
    UnknownTopic,
)
from millstream.records.batch import decode_header, split
from millstream.records.compression import BODY_SIZE_MAX, OversizedBody
from millstream.records.iterate import read_records
from millstream.records.record import Header, Record, StoredRecord

logger = logging.getLogger(__name__)

JOBS_MAX = 100
"""Jobs of one intent: the most that have to be looked for after a crash."""

BATCH_BYTES_MAX = 256 * KIB
"""Size of the letters that are appended together; a single one may be larger."""

RETRY_SECONDS_MIN = 1.0
RETRY_SECONDS_MAX = 60.0
"""Delay before a failed move is tried again; it doubles each time, up to a minute."""

REFUSED_DELAY_MS = 60_000
"""Delay of a job that the dead-letter topic refuses, because of its size or otherwise."""

QUEUE_HEADER = "millstream-queue"
PARTITION_HEADER = "millstream-partition"
OFFSET_HEADER = "millstream-offset"
DELIVERIES_HEADER = "millstream-deliveries"
REASON_HEADER = "millstream-reason"
TIMESTAMP_HEADER = "millstream-timestamp"
SEAL_HEADER = "millstream-seal"
LAST_OFFSET_HEADER = "millstream-last-offset"
ERROR_HEADER = "millstream-error"

DAMAGED = "damaged"
"""The reason of a letter for records that cannot be decoded."""

_READ_BYTES_MAX = 1024 * KIB

_ALL = 2**62


class DeadLetterMover:
    """Moves the exhausted jobs of one queue."""

    def __init__(
        self, store: QueueStore, topics: Topics, appends: RecordAppender, timers: Timers
    ) -> None:
        self._store = store
        self._topics = topics
        self._appends = appends
        self._timers = timers
        self._task: asyncio.Task[None] | None = None
        self._retry: Timer | None = None
        self._retry_seconds = RETRY_SECONDS_MIN
        self._is_closed = False
        self._fresh: DeadLettersIntended | None = None
        """An intent of this process for which nothing can have been appended yet."""

    def wake(self) -> None:
        """Start moving, if there are jobs to move."""
        if self._task is not None or self._retry is not None or self._is_closed:
            return
        if self._store.state.exhausted or self._store.state.intent is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._end)

    async def close(self) -> None:
        """Stop. The next start continues an unfinished move."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            name = self._store.topic.name
            logger.error("queue %s: moving dead letters failed", name, exc_info=error)
        else:
            self.wake()  # There may be more jobs since the task last looked.

    async def _run(self) -> None:
        try:
            while await self._step():
                self._retry_seconds = RETRY_SECONDS_MIN
        except MillstreamError as error:
            name = self._store.topic.name
            logger.warning("queue %s: cannot move dead letters, will retry: %s", name, error)
            if not self._is_closed:
                self._retry = self._timers.call_later(self._retry_seconds, self._try_again)
                self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    async def _step(self) -> bool:
        """Declare the intent to move some jobs, or move them; returns whether there were any."""
        state = await self._store.usable()
        if state.intent is not None:
            await self._move(state.intent)
        elif exhausted_jobs(state, 1):
            await self._intend()
        else:
            return False
        return True

    async def _intend(self) -> None:
        """Make durable which jobs are about to become dead letters."""
        topic = await self._dead_letter_topic()
        ends = [partition.anywhere.high_watermark for partition in topic.partitions]
        state = self._store.current()
        if state is None or state.intent is not None:
            return  # It changed while the topic was opened. The next step looks again.
        jobs = exhausted_jobs(state, JOBS_MAX)
        if not jobs:
            return
        expired = [(due.partition, due.offset) for due in jobs if is_expired(due)]
        nacked = [(due.partition, due.offset) for due in jobs if is_returned_by_worker(due)]
        damaged = [(due.partition, due.offset) for due in jobs if due.job.is_damaged]
        event = DeadLettersIntended(
            topic.id.bytes, ends, group_jobs(expired), group_jobs(nacked), group_jobs(damaged)
        )
        ticket = self._store.commit(event)
        self._fresh = None
        await self._store.wait(ticket)
        self._fresh = event

    async def _dead_letter_topic(self) -> Topic:
        """Return the dead-letter topic, all partitions open; creates it if it does not exist."""
        name = self._store.config.dead_letter
        topic = self._topics.find(name)
        if topic is None:
            configs = {
                DURABILITY: self._store.topic.config.durability.value,
                RETENTION_MS: str(NO_LIMIT),
            }
            try:
                topic = await self._topics.create(name, configs=configs)
            except TopicExists:  # It was created meanwhile.
                topic = self._topics.get(name)
        for partition in topic.partitions:
            await partition.anywhere.open()
            await partition.anywhere.settle()
        return topic

    async def _move(self, intent: DeadLettersIntended) -> None:
        """Append the letters that are not in the topic yet, and commit the move."""
        topic = await self._dead_letter_topic()
        reasons = dict(_reasons(intent))
        done: set[JobPosition] = set()
        if intent is not self._fresh:
            done = await self._find(topic, intent)
        self._fresh = None
        letters: dict[JobPosition, Record] = {}
        missing: set[JobPosition] = set()
        for index, offsets in group_jobs(
            [position for position in reasons if position not in done]
        ):
            partition = self._store.partitions[index]
            await partition.open()
            read = await read_offsets(partition, offsets, size_max=_ALL)
            jobs = self._store.state.partitions[index].jobs
            for offset, record in read.records.items():
                reason = reasons[index, offset]
                if jobs[offset].number:
                    letters[index, offset] = self._letter(index, record, reason)
                else:  # A whole batch: this is only its first record, though it can be decoded now.
                    letters[index, offset] = await self._damage_letter(
                        partition, offset, reason, offset
                    )
            for offset, damage in read.damaged.items():
                letters[index, offset] = await self._damage_letter(
                    partition, offset, damage.reason, damage.to_offset
                )
            missing.update((index, offset) for offset in read.missing)
        kept: set[JobPosition] = set()
        for batch in _batches(letters):
            kept |= await self._append(topic, batch)
        state = self._store.current()
        if state is None or state.intent is not intent:
            return  # The state was replayed from the log. The next step looks for the letters.
        moved = [
            position for position in reasons if position not in missing and position not in kept
        ]
        event = DeadLettersMoved(
            group_jobs(moved),
            group_jobs(sorted(missing)),
            group_jobs(sorted(kept)),
            due_ms=self._store.begin_ms() + REFUSED_DELAY_MS,
            delay_ms=REFUSED_DELAY_MS,
        )
        await self._store.wait(self._store.commit(event))

    async def _append(self, topic: Topic, letters: dict[JobPosition, Record]) -> set[JobPosition]:
        """Append letters; returns those that the topic refuses in any form.

        A topic may refuse timestamps that are too far from the present. Such letters get the
        present time.
        """
        try:
            await self._appends.append(topic, list(letters.values()))
        except InvalidTimestamp:
            if all(letter.timestamp_ms is None for letter in letters.values()):
                return set(letters)
            return await self._append(
                topic,
                {
                    position: _with_original_timestamp(letter)
                    for position, letter in letters.items()
                },
            )
        except UnknownTopic:
            raise
        except RequestError as error:
            if len(letters) == 1:
                [(position, letter)] = letters.items()
                if letter.value is not None and _is_damage(letter):
                    # The batch is too large for the topic; the headers say where it is.
                    return await self._append(topic, {position: replace(letter, value=None)})
                name = self._store.topic.name
                logger.warning(
                    "queue %s: topic %s refused a dead letter: %s", name, topic.name, error
                )
                return set(letters)
            refused = [
                await self._append(topic, {position: letter})
                for position, letter in letters.items()
            ]
            return set().union(*refused)
        return set()

    def _letter(self, index: int, record: StoredRecord, reason: str) -> Record:
        headers = record.headers + self._headers(index, record.offset, reason)
        return Record(record.value, record.key, headers, record.timestamp_ms)

    async def _damage_letter(
        self, partition: ReadablePartition, offset: int, error: str, last_offset: int
    ) -> Record:
        """Return the letter for records from `offset` to `last_offset` that cannot be decoded.

        A batch of which no job was delivered becomes one letter, with the stored bytes as its value
        if they can be read. A job that was delivered is a letter of its own.
        """
        value = None
        if self._store.state.partitions[partition.index].jobs[offset].number:
            last_offset = offset
        elif (value := await _stored_batch(partition, offset)) is not None:
            last_offset = decode_header(value).last_offset
        headers = (
            *self._headers(partition.index, offset, DAMAGED),
            (LAST_OFFSET_HEADER, b"%d" % last_offset),
            (ERROR_HEADER, error.encode()),
        )
        return Record(value, None, headers)

    def _headers(self, index: int, offset: int, reason: str) -> tuple[Header, ...]:
        store = self._store
        deliveries = store.state.partitions[index].jobs[offset].deliveries
        return (
            (QUEUE_HEADER, store.topic.name.encode()),
            (PARTITION_HEADER, b"%d" % index),
            (OFFSET_HEADER, b"%d" % offset),
            (DELIVERIES_HEADER, b"%d" % deliveries),
            (REASON_HEADER, reason.encode()),
            (SEAL_HEADER, store.seals.make(index, offset, 0).encode()),
        )

    async def _find(self, topic: Topic, intent: DeadLettersIntended) -> set[JobPosition]:
        """Return the jobs of an intent that are in the dead-letter topic already."""
        is_same = topic.id.bytes == intent.topic_id
        positions: set[JobPosition] = set()
        for partition in topic.partitions:
            is_known = is_same and partition.index < len(intent.ends)
            cursor = intent.ends[partition.index] if is_known else 0
            positions.update(await self._seals(partition.anywhere, cursor))
        return positions

    async def _seals(self, partition: ReadablePartition, cursor: int) -> set[JobPosition]:
        """Return the jobs of this queue whose letters are in a partition from `cursor` on."""
        positions: set[JobPosition] = set()
        cursor = max(cursor, partition.log_start_offset)
        while cursor < partition.high_watermark:
            fetched = await partition.reader.fetch(
                cursor, size_max=_READ_BYTES_MAX, is_committed_only=False
            )
            if not fetched.parts:
                break
            work = partial(self._origins, fetched)
            positions |= await partition.opener.run(fetched.parts, work)
            cursor = fetched.next_offset
            await asyncio.sleep(0)
        return positions

    def _origins(self, fetched: FetchResult, size_max: int) -> set[JobPosition]:
        """Return the jobs of this queue whose letters are in these batches."""
        positions: set[JobPosition] = set()
        for part in fetched.parts:
            for header, batch in split(part):
                if not header.is_control:
                    records = _decoded(batch, size_max)
                    positions.update(position for r in records if (position := self._origin(r)))
        return positions

    def _origin(self, record: StoredRecord) -> JobPosition | None:
        seal = dict(record.headers).get(SEAL_HEADER)
        delivery = self._store.seals.read(seal.decode("latin-1")) if seal else None
        return None if delivery is None else (delivery.partition, delivery.offset)


def _reasons(intent: DeadLettersIntended) -> Iterator[tuple[JobPosition, str]]:
    for reason, jobs in (
        ("expired", intent.expired),
        ("nacked", intent.nacked),
        (DAMAGED, intent.damaged),
    ):
        for partition, offsets in jobs:
            for offset in offsets:
                yield (partition, offset), reason


async def _stored_batch(partition: ReadablePartition, offset: int) -> bytes | None:
    """Return the batch at an offset as it is stored; `None` if it cannot be read."""
    try:
        fetched = await partition.reader.fetch(offset, size_max=1, is_committed_only=False)
    except DamagedRecords:
        return None
    return bytes(fetched.parts[0]) if fetched.parts else None


def _decoded(batch: memoryview, size_max: int) -> list[StoredRecord]:
    """Return the records of a batch; none if they cannot be decoded, as others wrote it then."""
    try:
        return read_records(batch, size_max=size_max)
    except CorruptBatch as error:
        if isinstance(error, OversizedBody) and size_max < BODY_SIZE_MAX:
            raise
        return []


def _is_damage(letter: Record) -> bool:
    return dict(letter.headers).get(REASON_HEADER) == DAMAGED.encode()


def _with_original_timestamp(letter: Record) -> Record:
    """Return a letter that gets the time of its append, with its own timestamp in a header."""
    if letter.timestamp_ms is None:
        return letter
    original = (TIMESTAMP_HEADER, b"%d" % letter.timestamp_ms)
    return replace(letter, timestamp_ms=None, headers=(*letter.headers, original))


def _batches(letters: dict[JobPosition, Record]) -> Iterator[dict[JobPosition, Record]]:
    batch: dict[JobPosition, Record] = {}
    size = 0
    for position, letter in letters.items():
        letter_size = len(letter.value or b"") + len(letter.key or b"")
        if batch and size + letter_size > BATCH_BYTES_MAX:
            yield batch
            batch, size = {}, 0
        batch[position] = letter
        size += letter_size
    if batch:
        yield batch

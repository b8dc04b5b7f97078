"""Dead letters: jobs that were handed out too often move to another topic, once.

    intent durable -> appended to the dead-letter topic -> burial durable: the counts move
         |                                                       |
         +-- a crash, or an error: what was appended since ------+
             the intent is looked for, and only the rest is appended

A dead letter keeps key, value, headers and timestamp of its job, and has headers more that say
where it came from. One of them is sealed with the secret of the queue, so that nobody else can
write what would pass for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from msgspec.structs import replace

from millstream.broker.partition.partition import Partition
from millstream.broker.queues.decisions import exhausted_jobs, is_returned_by_worker
from millstream.broker.queues.events import DeadLettersIntended, DeadLettersMoved, group_jobs
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
    InvalidTimestamp,
    MillstreamError,
    RequestError,
    TopicExists,
    UnknownTopic,
)
from millstream.records.batch import split
from millstream.records.iterate import read_records
from millstream.records.record import Record, StoredRecord

logger = logging.getLogger(__name__)

JOBS_MAX = 100
"""Jobs of one burial: so many records are looked for after a crash, and no more."""

BATCH_BYTES_MAX = 256 * KIB
"""Jobs that are appended together; one alone may be larger."""

RETRY_SECONDS_MIN = 1.0
RETRY_SECONDS_MAX = 60.0
"""How soon a burial that failed is tried again; twice as long each time, up to a minute."""

REFUSED_DELAY_MS = 60_000
"""How long a job rests that the dead-letter topic does not take, for its size or otherwise."""

QUEUE_HEADER = "millstream-queue"
PARTITION_HEADER = "millstream-partition"
OFFSET_HEADER = "millstream-offset"
DELIVERIES_HEADER = "millstream-deliveries"
REASON_HEADER = "millstream-reason"
TIMESTAMP_HEADER = "millstream-timestamp"
SEAL_HEADER = "millstream-seal"

_READ_BYTES_MAX = 1024 * KIB

_ALL = 2**62

JobPosition = tuple[int, int]
"""Partition and offset of a job."""


class DeadLetterMover:
    """Moves the jobs of one queue that were handed out too often."""

    def __init__(
        self, ledger: QueueStore, topics: Topics, appends: RecordAppender, timers: Timers
    ) -> None:
        self._ledger = ledger
        self._topics = topics
        self._appends = appends
        self._timers = timers
        self._work: asyncio.Task[None] | None = None
        self._retry: Timer | None = None
        self._retry_seconds = RETRY_SECONDS_MIN
        self._is_closed = False
        self._fresh: DeadLettersIntended | None = None
        """An intent of this process for which nothing can have been appended yet."""

    def wake(self) -> None:
        """Begin, if there is anything to do."""
        if self._work is not None or self._retry is not None or self._is_closed:
            return
        if self._ledger.state.doomed or self._ledger.state.intent is not None:
            self._work = asyncio.get_running_loop().create_task(self._run())
            self._work.add_done_callback(self._end)

    async def close(self) -> None:
        """Do no more. What was begun, the next start goes on with."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _end(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled() and (error := work.exception()) is not None:
            name = self._ledger.topic.name
            logger.error("dead letters of %s failed", name, exc_info=error)
        else:
            self.wake()  # There may be more since it last looked.

    async def _run(self) -> None:
        try:
            while await self._step():
                self._retry_seconds = RETRY_SECONDS_MIN
        except MillstreamError as error:
            name = self._ledger.topic.name
            logger.warning("queue %s: dead letters are tried again: %s", name, error)
            if not self._is_closed:
                self._retry = self._timers.call_later(self._retry_seconds, self._try_again)
                self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    async def _step(self) -> bool:
        """Bury some jobs; returns whether there were any."""
        ledger = self._ledger
        state = await ledger.usable()
        if state.intent is None:
            if not exhausted_jobs(state, 1):
                return False
            await self._intend()
        state = await ledger.usable()
        if (intent := state.intent) is not None:
            await self._fulfil(intent)
        return True

    async def _intend(self) -> None:
        """Make durable which jobs are about to be dead letters."""
        topic = await self._dead_letters()
        ends = [partition.appender.next_offset for partition in topic.partitions]
        state = await self._ledger.usable()
        chosen = exhausted_jobs(state, JOBS_MAX)
        if not chosen or state.intent is not None:
            return
        expired = [(due.partition, due.offset) for due in chosen if not is_returned_by_worker(due)]
        nacked = [(due.partition, due.offset) for due in chosen if is_returned_by_worker(due)]
        event = DeadLettersIntended(topic.id.bytes, ends, group_jobs(expired), group_jobs(nacked))
        ticket = self._ledger.commit(event)
        self._fresh = None
        await self._ledger.wait(ticket)
        self._fresh = event

    async def _dead_letters(self) -> Topic:
        """Return the dead-letter topic, all open; it is made where there is none."""
        name = self._ledger.config.dead_letter
        topic = self._topics.find(name)
        if topic is None:
            configs = {
                DURABILITY: self._ledger.topic.config.durability.value,
                RETENTION_MS: str(NO_LIMIT),
            }
            try:
                topic = await self._topics.create(name, configs=configs)
            except TopicExists:  # Someone else was faster.
                topic = self._topics.get(name)
        for partition in topic.partitions:
            await partition.open()
            await partition.settle()
        return topic

    async def _fulfil(self, intent: DeadLettersIntended) -> None:
        """Append what is not appended yet, and make durable that all is."""
        topic = await self._dead_letters()
        reasons = dict(_reasons(intent))
        done: set[JobPosition] = set()
        if intent is not self._fresh:
            done = await self._find(topic, intent)
        self._fresh = None
        letters: dict[JobPosition, Record] = {}
        missing: set[JobPosition] = set()
        for index, offsets in group_jobs([place for place in reasons if place not in done]):
            partition = self._ledger.topic.partition(index)
            await partition.open()
            found = await read_offsets(partition, offsets, size_max=_ALL)
            for offset, record in found.records.items():
                letters[index, offset] = self._letter(index, record, reasons[index, offset])
            missing.update((index, offset) for offset in found.missing)
        kept: set[JobPosition] = set()
        for some in _batches(letters):
            kept |= await self._append(topic, some)
        await self._ledger.usable()
        if self._ledger.state.intent is not intent:
            return  # It was read again from the log, and is looked at anew.
        buried = [place for place in reasons if place not in missing and place not in kept]
        event = DeadLettersMoved(
            group_jobs(buried),
            group_jobs(sorted(missing)),
            group_jobs(sorted(kept)),
            due_ms=self._ledger.begin_ms() + REFUSED_DELAY_MS,
            delay_ms=REFUSED_DELAY_MS,
        )
        await self._ledger.wait(self._ledger.commit(event))

    async def _append(self, topic: Topic, letters: dict[JobPosition, Record]) -> set[JobPosition]:
        """Append letters; returns those that the topic does not take, whatever it is asked.

        A topic may refuse records whose date is too far from the present. These get the present.
        """
        try:
            await self._appends.append(topic, list(letters.values()))
        except InvalidTimestamp:
            if all(letter.timestamp_ms is None for letter in letters.values()):
                return set(letters)
            return await self._append(
                topic, {p: _with_original_timestamp(one) for p, one in letters.items()}
            )
        except UnknownTopic:
            raise
        except RequestError as error:
            if len(letters) == 1:
                name = self._ledger.topic.name
                logger.warning("queue %s: %s takes no dead letter: %s", name, topic.name, error)
                return set(letters)
            refused = [await self._append(topic, {p: one}) for p, one in letters.items()]
            return set().union(*refused)
        return set()

    def _letter(self, index: int, record: StoredRecord, reason: str) -> Record:
        ledger, offset = self._ledger, record.offset
        deliveries = ledger.state.lanes[index].jobs[offset].deliveries
        headers = (
            (QUEUE_HEADER, ledger.topic.name.encode()),
            (PARTITION_HEADER, b"%d" % index),
            (OFFSET_HEADER, b"%d" % offset),
            (DELIVERIES_HEADER, b"%d" % deliveries),
            (REASON_HEADER, reason.encode()),
            (SEAL_HEADER, ledger.seals.make(index, offset, 0).encode()),
        )
        return Record(record.value, record.key, record.headers + headers, record.timestamp_ms)

    async def _find(self, topic: Topic, intent: DeadLettersIntended) -> set[JobPosition]:
        """Return which jobs of an intent lie in the dead-letter topic already."""
        is_same = topic.id.bytes == intent.topic_id
        found: set[JobPosition] = set()
        for partition in topic.partitions:
            is_known = is_same and partition.index < len(intent.ends)
            cursor = intent.ends[partition.index] if is_known else 0
            found.update(await self._seals(partition, cursor))
        return found

    async def _seals(self, partition: Partition, cursor: int) -> set[JobPosition]:
        """Return the jobs of this queue whose dead letters lie in a partition from `cursor` on."""
        found: set[JobPosition] = set()
        cursor = max(cursor, partition.log_start_offset)
        while cursor < partition.high_watermark:
            fetched = partition.reader.read(cursor, size_max=_READ_BYTES_MAX)
            if not fetched.parts:
                break
            for part in fetched.parts:
                for header, batch in split(part):
                    if not header.is_control:
                        records = read_records(batch)
                        found.update(place for r in records if (place := self._origin(r)))
            cursor = fetched.next_offset
            await asyncio.sleep(0)
        return found

    def _origin(self, record: StoredRecord) -> JobPosition | None:
        seal = dict(record.headers).get(SEAL_HEADER)
        delivery = self._ledger.seals.read(seal.decode("latin-1")) if seal else None
        return None if delivery is None else (delivery.partition, delivery.offset)


def _reasons(intent: DeadLettersIntended) -> Iterator[tuple[JobPosition, str]]:
    for reason, jobs in (("expired", intent.expired), ("nacked", intent.nacked)):
        for partition, offsets in jobs:
            for offset in offsets:
                yield (partition, offset), reason


def _with_original_timestamp(letter: Record) -> Record:
    """Return a letter that gets the date of its appending, and says which it had."""
    if letter.timestamp_ms is None:
        return letter
    said = (TIMESTAMP_HEADER, b"%d" % letter.timestamp_ms)
    return replace(letter, timestamp_ms=None, headers=(*letter.headers, said))


def _batches(letters: dict[JobPosition, Record]) -> Iterator[dict[JobPosition, Record]]:
    some: dict[JobPosition, Record] = {}
    size = 0
    for place, letter in letters.items():
        more = len(letter.value or b"") + len(letter.key or b"")
        if some and size + more > BATCH_BYTES_MAX:
            yield some
            some, size = {}, 0
        some[place] = letter
        size += more
    if some:
        yield some

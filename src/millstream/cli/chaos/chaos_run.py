"""A run of `millstream chaos run`: a writer and a reader for each partition, each in a thread.

    writer ──► batch, acks=all ──► acknowledgement file, ledger
    reader ──► batches from where the run began ──► ledger
    check  ──► acknowledgement file and topic, compared once more at the end

Each writer has one batch in flight, and is an idempotent producer of its own. A batch that is not
acknowledged within the timeout has an unknown outcome; a new producer then goes on with the next
number, so no record is ever sent twice by the writer itself.

The reader cannot see that records go away behind it, so the topic is read once more at the end.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.audit.acknowledgements.file import AcknowledgementFile
from millstream.audit.verification.ack_index import AckIndex
from millstream.audit.verification.report import Report
from millstream.audit.verification.verification import Verification
from millstream.cli.chaos.ledger import DeliveryCounts, PartitionLedger, total
from millstream.cli.chaos.numbered_record import NumberedRecord, decode_value, encode_value
from millstream.clients.kafka.batch_sender import NO_OFFSET
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.clients.partition import Isolation
from millstream.errors import MillstreamError, OffsetOutOfRange, StorageFailed
from millstream.records.batch import check_batch, split
from millstream.records.build import build_batch
from millstream.records.iterate import read_records
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 500
"""Records of one batch: what is due after an outage is sent in such portions."""

BATCH_BYTES_MAX = 512 * 1024
"""Half of the default limit of a topic."""

RETRY_SECONDS = 0.2
POLL_SECONDS = 0.02
"""How often a reader asks for new records."""

PRODUCER_TIMEOUT_MS = 60_000

_ALL = Isolation.READ_UNCOMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """What to write, and where."""

    bootstrap: str
    topic: str
    topic_id: uuid.UUID | None
    partitions: int
    run: str
    """Id of the run."""
    records_per_second: float
    """Over all partitions."""
    record_size: int
    timeout_s: float
    """How long a batch may take before its outcome is unknown."""
    security: KafkaSecurity = NO_SECURITY

    def due(self, partition: int, seconds: float) -> int:
        """Return how many records of a partition are due so long after the start."""
        steps = seconds * self.records_per_second - partition
        return max(0, int(steps // self.partitions) + 1) if steps >= 0 else 0

    def due_at(self, partition: int, number: int) -> float:
        """Return when a record is due, in seconds after the start."""
        return (number * self.partitions + partition) / self.records_per_second


class ChaosRun:
    """Writers and readers. `start`, then `stop_writing`, `wait_until_read` and `close`."""

    def __init__(
        self,
        plan: ChaosPlan,
        acknowledgements: AcknowledgementFile,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.errors: Counter[str] = Counter()
        """Failures of writers and readers by kind. The run goes on after them."""
        self.last_error = ""
        self.starts: dict[TopicPartition, int] = {}
        """Where partitions ended when the run began."""
        self._positions: dict[TopicPartition, int] = {}
        """Offsets at which the readers go on."""
        self._acknowledgements = acknowledgements
        self._now = now
        self._began = 0.0
        self._ledgers = [PartitionLedger(index) for index in range(plan.partitions)]
        self._changed = threading.Condition()
        """Guards the ledgers, and tells that something was read."""
        self._is_written = threading.Event()
        self._is_closed = threading.Event()
        self._failure: StorageFailed | None = None
        self._writers = self._threads(self._write, "writer")
        self._readers = self._threads(self._read, "reader")

    def _threads(self, work: Callable[[int], None], name: str) -> list[threading.Thread]:
        return [
            threading.Thread(target=work, args=(index,), name=f"chaos {name} {index}", daemon=True)
            for index in range(self.plan.partitions)
        ]

    # Steps of a run.

    def start(self) -> None:
        """Begin to write and to read."""
        partitions = [TopicPartition(self.plan.topic, index) for index in self._indexes]
        with self._client() as client:
            bounds = client.bounds(partitions, isolation=_ALL)
        self.starts = {partition: bounds[partition].end for partition in partitions}
        self._positions = dict(self.starts)
        self._began = self._now()
        for thread in (*self._readers, *self._writers):
            thread.start()

    def wait(self, seconds: float) -> None:
        """Let the run go on for so long. Raises if acknowledgements cannot be recorded."""
        self._is_written.wait(seconds)
        self._raise_failure()

    def stop_writing(self, seconds: float) -> None:
        """Stop the writers, and wait up to so long for the outcome of what they have sent."""
        self._is_written.set()
        deadline = self._now() + seconds
        for thread in self._writers:
            thread.join(max(0.0, deadline - self._now()))
        self._raise_failure()

    def wait_until_read(self, seconds: float) -> None:
        """Wait up to so long until all acknowledged records were read."""
        deadline = self._now() + seconds
        with self._changed:
            while any(ledger.unread for ledger in self._ledgers):
                left = deadline - self._now()
                if left <= 0:
                    return
                self._changed.wait(left)

    def close(self) -> None:
        """Stop the readers. One that waits for a node ends after its timeout."""
        self._is_written.set()
        self._is_closed.set()
        for thread in (*self._writers, *self._readers):
            if thread.is_alive():
                thread.join(RETRY_SECONDS)

    def counts(self) -> DeliveryCounts:
        """Return the totals so far."""
        with self._changed:
            return total(ledger.counts(self._now()) for ledger in self._ledgers)

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return self._now() - self._began

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def _indexes(self) -> range:
        return range(self.plan.partitions)

    @contextmanager
    def _client(self) -> Iterator[KafkaClient]:
        plan = self.plan
        with KafkaClient(
            plan.bootstrap, timeout_s=plan.timeout_s, security=plan.security
        ) as client:
            yield client

    def _note(self, error: MillstreamError) -> None:
        with self._changed:
            self.errors[type(error).__name__] += 1
            self.last_error = str(error)

    # Writing.

    def _write(self, index: int) -> None:
        with self._client() as client:
            while not self._is_written.is_set():
                try:
                    self._write_with_producer(client, index)
                except StorageFailed as error:
                    self._failure = error  # Records that are not noted cannot be checked.
                    self._is_written.set()
                except MillstreamError as error:
                    self._note(error)
                    self._is_written.wait(RETRY_SECONDS)

    def _write_with_producer(self, client: KafkaClient, index: int) -> None:
        """Write until the end of the run, or until a batch fails."""
        offsets: list[int] = []
        with TransactionalProducer(
            client,
            None,
            timeout_ms=PRODUCER_TIMEOUT_MS,
            in_flight_max=1,
            on_acknowledged=lambda _, offset: offsets.append(offset),
        ) as producer:
            while not self._is_written.is_set():
                number = self._ledgers[index].next_number
                due = self.plan.due(index, self.seconds) - number
                if due <= 0:
                    pause_s = self.plan.due_at(index, number) - self.seconds
                    self._is_written.wait(max(0.0, pause_s))
                    continue
                limit = min(BATCH_RECORDS_MAX, BATCH_BYTES_MAX // self.plan.record_size)
                self._send(producer, index, min(due, limit))
                self._acknowledge(index, number, offsets)

    def _send(self, producer: TransactionalProducer, index: int, count: int) -> None:
        ledger, plan = self._ledgers[index], self.plan
        with self._changed:
            due_at = self._began + plan.due_at(index, ledger.next_number)
            numbers = ledger.send(count, due_at)
        batch = build_batch(
            [Record(self._value(index, number)) for number in numbers],
            now_ms=time.time_ns() // 1_000_000,
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.producer_epoch,
            base_sequence=producer.next_sequence(plan.topic, index),
        )
        try:
            producer.send(plan.topic, index, batch, count)
            producer.flush()
        except MillstreamError:
            with self._changed:
                ledger.give_up(numbers)
            raise

    def _acknowledge(self, index: int, first: int, offsets: list[int]) -> None:
        """Record the batch whose offset is in `offsets`, then count it."""
        offset = offsets.pop()
        ledger, plan = self._ledgers[index], self.plan
        numbers = range(first, ledger.next_number)
        self._acknowledgements.write(
            *(
                self._acknowledgements.acknowledgement(
                    plan.topic,
                    index,
                    NO_OFFSET if offset == NO_OFFSET else offset + number - first,
                    value=self._value(index, number),
                    headers=(),
                    topic_id=plan.topic_id,
                )
                for number in numbers
            )
        )
        with self._changed:
            ledger.acknowledge(numbers, self._now())

    def _value(self, index: int, number: int) -> bytes:
        return encode_value(self.plan.run, NumberedRecord(index, number), self.plan.record_size)

    # Reading.

    def _read(self, index: int) -> None:
        partition = TopicPartition(self.plan.topic, index)
        start = self.starts[partition]
        with self._changed:
            self._ledgers[index].cover(start, start)
        with self._client() as client:
            while not self._is_closed.is_set():
                try:
                    end = client.bounds([partition], isolation=_ALL)[partition].end
                    if end <= self._positions[partition]:
                        self._is_closed.wait(POLL_SECONDS)
                    else:
                        self._read_until(client, partition, end)
                except OffsetOutOfRange as error:
                    # Deleted before they were read. If it is the end that fell, wait: what is
                    # missing is found when the topic is read once more.
                    self._note(error)
                    self._positions[partition] = max(self._positions[partition], error.start)
                    self._is_closed.wait(RETRY_SECONDS)
                except MillstreamError as error:
                    self._note(error)
                    self._is_closed.wait(RETRY_SECONDS)

    def _read_until(self, client: KafkaClient, partition: TopicPartition, end: int) -> None:
        ledger, positions = self._ledgers[partition.partition], self._positions
        chunks = client.chunks(
            partition, positions[partition], end, isolation=_ALL, topic_id=self.plan.topic_id
        )
        for chunk in chunks:
            for header, batch in split(chunk.data):
                check_batch(header, batch)
                records = [] if header.is_control else read_records(batch)
                position = positions[partition]
                with self._changed:
                    ledger.cover(max(header.base_offset, position), header.next_offset)
                    for record in records:
                        if record.offset >= position:
                            self._take(ledger, record.offset, record.value)
                    self._changed.notify_all()
                positions[partition] = header.next_offset
                if self._is_closed.is_set():
                    return

    def _take(self, ledger: PartitionLedger, offset: int, value: bytes | None) -> None:
        record = decode_value(self.plan.run, value)
        if record is None:
            return  # Of another client.
        if record.partition != ledger.partition:
            place = f"record {record.number} of partition {record.partition}"
            ledger.reject(f"{place} is at offset {offset}")
        else:
            ledger.read(record.number, offset, self._now())


def check_stored(
    plan: ChaosPlan, acknowledgements: str, starts: Mapping[TopicPartition, int]
) -> Report:
    """Read the topic once more, and compare it with the acknowledgements of a run."""
    with AckIndex() as ack_index:
        ack_index.read(acknowledgements)
        return Verification(ack_index, topics=[plan.topic]).verify_node(
            plan.bootstrap,
            samples=0,
            seed=0,
            timeout_s=plan.timeout_s,
            starts=starts,
            security=plan.security,
        )

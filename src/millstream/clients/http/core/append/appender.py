"""Appends, step by step: where records go, under which number, and what becomes of each parcel.

A request that was heard of by nobody is made again under the same producer and sequence, and the
node appends it once. Two things end that:

- The node does not know the producer any more, or expects another sequence: it forgets producers
  after a day, and with their topic. If nothing of the request can have been done, it is made again
  under a new id. If an attempt before may have been done, nobody can tell any more, and that is
  what the error says.
- Time is up, with an attempt that may have been done. The error says so. What comes next goes under
  a new id, for the sequence it would have is not known.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from millstream.clients.http.core import requests
from millstream.clients.http.core.append.acknowledgement_recorder import AcknowledgementRecorder
from millstream.clients.http.core.append.new_record import NewRecord, key_bytes, row_of
from millstream.clients.http.core.append.partition_appends import PartitionAppends, RecordGroup
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import HttpProducerId
from millstream.clients.http.core.responses import identity_of, placed_of, topic_of
from millstream.clients.http.core.steps import (
    ClientContext,
    RetriedRequest,
    Steps,
    send_with_retries,
)
from millstream.clients.http.core.values import Placed
from millstream.errors import (
    BadRecord,
    BatchTooLarge,
    DeadlineExceeded,
    InvalidBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MalformedAnswer,
    MalformedRequest,
    MillstreamError,
    NodeRefused,
    NodeUnreachable,
    OutOfOrderSequence,
    RequestError,
    UnknownProducer,
    UnknownTopic,
)
from millstream.protocols.http.records import RECORDS_MAX
from millstream.records.arrow.partitioner import murmur2

COUNT_AGE_S_MAX = 60.0
"""How long it is believed that a topic has as many partitions as it had."""

AppendOutcome: TypeAlias = list[Placed] | MillstreamError
"""Where the records of a parcel went, or why they did not."""

Rows: TypeAlias = dict[int, tuple[list[int], list[bytes]]]
"""By partition: the numbers of records that go there, and their JSON."""

_FORGOTTEN = (OutOfOrderSequence, UnknownProducer)

_ABOUT_RECORDS = (
    BadRecord,
    BatchTooLarge,
    InvalidBatch,
    InvalidRecord,
    InvalidTimestamp,
    MalformedRequest,
)
"""What a node says where something is wrong with a record, and another one may do."""


class _Known(NamedTuple):
    partitions: int
    until: float
    topic_id: uuid.UUID | None


class Appender:
    """What the appends of a client share. Its parts may be called from several threads."""

    def __init__(
        self, around: ClientContext, noting: AcknowledgementRecorder | None = None
    ) -> None:
        self._around = around
        self._noting = noting
        self._lanes: dict[tuple[str, int], PartitionAppends] = {}
        self._counts: dict[str, _Known] = {}
        self._producer: HttpProducerId | None = None
        self._turn = 0
        self._guard = threading.Lock()

    @property
    def config(self) -> ClientConfig:
        return self._around.config

    def lane(self, topic: str, partition: int) -> PartitionAppends:
        """Return the way to a partition."""
        where = (topic, partition)
        if (found := self._lanes.get(where)) is None:
            with self._guard:
                found = self._lanes.setdefault(
                    where, PartitionAppends(topic, partition, self._around.config)
                )
        return found

    def lanes(self) -> list[PartitionAppends]:
        """Return all ways to partitions that there are."""
        return list(self._lanes.values())

    def parcel(self, rows: Sequence[bytes], ticket: object) -> RecordGroup:
        """Return records that go together, to be sent from now on."""
        now = self._around.clock.monotonic()
        return RecordGroup(rows, deadline=now + self._around.config.timeout_s, ticket=ticket)

    # Where records go.

    def known_count(self, topic: str) -> int | None:
        """Return how many partitions a topic has; nothing where that has to be asked."""
        known = self._counts.get(topic)
        if known is None or known.until < self._around.clock.monotonic():
            return None
        return known.partitions

    def count_partitions(self, topic: str) -> Steps[int]:
        """Ask how many partitions a topic has; raises `UnknownTopic`."""
        answer = yield from send_with_retries(self._around, requests.get_topic(topic))
        found = topic_of(answer)
        count = len(found.partitions)
        if not count:
            raise MalformedAnswer(f"node says that {topic!r} has no partitions")
        until = self._around.clock.monotonic() + COUNT_AGE_S_MAX
        self._counts[topic] = _Known(count, until, _topic_id(found.id))
        return count

    def forget(self, topic: str) -> None:
        """Ask anew how many partitions a topic has, when that is needed next."""
        self._counts.pop(topic, None)

    def place(self, topic: str, records: Sequence[NewRecord]) -> Steps[Rows | None]:
        """Return which records go to which partition; nothing where the topic is not there."""
        count = self.known_count(topic)
        if count is None:
            try:
                count = yield from self.count_partitions(topic)
            except UnknownTopic:
                return None
        return self.rows_by_partition(records, count)

    def rows_by_partition(self, records: Sequence[NewRecord], count: int) -> Rows:
        """Return for each partition which of the records go there, and their JSON.

        Keyless ones of a call go to one partition, and those of the next call to the next, as the
        node would do it.
        """
        with self._guard:
            self._turn += 1
            turn = self._turn
        found: Rows = {}
        for number, record in enumerate(records):
            key = key_bytes(record.key)
            partition = record.partition
            if partition is None:
                hashed = turn if key is None else murmur2(key) & 0x7FFFFFFF
                partition = hashed % count
            elif not 0 <= partition < count:
                raise UnknownTopic(f"there is no partition {partition}, there are 0 to {count - 1}")
            numbers, rows = found.setdefault(partition, ([], []))
            numbers.append(number)
            rows.append(row_of(record, key))
        return found

    # What was acknowledged.

    @property
    def is_noting(self) -> bool:
        """Whether what is acknowledged is written down."""
        return self._noting is not None

    def note(self, topic: str, rows: Rows, outcomes: Mapping[int, AppendOutcome]) -> None:
        """Write down which of the rows were acknowledged. This may wait for a disk."""
        if self._noting is None:
            return
        known = self._counts.get(topic)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, list):
                texts = rows[partition][1]
                self._noting.note(topic, known.topic_id if known else None, texts, outcome)

    def note_unplaced(
        self, topic: str, records: Sequence[NewRecord], placed: Sequence[Placed]
    ) -> None:
        """Write down records for which the node chose where they go. This may wait for a disk."""
        if self._noting is not None:
            rows = [row_of(record, key_bytes(record.key)) for record in records]
            self._noting.note(topic, None, rows, placed)

    # What becomes of parcels.

    def deliver(
        self, lane: PartitionAppends, parcels: Sequence[RecordGroup]
    ) -> Steps[list[AppendOutcome]]:
        """Send parcels in one request, and return what became of each.

        Where the node refuses them for what they are, one half goes and then the other, until the
        one that is wrong is alone: it does not harm the others.
        """
        now = self._around.clock.monotonic()
        fresh = [parcel for parcel in parcels if parcel.deadline > now]
        late = DeadlineExceeded(
            f"append to {lane.topic} waited {self._around.config.timeout_s:g} s behind others,"
            " and was not sent"
        )
        outcomes = iter((yield from self._deliver(lane, fresh)) if fresh else ())
        return [next(outcomes) if parcel.deadline > now else late for parcel in parcels]

    def _deliver(
        self, lane: PartitionAppends, parcels: Sequence[RecordGroup]
    ) -> Steps[list[AppendOutcome]]:
        outcome = yield from self._outcome(lane, [row for one in parcels for row in one.rows])
        if isinstance(outcome, list):
            left = iter(outcome)
            return [[next(left) for _ in parcel.rows] for parcel in parcels]
        if len(parcels) == 1 or lane.producer is None or not _is_about_records(outcome):
            return [outcome] * len(parcels)
        half = len(parcels) // 2
        first = yield from self._deliver(lane, parcels[:half])
        second = yield from self._deliver(lane, parcels[half:])
        return [*first, *second]

    def _outcome(self, lane: PartitionAppends, rows: Sequence[bytes]) -> Steps[AppendOutcome]:
        try:
            return (yield from self._append(lane, rows))
        except MillstreamError as error:
            if isinstance(error, UnknownTopic):
                self.forget(lane.topic)
            return error

    def _append(self, lane: PartitionAppends, rows: Sequence[bytes]) -> Steps[list[Placed]]:
        while True:
            is_new = lane.producer is None
            if lane.producer is None:
                lane.begin((yield from self._take_producer(lane.spent)))
            assert lane.producer is not None
            request = requests.post_records(
                lane.topic,
                rows,
                partition=lane.partition,
                producer=lane.producer,
                sequence=lane.sequence,
            )
            call = RetriedRequest(self._around, request)
            try:
                placed = placed_of((yield from call.steps()), len(rows))
            except _FORGOTTEN as forgotten:
                lane.end()
                if call.is_in_doubt:
                    raise self._lost(forgotten) from forgotten
                if is_new:
                    raise
                continue
            except RequestError as refused:
                if call.is_in_doubt:
                    lane.end()
                    raise self._lost(refused) from refused
                raise
            except BaseException as error:
                # A pause or an answer that was waited for may be called off from outside.
                if call.is_in_doubt or not isinstance(error, MillstreamError):
                    lane.end()
                raise
            lane.advance(len(rows))
            return placed

    def _take_producer(self, spent: HttpProducerId | None) -> Steps[HttpProducerId]:
        """Return an id that this client has, or a new one where it has none but `spent`."""
        found = self._producer
        if found is None or found == spent:
            answer = yield from send_with_retries(self._around, requests.post_producer())
            found = self._producer = identity_of(answer)
        return found

    def _lost(self, error: MillstreamError) -> NodeUnreachable:
        reason = f"an attempt to append was not answered, and the next one was refused: {error}"
        return NodeUnreachable(str(self._around.address), reason, may_be_done=True)

    def append_unplaced(self, topic: str, records: Sequence[NewRecord]) -> Steps[list[Placed]]:
        """Append to a topic that is not there, which the node may make when it is written to.

        Nobody knows yet how many partitions it is going to have, so the node says where records
        go, and there is no producer: this is not tried again where it may have been done.
        """
        rows = [_placed_row(record) for record in records]
        request = requests.post_records(topic, rows)
        answer = yield from send_with_retries(self._around, request)
        return placed_of(answer, len(rows))


def _topic_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _is_about_records(error: MillstreamError) -> bool:
    if isinstance(error, NodeRefused):
        return error.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return isinstance(error, _ABOUT_RECORDS)


def _placed_row(record: NewRecord) -> bytes:
    row = row_of(record, key_bytes(record.key))
    return row if record.partition is None else row[:-1] + b',"partition":%d}' % record.partition


def checked_records(records: Iterable[object]) -> list[NewRecord]:
    """Return records to append; what is no record becomes the value of one."""
    found = [one if isinstance(one, NewRecord) else NewRecord(one) for one in records]
    if not 1 <= len(found) <= RECORDS_MAX:
        raise InvalidRequest(f"there are {len(found)} records, allowed is 1-{RECORDS_MAX}")
    return found


def merge_outcomes(rows: Rows, outcomes: dict[int, AppendOutcome], count: int) -> list[Placed]:
    """Return where each of `count` records went; raises the first error that there is."""
    placed: dict[int, Placed] = {}
    error: MillstreamError | None = None
    for partition, outcome in outcomes.items():
        if isinstance(outcome, MillstreamError):
            error = error or outcome
        else:
            placed |= zip(rows[partition][0], outcome, strict=True)
    if error is not None:
        if placed:
            error.add_note(f"of {count} records, {len(placed)} in other partitions were appended")
        raise error
    return [placed[number] for number in range(count)]

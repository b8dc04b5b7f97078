"""Appends as steps: choice of partitions, producer sequences, and the outcome of each record group.

A request without a response is sent again with the same producer id and sequence, and the node
appends it once. This ends in two cases:

- The node no longer knows the producer, or expects another sequence: it forgets producers after a
  day, and with their topic. If no attempt can have been executed, the request is sent again under a
  new producer id. If an earlier attempt may have been executed, the outcome is unknown, and the
  error says so.
- The deadline passes after an attempt that may have been executed. The error says so. The next
  request uses a new producer id, because its sequence is unknown.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millstream.clients.http.core import requests
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
from millstream.records.murmur2 import murmur2

if TYPE_CHECKING:
    from millstream.clients.http.core.append.acknowledgement_recorder import AcknowledgementRecorder

COUNT_AGE_S_MAX = 60.0
"""How long the partition count of a topic is cached."""

AppendOutcome: TypeAlias = list[Placed] | MillstreamError
"""Positions of the records of a group, or the error."""

Rows: TypeAlias = dict[int, tuple[list[int], list[bytes]]]
"""By partition: indexes of the records in the call, and their JSON."""

_PRODUCER_UNKNOWN = (OutOfOrderSequence, UnknownProducer)

_ABOUT_RECORDS = (
    BadRecord,
    BatchTooLarge,
    InvalidBatch,
    InvalidRecord,
    InvalidTimestamp,
    MalformedRequest,
)
"""Errors about the content of a record; other records may still be accepted."""


class _CachedTopic(NamedTuple):
    partitions: int
    until: float
    topic_id: uuid.UUID | None


class Appender:
    """State that all appends of a client share. Its methods may be called from several threads."""

    def __init__(
        self, context: ClientContext, recorder: AcknowledgementRecorder | None = None
    ) -> None:
        self._context = context
        self._recorder = recorder
        self._partition_appends: dict[tuple[str, int], PartitionAppends] = {}
        self._topics: dict[str, _CachedTopic] = {}
        self._producer: HttpProducerId | None = None
        self._turn = 0
        self._lock = threading.Lock()

    @property
    def config(self) -> ClientConfig:
        return self._context.config

    def partition_appends(self, topic: str, partition: int) -> PartitionAppends:
        """Return the appends to a partition."""
        topic_partition = (topic, partition)
        if (appends := self._partition_appends.get(topic_partition)) is None:
            with self._lock:
                appends = self._partition_appends.setdefault(
                    topic_partition, PartitionAppends(topic, partition, self._context.config)
                )
        return appends

    def all_partition_appends(self) -> list[PartitionAppends]:
        return list(self._partition_appends.values())

    def record_group(self, rows: Sequence[bytes], ticket: object) -> RecordGroup:
        """Return a group of records with a deadline that starts now."""
        now = self._context.clock.monotonic()
        return RecordGroup(rows, deadline=now + self._context.config.timeout_s, ticket=ticket)

    # Partitions.

    def known_count(self, topic: str) -> int | None:
        """Return the cached partition count of a topic; `None` if it has to be fetched."""
        known = self._topics.get(topic)
        if known is None or known.until < self._context.clock.monotonic():
            return None
        return known.partitions

    def count_partitions(self, topic: str) -> Steps[int]:
        """Fetch the partition count of a topic. Raises `UnknownTopic` if it does not exist."""
        answer = yield from send_with_retries(self._context, requests.get_topic(topic))
        description = topic_of(answer)
        count = len(description.partitions)
        if not count:
            raise MalformedAnswer(f"response has no partitions for topic {topic!r}")
        until = self._context.clock.monotonic() + COUNT_AGE_S_MAX
        self._topics[topic] = _CachedTopic(count, until, _topic_id(description.id))
        return count

    def forget(self, topic: str) -> None:
        """Drop the cached partition count of a topic."""
        self._topics.pop(topic, None)

    def place(self, topic: str, records: Sequence[NewRecord]) -> Steps[Rows | None]:
        """Assign records to partitions; return `None` if the topic does not exist."""
        count = self.known_count(topic)
        if count is None:
            try:
                count = yield from self.count_partitions(topic)
            except UnknownTopic:
                return None
        return self.rows_by_partition(records, count)

    def rows_by_partition(self, records: Sequence[NewRecord], count: int) -> Rows:
        """Return, for each partition, which of the records go there and their JSON.

        All records of a call without a key go to one partition, those of the next call to the next
        one, as on the node.
        """
        with self._lock:
            self._turn += 1
            turn = self._turn
        by_partition: Rows = {}
        for number, record in enumerate(records):
            key = key_bytes(record.key)
            partition = record.partition
            if partition is None:
                hashed = turn if key is None else murmur2(key) & 0x7FFFFFFF
                partition = hashed % count
            elif not 0 <= partition < count:
                raise UnknownTopic(f"partition must be between 0 and {count - 1}, got {partition}")
            numbers, rows = by_partition.setdefault(partition, ([], []))
            numbers.append(number)
            rows.append(row_of(record, key))
        return by_partition

    # Acknowledgements.

    @property
    def is_recording(self) -> bool:
        """Whether acknowledged records are written to a file."""
        return self._recorder is not None

    def record(self, topic: str, rows: Rows, outcomes: Mapping[int, AppendOutcome]) -> None:
        """Write the acknowledged rows to the acknowledgement file. May block on the disk."""
        if self._recorder is None:
            return
        known = self._topics.get(topic)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, list):
                texts = rows[partition][1]
                self._recorder.record(topic, known.topic_id if known else None, texts, outcome)

    def record_unplaced(
        self, topic: str, records: Sequence[NewRecord], placed: Sequence[Placed]
    ) -> None:
        """Write records whose partitions the node chose to the file. May block on the disk."""
        if self._recorder is not None:
            rows = [row_of(record, key_bytes(record.key)) for record in records]
            self._recorder.record(topic, None, rows, placed)

    # Delivery.

    def deliver(
        self, appends: PartitionAppends, groups: Sequence[RecordGroup]
    ) -> Steps[list[AppendOutcome]]:
        """Send groups in one request and return the outcome of each.

        If the node rejects their content, each half is sent alone, recursively, until the invalid
        group is isolated, so that it does not fail the others.
        """
        now = self._context.clock.monotonic()
        live = [group for group in groups if group.deadline > now]
        expired = DeadlineExceeded(
            f"append to {appends.topic} waited {self._context.config.timeout_s:g} s behind others,"
            " and was not sent"
        )
        outcomes = iter((yield from self._deliver(appends, live)) if live else ())
        return [next(outcomes) if group.deadline > now else expired for group in groups]

    def _deliver(
        self, appends: PartitionAppends, groups: Sequence[RecordGroup]
    ) -> Steps[list[AppendOutcome]]:
        outcome = yield from self._outcome(appends, [row for group in groups for row in group.rows])
        if isinstance(outcome, list):
            left = iter(outcome)
            return [[next(left) for _ in group.rows] for group in groups]
        if len(groups) == 1 or appends.producer is None or not _is_about_records(outcome):
            return [outcome] * len(groups)
        half = len(groups) // 2
        first = yield from self._deliver(appends, groups[:half])
        second = yield from self._deliver(appends, groups[half:])
        return [*first, *second]

    def _outcome(self, appends: PartitionAppends, rows: Sequence[bytes]) -> Steps[AppendOutcome]:
        try:
            return (yield from self._append(appends, rows))
        except MillstreamError as error:
            if isinstance(error, UnknownTopic):
                self.forget(appends.topic)
            return error

    def _append(self, appends: PartitionAppends, rows: Sequence[bytes]) -> Steps[list[Placed]]:
        while True:
            is_new = appends.producer is None
            if appends.producer is None:
                appends.start_producer((yield from self._take_producer(appends.retired)))
            assert appends.producer is not None
            request = requests.post_records(
                appends.topic,
                rows,
                partition=appends.partition,
                producer=appends.producer,
                sequence=appends.sequence,
            )
            call = RetriedRequest(self._context, request)
            try:
                placed = placed_of((yield from call.steps()), len(rows))
            except _PRODUCER_UNKNOWN as forgotten:
                appends.retire_producer()
                if call.is_in_doubt:
                    raise self._unknown_outcome(forgotten) from forgotten
                if is_new:
                    raise
                continue
            except RequestError as refused:
                if call.is_in_doubt:
                    appends.retire_producer()
                    raise self._unknown_outcome(refused) from refused
                raise
            except BaseException as error:
                # Cancelled from outside during a pause or a request.
                if call.is_in_doubt or not isinstance(error, MillstreamError):
                    appends.retire_producer()
                raise
            appends.advance(len(rows))
            return placed

    def _take_producer(self, retired: HttpProducerId | None) -> Steps[HttpProducerId]:
        """Return the client's producer id, or a new one if that is `retired` or missing."""
        producer = self._producer
        if producer is None or producer == retired:
            answer = yield from send_with_retries(self._context, requests.post_producer())
            producer = self._producer = identity_of(answer)
        return producer

    def _unknown_outcome(self, error: MillstreamError) -> NodeUnreachable:
        reason = f"an append got no response, and the next attempt was refused: {error}"
        return NodeUnreachable(str(self._context.address), reason, may_be_done=True)

    def append_unplaced(self, topic: str, records: Sequence[NewRecord]) -> Steps[list[Placed]]:
        """Append to a topic that does not exist; the node may create it.

        Its partition count is unknown, so the node chooses the partitions and there is no producer
        id: the request is not retried if it may have been executed.
        """
        rows = [_placed_row(record) for record in records]
        request = requests.post_records(topic, rows)
        answer = yield from send_with_retries(self._context, request)
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
    """Return records to append; a value that is not a `NewRecord` becomes the value of one."""
    checked = [record if isinstance(record, NewRecord) else NewRecord(record) for record in records]
    if not 1 <= len(checked) <= RECORDS_MAX:
        raise InvalidRequest(
            f"the number of records must be between 1 and {RECORDS_MAX}, got {len(checked)}"
        )
    return checked


def merge_outcomes(rows: Rows, outcomes: dict[int, AppendOutcome], count: int) -> list[Placed]:
    """Return the positions of all `count` records; raises the first error if there is one."""
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

"""Answers of the HTTP door, made into values; what is not as it must be raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from millstream.clients.http.core.requests import HttpProducerId
from millstream.clients.http.core.values import (
    ClaimedJob,
    HeaderItem,
    Item,
    Key,
    PartitionState,
    Placed,
    QueueState,
    TopicGap,
    TopicInfo,
    TopicRecord,
    TopicState,
)
from millstream.errors import (
    MalformedAnswer,
    MalformedRequest,
    MillstreamError,
    NodeRefused,
    QuotaExceeded,
    Unavailable,
)
from millstream.protocols.http.errors import ErrorAnswer, error_of
from millstream.protocols.http.queues import ClaimAnswer, ExtendAnswer
from millstream.protocols.http.records import (
    AppendAnswer,
    GapShape,
    HeaderValue,
    RecordsAnswer,
    RecordShape,
)
from millstream.protocols.http.topics import (
    PartitionShape,
    ProducerAnswer,
    TopicAnswer,
    TopicSummaryShape,
)
from millstream.protocols.http.values import Base64, Text, base64_bytes, value_bytes

T = TypeVar("T")

SHOWN_MAX = 200
"""Bytes of a wrong answer that an error repeats."""

RETRY_AFTER_S_MAX = 3_600.0
"""A node that asks for a longer pause than this is taken to have asked for this one."""

_decode_json = msgspec.json.Decoder().decode


class ClientResponse(NamedTuple):
    """One answer."""

    status: int
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes

    @property
    def retry_after_s(self) -> float:
        """How long the node asks to wait before the next attempt; 0 where it does not say."""
        text = self.headers.get("retry-after", "")
        return min(float(text), RETRY_AFTER_S_MAX) if text.isascii() and text.isdigit() else 0.0


class Refusal(NamedTuple):
    """An answer that says no."""

    error: MillstreamError
    is_temporary: bool
    """Whether the same may succeed later."""
    is_in_doubt: bool
    """Whether something may have been done all the same."""
    retry_after_s: float = 0.0


_TEMPORARY = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}
)
_BETWEEN = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""What something between a client and a node answers when it does not hear from the node."""


def refusal_of(answer: ClientResponse) -> Refusal | None:
    """Return why an answer says no; nothing where it says yes."""
    status = answer.status
    if 200 <= status < 300:
        return None
    try:
        shape = _DECODERS[ErrorAnswer].decode(answer.body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _foreign_refusal(answer)
    error = error_of(status, shape)
    if status == HTTPStatus.TOO_MANY_REQUESTS and isinstance(error, NodeRefused):
        error = Unavailable(shape.message)
    is_in_doubt = status >= 500 and status not in _TEMPORARY
    retry_after_s = answer.retry_after_s
    if isinstance(error, QuotaExceeded):  # It says the same in milliseconds.
        retry_after_s = min(max(0.0, error.throttle_ms / 1000), RETRY_AFTER_S_MAX)
    return Refusal(error, status in _TEMPORARY, is_in_doubt, retry_after_s)


def _foreign_refusal(answer: ClientResponse) -> Refusal:
    """Make something of an answer that no node gave."""
    status = answer.status
    shown = answer.body[:SHOWN_MAX].decode(errors="replace")
    try:
        name = HTTPStatus(status).name.lower()
    except ValueError:
        name = "unknown_status"
    error = NodeRefused(status, name, f"answered without an error in it: {shown!r}")
    is_temporary = status in _BETWEEN or status in _TEMPORARY
    is_in_doubt = status >= 500 or status < 300
    return Refusal(error, is_temporary, is_in_doubt, answer.retry_after_s)


# What the answers of each request mean.


class _Deleted(Struct):
    deleted: int


class _Queues(Struct):
    queues: list[QueueState]


def identity_of(answer: ClientResponse) -> HttpProducerId:
    """Return the producer that a node gave out."""
    found = decoded(answer.body, ProducerAnswer)
    return HttpProducerId(found.id, found.epoch)


def placed_of(answer: ClientResponse, count: int) -> list[Placed]:
    """Return where `count` records went."""
    found = decoded(answer.body, AppendAnswer)
    partitions = [found.partition] * count if found.partitions is UNSET else found.partitions
    if len(found.offsets) != count or len(partitions) != count or None in partitions:
        raise MalformedAnswer(
            f"node says where {len(found.offsets)} records went, {count} were sent"
        )
    return [
        Placed(partition, offset, found.cost)
        for partition, offset in zip(partitions, found.offsets, strict=True)
        if partition is not None
    ]


class PartitionPage(NamedTuple):
    """One page of a partition."""

    records: list[TopicRecord]
    gaps: list[TopicGap]
    next_offset: int
    head: int

    @property
    def items(self) -> list[Item]:
        """All that is to be handed out, in order."""
        return [*self.gaps, *self.records]


def page_of(answer: ClientResponse, topic: str, partition: int) -> PartitionPage:
    """Return the page that a node answered."""
    found = decoded(answer.body, RecordsAnswer)
    return PartitionPage(
        [record_of(one, topic, partition) for one in found.records],
        [gap_of(one, topic, partition) for one in found.gaps],
        found.next,
        found.head,
    )


def record_of(shape: RecordShape, topic: str, partition: int) -> TopicRecord:
    """Return a record as users see it."""
    raw, is_json = _value_of(shape.value)
    return TopicRecord(
        topic=topic,
        partition=partition,
        offset=shape.offset,
        timestamp_ms=shape.timestamp,
        key=_text_of(shape.key),
        raw=raw,
        is_json=is_json,
        headers=_headers_of(shape.headers),
        node=None if shape.node is UNSET else shape.node,
    )


def gap_of(shape: GapShape, topic: str, partition: int) -> TopicGap:
    """Return a gap as users see it."""
    return TopicGap(topic, partition, shape.from_, shape.to, shape.reason)


def topic_of(answer: ClientResponse) -> TopicState:
    """Return what a node says of a topic and its partitions."""
    found = decoded(answer.body, TopicAnswer)
    return TopicState(
        **asdict(info_of(found)),
        partitions=tuple(_partition_of(one, found.name) for one in found.partitions),
        count=found.count,
        bytes=found.bytes,
    )


def _partition_of(found: PartitionShape, topic: str) -> PartitionState:
    return PartitionState(
        partition=found.partition,
        first_live_offset=found.first_live_offset,
        eviction_floor=found.eviction_floor,
        head=found.head,
        count=found.count,
        bytes=found.bytes,
        epoch=found.epoch,
        gaps=tuple(gap_of(one, topic, found.partition) for one in found.gaps),
    )


def info_of(found: TopicSummaryShape) -> TopicInfo:
    """Return what a topic is set to."""
    return TopicInfo(
        name=found.name,
        id=found.id,
        partition_count=found.partition_count,
        durability=found.durability,
        configs=found.configs,
    )


def deleted_of(answer: ClientResponse) -> int:
    """Return how many records went."""
    return decoded(answer.body, _Deleted).deleted


def queue_of(answer: ClientResponse) -> QueueState:
    """Return what a node says of a queue."""
    return decoded(answer.body, QueueState)


def queues_of(answer: ClientResponse) -> list[QueueState]:
    """Return what a node says of all queues."""
    return decoded(answer.body, _Queues).queues


def jobs_of(answer: ClientResponse, queue: str) -> list[ClaimedJob]:
    """Return the jobs that a claim gave."""
    jobs = []
    for one in decoded(answer.body, ClaimAnswer).jobs:
        raw, is_json = _value_of(one.value)
        record = TopicRecord(
            topic=queue,
            partition=one.partition,
            offset=one.offset,
            timestamp_ms=one.timestamp,
            key=_text_of(one.key),
            raw=raw,
            is_json=is_json,
            headers=_headers_of(one.headers),
        )
        jobs.append(
            ClaimedJob(
                receipt=one.receipt,
                record=record,
                deliveries=one.deliveries,
                deadline_ms=one.deadline_ms,
            )
        )
    return jobs


def deadline_of(answer: ClientResponse) -> int:
    """Return for how many milliseconds leases last that were made longer."""
    return decoded(answer.body, ExtendAnswer).deadline_ms


# JSON, believed in nothing.


class _Decoders(dict[type, msgspec.json.Decoder[Any]]):
    """A decoder for each type of message, made when it is first needed."""

    def __missing__(self, kind: type) -> msgspec.json.Decoder[Any]:
        made: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self[kind] = made
        return made


_DECODERS = _Decoders()


def decoded(body: bytes | Raw, kind: type[T]) -> T:
    """Return the message of type `kind` that `body` is; raises `MalformedAnswer` otherwise."""
    try:
        found: T = _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(body)[:SHOWN_MAX]
        raise MalformedAnswer(f"answer is {shown!r}: {str(error)[:300]}") from None
    return found


def _value_of(json: Raw) -> tuple[bytes | None, bool]:
    """Return the bytes of a value, and whether they are JSON."""
    try:
        raw = value_bytes(json)
    except MalformedRequest as error:
        raise MalformedAnswer(f"value of a record: {error}") from None
    if raw is None:
        return None, False
    is_packed = raw != bytes(json).strip()
    return raw, not is_packed or _is_packed_object(raw)


def _is_packed_object(raw: bytes) -> bool:
    """Whether bytes are the JSON of an object that had to be packed, to tell it from bytes."""
    if not raw.lstrip().startswith(b"{"):
        return False
    try:
        found = _decode_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == {"base64"}


def _text_of(text: Text | None) -> Key:
    if not isinstance(text, Base64):
        return text
    try:
        return base64_bytes(text)
    except MalformedRequest as error:
        raise MalformedAnswer(f"key or header of a record: {error}") from None


def _headers_of(found: Mapping[str, HeaderValue]) -> dict[str, HeaderItem | list[HeaderItem]]:
    return {
        name: [_text_of(one) for one in value] if isinstance(value, list) else _text_of(value)
        for name, value in found.items()
    }

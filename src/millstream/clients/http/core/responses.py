"""Responses of the HTTP API, decoded into values. Malformed responses raise `MalformedAnswer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from millstream.clients.http.core.requests import HttpProducerId
from millstream.clients.http.core.response import SHOWN_MAX, ClientResponse
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
from millstream.errors import MalformedAnswer, MalformedRequest
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
from millstream.records.cursor import CursorPosition, decode_cursor
from millstream.records.record import RECREATED

T = TypeVar("T")

_decode_json = msgspec.json.Decoder().decode


# Responses by request.


class _Deleted(Struct):
    deleted: int


class _Queues(Struct):
    queues: list[QueueState]


def identity_of(answer: ClientResponse) -> HttpProducerId:
    """Return the producer id that the node assigned."""
    message = decoded(answer.body, ProducerAnswer)
    return HttpProducerId(message.id, message.epoch)


def placed_of(answer: ClientResponse, count: int) -> list[Placed]:
    """Return partition and offset of each of `count` appended records."""
    message = decoded(answer.body, AppendAnswer)
    partitions = [message.partition] * count if message.partitions is UNSET else message.partitions
    if len(message.offsets) != count or len(partitions) != count or None in partitions:
        raise MalformedAnswer(f"response has {len(message.offsets)} offsets for {count} records")
    return [
        Placed(partition, offset, message.cost)
        for partition, offset in zip(partitions, message.offsets, strict=True)
        if partition is not None
    ]


class PartitionPage(NamedTuple):
    """Page of records of one partition."""

    records: list[TopicRecord]
    gaps: list[TopicGap]
    next_position: CursorPosition
    """The position after the page, with the id of the topic."""
    head: int

    @property
    def is_of_new_topic(self) -> bool:
        """Whether the topic of the cursor was deleted: the page is the first of another one."""
        return any(gap.reason == RECREATED for gap in self.gaps)

    @property
    def items(self) -> list[Item]:
        """Gaps and records, in order."""
        return [*self.gaps, *self.records]


def page_of(answer: ClientResponse, topic: str, partition: int) -> PartitionPage:
    message = decoded(answer.body, RecordsAnswer)
    position = positions_of("cursor", message.cursor).get((topic, partition))
    if position is None or position.offset != message.next:
        raise MalformedAnswer(
            f"response continues at {message.next} and has the cursor {message.cursor[:100]!r}"
        )
    return PartitionPage(
        [record_of(shape, topic, partition) for shape in message.records],
        [gap_of(shape, topic, partition) for shape in message.gaps],
        position,
        message.head,
    )


def positions_of(name: str, cursor: str) -> dict[tuple[str, int], CursorPosition]:
    """Return the positions of a cursor in a response; `name` is that of its field."""
    try:
        return decode_cursor(cursor)
    except MalformedRequest as error:
        raise MalformedAnswer(f"{name}: {error}") from None


def record_of(shape: RecordShape, topic: str, partition: int) -> TopicRecord:
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
    return TopicGap(topic, partition, shape.from_, shape.to, shape.reason)


def topic_of(answer: ClientResponse) -> TopicState:
    """Return the settings of a topic and the offsets of its partitions."""
    message = decoded(answer.body, TopicAnswer)
    return TopicState(
        **asdict(info_of(message)),
        partitions=tuple(_partition_of(shape, message.name) for shape in message.partitions),
        count=message.count,
        bytes=message.bytes,
    )


def _partition_of(shape: PartitionShape, topic: str) -> PartitionState:
    return PartitionState(
        partition=shape.partition,
        first_live_offset=shape.first_live_offset,
        eviction_floor=shape.eviction_floor,
        head=shape.head,
        count=shape.count,
        bytes=shape.bytes,
        epoch=shape.epoch,
        gaps=tuple(gap_of(gap, topic, shape.partition) for gap in shape.gaps),
    )


def info_of(shape: TopicSummaryShape) -> TopicInfo:
    """Return the settings of a topic."""
    return TopicInfo(
        name=shape.name,
        id=shape.id,
        partition_count=shape.partition_count,
        durability=shape.durability,
        configs=shape.configs,
    )


def deleted_of(answer: ClientResponse) -> int:
    """Return the number of deleted records."""
    return decoded(answer.body, _Deleted).deleted


def queue_of(answer: ClientResponse) -> QueueState:
    return decoded(answer.body, QueueState)


def queues_of(answer: ClientResponse) -> list[QueueState]:
    return decoded(answer.body, _Queues).queues


def jobs_of(answer: ClientResponse, queue: str) -> list[ClaimedJob]:
    """Return the jobs of a claim."""
    jobs = []
    for shape in decoded(answer.body, ClaimAnswer).jobs:
        raw, is_json = _value_of(shape.value)
        record = TopicRecord(
            topic=queue,
            partition=shape.partition,
            offset=shape.offset,
            timestamp_ms=shape.timestamp,
            key=_text_of(shape.key),
            raw=raw,
            is_json=is_json,
            headers=_headers_of(shape.headers),
        )
        jobs.append(
            ClaimedJob(
                receipt=shape.receipt,
                record=record,
                deliveries=shape.deliveries,
                deadline_ms=shape.deadline_ms,
            )
        )
    return jobs


def deadline_of(answer: ClientResponse) -> int:
    """Return the new length of extended leases in milliseconds."""
    return decoded(answer.body, ExtendAnswer).deadline_ms


# JSON, fully checked.


class _Decoders(dict[type, msgspec.json.Decoder[Any]]):
    """Decoders by message type, created on first use."""

    def __missing__(self, kind: type) -> msgspec.json.Decoder[Any]:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self[kind] = decoder
        return decoder


_DECODERS = _Decoders()


def decoded(body: bytes | Raw, kind: type[T]) -> T:
    """Decode `body` as `kind`. Raises `MalformedAnswer` if it is something else."""
    try:
        message: T = _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(body)[:SHOWN_MAX]
        raise MalformedAnswer(f"response is {shown!r}: {str(error)[:300]}") from None
    return message


def _value_of(json: Raw) -> tuple[bytes | None, bool]:
    """Return the bytes of a value, and whether they are JSON."""
    try:
        raw = value_bytes(json)
    except MalformedRequest as error:
        raise MalformedAnswer(f"value of a record: {error}") from None
    if raw is None:
        return None, False
    is_base64 = raw != bytes(json).strip()
    return raw, not is_base64 or _is_escaped_object(raw)


def _is_escaped_object(raw: bytes) -> bool:
    """Return whether `raw` is a JSON object with the single key `base64`.

    Such an object is sent as base64, because it would otherwise be decoded as bytes.
    """
    if not raw.lstrip().startswith(b"{"):
        return False
    try:
        decoded_value = _decode_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(decoded_value, dict) and decoded_value.keys() == {"base64"}


def _text_of(text: Text | None) -> Key:
    if not isinstance(text, Base64):
        return text
    try:
        return base64_bytes(text)
    except MalformedRequest as error:
        raise MalformedAnswer(f"key or header of a record: {error}") from None


def _headers_of(headers: Mapping[str, HeaderValue]) -> dict[str, HeaderItem | list[HeaderItem]]:
    return {
        name: [_text_of(item) for item in value] if isinstance(value, list) else _text_of(value)
        for name, value in headers.items()
    }

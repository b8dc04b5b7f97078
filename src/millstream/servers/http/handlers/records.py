"""Handlers of records: append, read from a cursor, delete."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from millstream.broker.access.caller import Caller
from millstream.broker.access.resources import Operation
from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import NewRecordsWaiter, RecordPage, read_page
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.record_appender import (
    NO_PRODUCER_STAMP,
    AppendResult,
    AppendTimings,
    ProducerStamp,
)
from millstream.broker.topics.topic import Topic
from millstream.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    MalformedRequest,
    NotLeader,
    UnknownTopic,
)
from millstream.protocols.http.lake_deletions import LakeDeletion, encode_lake_deletion
from millstream.protocols.http.records import (
    AppendAnswer,
    AppendBody,
    DeletionAnswer,
    DeletionBody,
    RecordsAnswer,
    RecordsQuery,
    RequestCost,
    origin_of,
    record_json,
    record_of,
    records_json,
)
from millstream.protocols.http.values import text_bytes
from millstream.records.cursor import cursor_prefix, decode_cursor
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.record import RECREATED, Gap, Record, StoredRecord
from millstream.servers.http.routing.bodies import in_thread_if, read_message, read_query
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operation_access import topic_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response
from millstream.servers.http.routing.usage import ClientUsage
from millstream.storage.retention.key_deletions import match_for

INLINE_RECORDS_MAX = 500
"""Records that are decoded or encoded on the event loop; more are processed in a thread, so that no
other request waits. Each takes a few microseconds.
"""

DELETION_SIZE_MAX = 256 * 1024
"""Bytes of a request body: a key of 64 KiB, in base64 or with many characters escaped."""


async def append_records(request: HttpRequest) -> Response:
    """Append one or more records.

    The response is sent when the durability class of the topic is met. Records of one partition are
    appended all or none.
    """
    body = await read_message(request, AppendBody, size_max=request.context.config.append_size_max)
    topic = await topic_to_write(request)
    result = await append(request.context.broker, topic, body, request.caller)
    usage = request.usage
    usage.charge(QuotaKind.PRODUCE, usage.body_bytes)
    return answer_append(request, result)


async def append(broker: Broker, topic: Topic, body: AppendBody, caller: Caller) -> AppendResult:
    """Append the records of a body."""
    stamp = NO_PRODUCER_STAMP
    if body.producer is not None:
        stamp = ProducerStamp(body.producer.id, body.producer.epoch, body.producer.sequence)
    records = await in_thread_if(
        len(body.records) > INLINE_RECORDS_MAX,
        lambda: [record_of(sent, body.node) for sent in body.records],
    )
    return await broker.appends.append(
        topic, records, partitions=_partitions_of(body), stamp=stamp, caller=caller
    )


def _partitions_of(body: AppendBody) -> list[int | None] | None:
    """Return the partition of each record; nothing if no record names one."""
    named = [body.partition if sent.partition is None else sent.partition for sent in body.records]
    return named if any(index is not None for index in named) else None


def answer_append(request: HttpRequest, result: AppendResult) -> Response:
    """Return the response to an append: offsets and times."""
    cost = request.note_timings(result.timings)
    return json_response(append_answer(result, cost), HTTPStatus.CREATED)


def append_answer(result: AppendResult, cost: AppendTimings) -> AppendAnswer:
    """Return the positions of appended records and the times as a message."""
    is_one = len(set(result.partitions)) == 1
    return AppendAnswer(
        offsets=list(result.offsets),
        partition=result.partitions[0] if is_one else None,
        partitions=UNSET if is_one else list(result.partitions),
        head=result.head if is_one else None,
        cost=RequestCost(**cost._asdict()),
    )


async def read_records(request: HttpRequest) -> Response:
    """Read new records from a cursor, and wait for them if there are none.

    Records come in the order of their offsets. Offsets that retention deleted before the cursor saw
    them are reported as a gap; records that were deleted by a client are skipped silently. Continue
    with `cursor`, which may have moved though no record came: skipped records count towards the
    limits too. If its topic was deleted and created again, the next response has a gap with the
    reason `recreated`, and the records of the new topic from the first. `next` is the offset in
    `cursor`; an offset as `from` is one of the present topic, whichever that is.
    """
    query = read_query(request, RecordsQuery)
    topic = topic_of(request)
    start = start_of(topic, query.partition, query.from_)
    await start.partition.open()
    check_in_sync(start.partition)
    if start.gap is not None or not query.wait_ms or start.partition.is_following:
        await start.partition.settle(start.offset)
    if start.gap is not None or not query.wait_ms:
        body = await _answer(start, await _read_now(start, query), query)
    else:
        body = await _wait_for_page(request, start, query)
    request.usage.charge(QuotaKind.CONSUME, len(body))
    return json_response(body)


async def _read_now(start: ReadStart, query: RecordsQuery) -> RecordPage:
    """Return a page that lacks nothing that was acknowledged before the request.

    Only the leader knows the end. It is asked if the page comes to the end of this replica: what is
    before that is the same everywhere.
    """
    partition = start.partition
    page = await _read_page(partition, query, start.offset)
    if query.stale or page.next_offset < partition.last_stable_offset:
        return page
    end = partition.last_stable_offset
    await partition.anywhere.catch_up()
    if partition.last_stable_offset == end:
        return page
    return await _read_page(partition, query, start.offset)


def check_in_sync(partition: Partition) -> None:
    """Raise `NotLeader` if the replica of this node is being copied, or is far behind."""
    if partition.replica is not None and not partition.replica.is_in_sync:
        partition.replica.check_leader()


async def _wait_for_page(request: HttpRequest, start: ReadStart, query: RecordsQuery) -> bytes:
    """Return new records as soon as there are some, the wait is over, or the node stops."""
    request.is_long_poll = True
    broker = request.context.broker
    deadline = broker.clock.monotonic() + query.wait_ms / 1000
    partition, cursor = start.partition, start.offset
    waiter = NewRecordsWaiter([partition], broker.timers)
    try:
        async with watch_disconnect(request) as disconnected:
            disconnected.add_done_callback(lambda _: waiter.wake())
            while True:
                page = await _read_page(partition, query, cursor)
                if disconnected.done() and disconnected.result() is DisconnectReason.CLIENT:
                    raise ClientDisconnect
                remaining = deadline - broker.clock.monotonic()
                is_over = remaining <= 0 or disconnected.done()
                has_new = any(_is_wanted(record, query) for record in page.records)
                if is_over or page.gap or has_new:
                    return await _answer(start, page, query)
                if page.next_offset == cursor:
                    await waiter.wait(remaining)
                cursor = page.next_offset
    finally:
        waiter.close()


async def _read_page(partition: Partition, query: RecordsQuery, cursor: int) -> RecordPage:
    return await read_page(partition, cursor, limit=query.limit, size_max=query.max_bytes)


async def _answer(start: ReadStart, page: RecordPage, query: RecordsQuery) -> bytes:
    records = await in_thread_if(
        len(page.records) > INLINE_RECORDS_MAX,
        lambda: [record_json(record) for record in page.records if _is_wanted(record, query)],
    )
    partition = start.partition
    return records_json(
        records,
        next_offset=page.next_offset,
        cursor_prefix=cursor_prefix(partition.topic, partition.index, partition.topic_id),
        head=page.head,
        gaps=[gap for gap in (start.gap, page.gap) if gap is not None],
    )


def _is_wanted(record: StoredRecord, query: RecordsQuery) -> bool:
    return query.exclude_node is None or origin_of(record) != query.exclude_node.encode()


async def delete_records(request: HttpRequest) -> Response:
    """Delete records for good: no client sees them after the response."""
    topic = topic_of(request)
    deletion = await read_message(request, DeletionBody, size_max=DELETION_SIZE_MAX)
    partitions = _check_deletion(deletion, topic)
    if len(partitions) == 1:
        deleted = await _delete(request, partitions[0], deletion)
    else:
        deleted = sum([await _delete_anywhere(request, item, deletion) for item in partitions])
    return json_response(DeletionAnswer(deleted=deleted))


async def _delete_anywhere(
    request: HttpRequest, partition: Partition, deletion: DeletionBody
) -> int:
    """Delete records of one of several partitions, here or at the node that leads it.

    Records of others may be deleted already, so no error may say that nothing was done.
    """
    try:
        return await _delete(request, partition, deletion)
    except NotLeader as refusal:
        forwarder = request.context.forwarder
        if forwarder is None:
            raise
        body = msgspec.structs.replace(deletion, partition=partition.index)
        try:
            answer = await forwarder.ask(
                request,
                refusal,
                DeletionAnswer,
                method="DELETE",
                path=f"/v1/topics/{quote(partition.topic, safe='')}/records",
                body=msgspec.json.encode(body),
            )
        except NotLeader as unled:
            message = f"records of some partitions may be deleted already: {unled}"
            raise LeaderNotAvailable(message) from unled
    return answer.deleted


def _check_deletion(deletion: DeletionBody, topic: Topic) -> list[Partition]:
    """Return the partitions to delete from; raises if the body is ambiguous."""
    if deletion.key is not None and deletion.key_prefix is not None:
        raise InvalidRequest("key and key_prefix cannot be combined")
    if deletion.key is None and deletion.key_prefix is None and deletion.before is None:
        raise InvalidRequest("one of key, key_prefix and before must be set")
    if deletion.partition is not None:
        return [topic.partition(deletion.partition)]
    if deletion.before is not None and topic.partition_count > 1:
        raise InvalidRequest(
            f"before needs partition, because {topic.name} has {topic.partition_count} partitions"
        )
    return topic.partitions


async def _delete(request: HttpRequest, partition: Partition, deletion: DeletionBody) -> int:
    """Delete records of one partition; return how many were deleted."""
    await partition.open()
    key, prefix = text_bytes(deletion.key), text_bytes(deletion.key_prefix)
    if key is None and prefix is None:
        assert deletion.before is not None
        start_offset = partition.log_start_offset
        return max(0, await partition.delete_before(deletion.before) - start_offset)
    before = deletion.before
    if topic_of(request).config.lake_deletions:
        before = await _record_for_lake(
            request, partition, match_for(key=key, prefix=prefix), before
        )
    return await partition.delete_keys(key=key, prefix=prefix, before=before)


async def _record_for_lake(
    request: HttpRequest, partition: Partition, match: KeyMatch, before: int | None
) -> int | None:
    """Record a deletion for the topic's lake table; return the offset before which it applies.

    Durable when this returns, and not taken back if the deletion from the log fails then.
    """
    topic, end = topic_of(request), partition.high_watermark
    if not end or (before is not None and not 0 < before <= end):
        return before  # There is nothing to delete, or the offset is refused.
    before = end if before is None else before
    recorded = LakeDeletion(
        topic_id=topic.id,
        partition=partition.index,
        before=before,
        key=None if match.is_prefix else match.pattern,
        key_prefix=match.pattern if match.is_prefix else None,
    )
    broker = request.context.broker
    name = topic.config.lake_deletions
    if (deletions := broker.topics.find(name)) is None:
        raise UnknownTopic(
            f"nothing was deleted: topic {name!r}, in which deletions of {topic.name!r} are"
            " recorded for its lake table, does not exist"
        )
    await broker.appends.append(deletions, [Record(encode_lake_deletion(recorded))])
    return before


# Topic, partition and start of a request.


def topic_of(request: HttpRequest) -> Topic:
    """Return the topic in the path; raises `UnknownTopic`."""
    return request.context.broker.topics.get(request.path_params["topic"])


async def topic_to_write(request: HttpRequest) -> Topic:
    """Return the topic in the path; create it if the node does that."""
    name = request.path_params["topic"]
    return await ensured_topic(
        request.context.broker,
        name,
        request.usage,
        request.caller,
        lambda: request.require_creation(name),
    )


async def ensured_topic(
    broker: Broker,
    name: str,
    usage: ClientUsage,
    caller: Caller,
    check_creation: Callable[[], None],
) -> Topic:
    """Return a topic; create it if it does not exist and the node is set to do that.

    Creating it is charged to the mutation quota, as every other creation is. `check_creation`
    raises if the caller may not create it.
    """
    topics = broker.topics
    if not broker.config.auto_create_topics:
        return topics.get(name)
    if (existing := topics.find(name)) is not None:
        return existing
    check_creation()
    usage.check(QuotaKind.MUTATION)
    topic = await topics.ensure(name, creator=caller)
    usage.charge(QuotaKind.MUTATION, topic.partition_count)
    return topic


class ReadStart(NamedTuple):
    """Where a read starts."""

    partition: Partition
    offset: int
    gap: Gap | None = None
    """Set if the cursor is of a topic that was deleted: the read starts over."""


def start_of(topic: Topic, index: int | None, start: int | str) -> ReadStart:
    """Return where a read starts, for an offset or a cursor."""
    if isinstance(start, int):
        return ReadStart(one_partition(topic, index), start)
    try:
        decoded = decode_cursor(start)
    except MalformedRequest as error:
        raise MalformedRequest(f"from must be an offset or a cursor: {error}") from None
    positions = {index: at for (name, index), at in decoded.items() if name == topic.name}
    if index is None and len(positions) == 1:
        index = next(iter(positions))
    partition = one_partition(topic, index)
    position = positions.get(partition.index)
    if position is None:
        raise InvalidRequest(
            f"from must be a cursor of topic {topic.name}, partition {partition.index},"
            f" got {start[:100]!r}"
        )
    if position.is_foreign(topic.id):
        return ReadStart(partition, 0, Gap(position.offset, position.offset, RECREATED))
    return ReadStart(partition, position.offset)


def one_partition(topic: Topic, index: int | None) -> Partition:
    """Return a partition; without an index, the topic must have only one."""
    if index is not None:
        return topic.partition(index)
    if topic.partition_count > 1:
        raise InvalidRequest(
            f"partition must be set, because {topic.name} has {topic.partition_count} partitions"
        )
    return topic.partition(0)


_CONFLICTS = (HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE)

OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/topics/{topic}/records",
        append_records,
        "Append records",
        {HTTPStatus.CREATED: AppendAnswer},
        body=AppendBody,
        errors=(*_CONFLICTS, HTTPStatus.UNPROCESSABLE_ENTITY),
        uses=(QuotaKind.PRODUCE,),
        example={"records": [{"key": "k1", "value": {"n": 1}, "headers": {"a": "b"}}]},
        answer_example={
            "offsets": [41],
            "partition": 0,
            "head": 42,
            "cost": {"commit_ms": 0.4, "fsync_ms": 0.3, "throttle_ms": 0},
        },
        access=topic_access(Operation.WRITE, checks="CREATE, if the topic is created"),
    ),
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/records",
        read_records,
        "Read records from a cursor",
        {HTTPStatus.OK: RecordsAnswer},
        query=RecordsQuery,
        uses=(QuotaKind.CONSUME,),
        errors=(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,),
        answer_example={
            "records": [
                {
                    "offset": 40,
                    "timestamp": 1763240000000,
                    "key": "k1",
                    "value": {"n": 0},
                    "headers": {},
                }
            ],
            "next": 41,
            "cursor": "orders@x3Jd0QmnRkK8m2Yv1pTq5w:0:41",
            "head": 42,
            "gaps": [{"from": 0, "to": 39, "reason": "age"}],
        },
        is_forwarded=True,
        access=topic_access(Operation.READ),
    ),
    HttpOperation(
        "DELETE",
        "/v1/topics/{topic}/records",
        delete_records,
        "Delete records",
        {HTTPStatus.OK: DeletionAnswer},
        body=DeletionBody,
        errors=(*_CONFLICTS, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE),
        example={"key": "k1"},
        answer_example={"deleted": 17},
        is_forwarded=True,
        access=topic_access(Operation.DELETE),
    ),
)

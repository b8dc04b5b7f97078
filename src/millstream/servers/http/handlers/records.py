"""Records over HTTP: appending, the difference from a cursor, and deleting."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import UNSET
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import NewRecordsWaiter, RecordPage, read_page
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.record_appender import NO_PRODUCER_STAMP, AppendResult, ProducerStamp
from millstream.broker.topics.record_appender import AppendTimings as AppendCost
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest
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
from millstream.records.record import StoredRecord
from millstream.servers.http.routing.bodies import read_message, read_query
from millstream.servers.http.routing.disconnect import DisconnectReason, watch_disconnect
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request_state import (
    broker_of,
    config_of,
    in_thread_if,
    json_response,
    note_cost,
    note_long_poll,
)
from millstream.servers.http.routing.usage import ClientUsage, usage_of

INLINE_RECORDS_MAX = 500
"""Records up to this number are made, or written, on the loop; more in a thread, so that nobody
waits for them: it takes a few microseconds each."""

DELETION_SIZE_MAX = 256 * 1024
"""What says which records go: a key of 64 KiB, in base64 or with many characters escaped."""


async def append_records(request: Request) -> Response:
    """Append one record or many.

    Answered once the topic's durability class is met. Records that go to one partition are
    appended all or none.
    """
    body = await read_message(request, AppendBody, size_max=config_of(request).append_size_max)
    topic = await topic_to_write(request)
    placed = await append(request, topic, body)
    usage = usage_of(request)
    usage.charge(QuotaKind.PRODUCE, usage.body_bytes)
    return answer_append(request, placed)


async def append(request: HTTPConnection, topic: Topic, body: AppendBody) -> AppendResult:
    """Append what a body brings."""
    stamp = NO_PRODUCER_STAMP
    if body.producer is not None:
        stamp = ProducerStamp(body.producer.id, body.producer.epoch, body.producer.sequence)
    records = await in_thread_if(
        len(body.records) > INLINE_RECORDS_MAX,
        lambda: [record_of(sent, body.node) for sent in body.records],
    )
    return await broker_of(request).appends.append(
        topic, records, partitions=_partitions_of(body), stamp=stamp
    )


def _partitions_of(body: AppendBody) -> list[int | None] | None:
    """Return where each record is to go; nothing where no record says it."""
    named = [body.partition if sent.partition is None else sent.partition for sent in body.records]
    return named if any(one is not None for one in named) else None


def answer_append(request: Request, placed: AppendResult) -> Response:
    """Say where records went, and what that cost."""
    cost = note_cost(request, placed.cost)
    return json_response(append_answer(placed, cost), HTTPStatus.CREATED)


def append_answer(placed: AppendResult, cost: AppendCost) -> AppendAnswer:
    """Return where records went, and what that cost, as a message."""
    is_one = len(set(placed.partitions)) == 1
    return AppendAnswer(
        offsets=list(placed.offsets),
        partition=placed.partitions[0] if is_one else None,
        partitions=UNSET if is_one else list(placed.partitions),
        head=placed.head if is_one else None,
        cost=RequestCost(**cost._asdict()),
    )


async def read_records(request: Request) -> Response:
    """Read what is new from a cursor on, and wait for it where there is nothing yet.

    Records come in the order of their offsets. What retention took before the cursor saw it is
    told as a gap; what was deleted is passed over in silence. Go on with `next`, which may have
    moved though no record came: what is left out counts towards the limits too.
    """
    query = read_query(request, RecordsQuery)
    topic = topic_of(request)
    partition = one_partition(topic, query.partition)
    await partition.open()
    if not query.wait_ms:
        found = await _answer(await _difference(partition, query, query.from_), query)
    else:
        found = await _wait_for_difference(request, partition, query)
    usage_of(request).charge(QuotaKind.CONSUME, len(found))
    return json_response(found)


async def _wait_for_difference(
    request: Request, partition: Partition, query: RecordsQuery
) -> bytes:
    """Return what is new once something is, time is up, or the node stops."""
    note_long_poll(request)
    broker = broker_of(request)
    deadline = broker.clock.monotonic() + query.wait_ms / 1000
    arrival = NewRecordsWaiter([partition], broker.timers)
    cursor = query.from_
    try:
        async with watch_disconnect(request) as leaving:
            leaving.add_done_callback(lambda _: arrival.wake())
            while True:
                found = await _difference(partition, query, cursor)
                if leaving.done() and leaving.result() is DisconnectReason.CLIENT:
                    raise ClientDisconnect
                left = deadline - broker.clock.monotonic()
                is_over = left <= 0 or leaving.done()
                if is_over or found.gap or any(_is_wanted(one, query) for one in found.records):
                    return await _answer(found, query)
                if found.next_offset == cursor:
                    await arrival.wait(left)
                cursor = found.next_offset
    finally:
        arrival.close()


async def _difference(partition: Partition, query: RecordsQuery, cursor: int) -> RecordPage:
    return await read_page(partition, cursor, limit=query.limit, size_max=query.max_bytes)


async def _answer(found: RecordPage, query: RecordsQuery) -> bytes:
    records = await in_thread_if(
        len(found.records) > INLINE_RECORDS_MAX,
        lambda: [record_json(one) for one in found.records if _is_wanted(one, query)],
    )
    return records_json(records, next_offset=found.next_offset, head=found.head, gap=found.gap)


def _is_wanted(record: StoredRecord, query: RecordsQuery) -> bool:
    return query.exclude_node is None or origin_of(record) != query.exclude_node.encode()


async def delete_records(request: Request) -> Response:
    """Delete records for good: they are gone, at every door, when this is answered."""
    topic = topic_of(request)
    deletion = await read_message(request, DeletionBody, size_max=DELETION_SIZE_MAX)
    partitions = _check_deletion(deletion, topic)
    deleted = sum([await _delete(one, deletion) for one in partitions])
    return json_response(DeletionAnswer(deleted=deleted))


def _check_deletion(deletion: DeletionBody, topic: Topic) -> list[Partition]:
    """Return the partitions that are meant; raise where it is not clear what is to go."""
    if deletion.key is not None and deletion.key_prefix is not None:
        raise InvalidRequest("key and key_prefix exclude each other")
    if deletion.key is None and deletion.key_prefix is None and deletion.before is None:
        raise InvalidRequest("needed is key, key_prefix or before: which records are to go")
    if deletion.partition is not None:
        return [topic.partition(deletion.partition)]
    if deletion.before is not None and topic.partition_count > 1:
        raise InvalidRequest(
            f"before is {deletion.before}, and {topic.name} has {topic.partition_count}"
            " partitions: needed is partition, which says in which of them"
        )
    return topic.partitions


async def _delete(partition: Partition, deletion: DeletionBody) -> int:
    """Delete in one partition; return how many records went."""
    await partition.open()
    if deletion.key is None and deletion.key_prefix is None:
        assert deletion.before is not None
        start_offset = partition.log_start_offset
        return max(0, await partition.delete_before(deletion.before) - start_offset)
    return await partition.delete_keys(
        key=text_bytes(deletion.key),
        prefix=text_bytes(deletion.key_prefix),
        before=deletion.before,
    )


# Which topic, and which partition.


def topic_of(request: Request) -> Topic:
    """Return the topic that the path names; raises `UnknownTopic`."""
    return broker_of(request).topics.get(request.path_params["topic"])


async def topic_to_write(request: Request) -> Topic:
    """Return the topic that the path names; made where there is none and the node does that."""
    name = request.path_params["topic"]
    return await ensured_topic(broker_of(request), name, usage_of(request))


async def ensured_topic(broker: Broker, name: str, usage: ClientUsage) -> Topic:
    """Return a topic; made where there is none and the node does that.

    That changes topics as every other way to make one does, and is charged for.
    """
    topics = broker.topics
    if not broker.config.auto_create_topics:
        return topics.get(name)
    if (found := topics.find(name)) is not None:
        return found
    usage.check(QuotaKind.MUTATION)
    topic = await topics.ensure(name)
    usage.charge(QuotaKind.MUTATION, topic.partition_count)
    return topic


def one_partition(topic: Topic, index: int | None) -> Partition:
    """Return a partition; where none is named, the topic may have one only."""
    if index is not None:
        return topic.partition(index)
    if topic.partition_count > 1:
        raise InvalidRequest(
            f"{topic.name} has {topic.partition_count} partitions: needed is partition,"
            " which says from which of them to read"
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
        errors=_CONFLICTS,
        uses=(QuotaKind.PRODUCE,),
        example={"records": [{"key": "k1", "value": {"n": 1}, "headers": {"a": "b"}}]},
        answer_example={
            "offsets": [41],
            "partition": 0,
            "head": 42,
            "cost": {"commit_ms": 0.4, "fsync_ms": 0.3, "throttle_ms": 0},
        },
    ),
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/records",
        read_records,
        "Read what is new from a cursor on",
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
            "head": 42,
            "gaps": [{"from": 0, "to": 39, "reason": "retention"}],
        },
    ),
    HttpOperation(
        "DELETE",
        "/v1/topics/{topic}/records",
        delete_records,
        "Delete records for good",
        {HTTPStatus.OK: DeletionAnswer},
        body=DeletionBody,
        errors=(*_CONFLICTS, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE),
        example={"key": "k1"},
        answer_example={"deleted": 17},
    ),
)

"""Handler that searches the records of a topic."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_search import RecordSearch, search_partition
from millstream.broker.queues.job_browser import RecordPosition
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.configs.value_format import TopicValueFormat
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest
from millstream.protocols.http.search import SearchAnswer, SearchQuery, found_json, search_json
from millstream.records.match import FieldMatcher, RecordMatcher
from millstream.servers.http.handlers.record_position import parse_record_position
from millstream.servers.http.handlers.records import INLINE_RECORDS_MAX, topic_of
from millstream.servers.http.handlers.topics.segments import summaries_of
from millstream.servers.http.routing.bodies import in_thread_if, read_query
from millstream.servers.http.routing.operation_access import topic_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response
from millstream.storage.inspect.log_summary import LogSummary

RESULT_BYTES_MAX = 4 * 1024 * 1024
"""Size of the records in one response; a single one may be larger."""


async def search_records(request: HttpRequest) -> Response:
    """Search the records of a topic by key, by text, by a field of the value and by time.

    Partitions are searched one after the other, each in the order of its offsets. One request looks
    at a limited number of records: continue with `next` until it is null, also if a response has no
    record. A search sees committed records only, up to the ends at the time of the request.
    """
    query = read_query(request, SearchQuery)
    topic = topic_of(request)
    first = query.partition or 0
    if query.partition is not None:
        topic.partition(query.partition)  # Raises if there is none.
    after = parse_record_position(query.after) if query.after else RecordPosition(first, 0)
    search = RecordSearch(
        _matcher(topic, query), limit=query.limit, result_bytes_max=RESULT_BYTES_MAX
    )
    position: RecordPosition | None = None
    remaining = 0
    store = request.context.broker.store
    async for partition, summary in summaries_of(store, topic, max(first, after.partition)):
        index = partition.index
        if position is not None:  # The next request goes on there. Nothing is opened to estimate.
            remaining += 0 if summary is None else _offset_count(summary)
        else:
            source = partition.anywhere
            start, end = await _bounds(source, query)
            start = max(start, after.offset) if index == after.partition else start
            start = await search_partition(source, start, end, search)
            if start < end:
                position = RecordPosition(index, start)
                remaining = end - start
        if query.partition is not None:
            break
    body = search_json(
        await in_thread_if(
            len(search.found) > INLINE_RECORDS_MAX,
            lambda: [found_json(index, record) for index, record in search.found],
        ),
        after=None if position is None else str(position),
        scanned=search.scanned,
        remaining=remaining,
    )
    request.usage.charge(QuotaKind.CONSUME, len(body))
    return json_response(body)


def _matcher(topic: Topic, query: SearchQuery) -> RecordMatcher:
    field: FieldMatcher | None = None
    if query.field is not None:
        value_format = topic.config.value_format
        if value_format is TopicValueFormat.AVRO:
            raise InvalidRequest(
                f"field must be of a JSON or MessagePack value, and the values of {topic.name} are"
                " avro: search by key, text or time"
            )
        is_msgpack = value_format is TopicValueFormat.MSGPACK
        kind = "msgpack" if is_msgpack else "json"
        field = FieldMatcher(query.field, query.value, value_format=kind)
    elif query.value is not None:
        raise InvalidRequest("value needs field, the path of the field that has it")
    return RecordMatcher(
        key=_bytes(query.key),
        key_prefix=_bytes(query.key_prefix),
        text=_bytes(query.text),
        field=field,
        from_ms=query.from_,
        to_ms=query.to,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _offset_count(summary: LogSummary) -> int:
    segments = summary.segments
    return summary.end_offset - segments[0].base_offset if segments else 0


async def _bounds(partition: ReadablePartition, query: SearchQuery) -> tuple[int, int]:
    """Return the offsets between which a partition is searched."""
    await partition.open()
    await partition.catch_up()
    start, end = partition.log_start_offset, partition.last_stable_offset
    if query.from_ is not None:
        first = await partition.find_timestamp(query.from_)
        start = end if first is None else first
    if query.to is not None:
        last = await partition.find_timestamp(query.to)
        end = end if last is None else min(end, last)
    return start, max(start, end)


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/search",
        search_records,
        "Search records",
        {HTTPStatus.OK: SearchAnswer},
        query=SearchQuery,
        uses=(QuotaKind.CONSUME,),
        answer_example={
            "records": [
                {
                    "partition": 0,
                    "offset": 40,
                    "timestamp": 1763240000000,
                    "key": "k1",
                    "value": {"n": 0, "country": "DE"},
                    "headers": {},
                }
            ],
            "next": "0:20000",
            "scanned": 20000,
            "remaining": 7312,
        },
        is_forwarded=True,
        access=topic_access(Operation.READ),
    ),
)

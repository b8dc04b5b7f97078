"""Topics over HTTP."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse

from millstream.broker.broker import Broker
from millstream.broker.partition import Partition
from millstream.broker.topic import Topic
from millstream.errors import InvalidRequest
from millstream.http.bodies import key_bytes, read_object, whole_number

DELETION_SIZE_MAX = 256 * 1024
"""What says which records go: a key of 64 KiB, in base64 or with many characters escaped."""


async def describe_topic(request: Request) -> JSONResponse:
    """`GET /v1/topics/{topic}`: how far its partitions reach, and what went or waits to go."""
    topic = _topic(request)
    partitions = [await _described(partition) for partition in topic.partitions]
    body = {"name": topic.name, "id": str(topic.id), "partitions": partitions}
    totals = ("count", "bytes", "deleted", "reclaimable_bytes")
    return JSONResponse(body | {name: sum(one[name] for one in partitions) for name in totals})


async def delete_records(request: Request) -> JSONResponse:
    """`DELETE /v1/topics/{topic}/records`: they are gone, at every door, when this is answered."""
    topic = _topic(request)
    fields = await read_object(request, known=Deletion._fields, size_max=DELETION_SIZE_MAX)
    deletion = parse_deletion(fields, topic)
    partitions = topic.partitions
    if deletion.partition is not None:
        partitions = [topic.partition(deletion.partition)]
    return JSONResponse({"deleted": sum([await _delete(one, deletion) for one in partitions])})


class Deletion(NamedTuple):
    """Which records go: those of a key, or whose key begins so, or all before an offset."""

    key: bytes | None = None
    key_prefix: bytes | None = None
    before: int | None = None
    """With a key: only records of this key before the offset."""
    partition: int | None = None
    """`None` for all; an offset means something in one partition only."""


def parse_deletion(fields: dict[str, Any], topic: Topic) -> Deletion:
    """Read the fields of `delete_records`."""
    parts: dict[str, Any] = {}
    for name, value in fields.items():
        is_key = name in ("key", "key_prefix")
        parts[name] = key_bytes(name, value) if is_key else whole_number(name, value)
    found = Deletion(**parts)
    if found.key is not None and found.key_prefix is not None:
        raise InvalidRequest("key and key_prefix exclude each other")
    if not {"key", "key_prefix", "before"} & fields.keys():
        raise InvalidRequest("needed is key, key_prefix or before: which records are to go")
    if found.before is not None and found.partition is None:
        if topic.partition_count > 1:
            raise InvalidRequest(
                f"before is {found.before}, and {topic.name} has {topic.partition_count}"
                " partitions: needed is partition, which says in which of them"
            )
        return found._replace(partition=0)
    return found


async def _delete(partition: Partition, deletion: Deletion) -> int:
    """Delete in one partition; return how many records went."""
    await partition.open()
    if deletion.key is None and deletion.key_prefix is None:
        assert deletion.before is not None
        start_offset = partition.log_start_offset
        return await partition.delete_before(deletion.before) - start_offset
    return await partition.delete_keys(
        key=deletion.key, prefix=deletion.key_prefix, before=deletion.before
    )


def _topic(request: Request) -> Topic:
    broker: Broker = request.app.state.broker
    return broker.topics.get(request.path_params["topic"])


async def _described(partition: Partition) -> dict[str, Any]:
    await partition.open()
    found = partition.describe()
    return {
        "partition": partition.index,
        "first_live_offset": found.start_offset,
        "eviction_floor": found.eviction_floor,
        "head": found.high_watermark,
        "count": found.records,
        "bytes": found.bytes,
        "epoch": found.leader_epoch,
        "segments": found.segments,
        "deleted": found.deleted_records,
        "reclaimable_bytes": found.reclaimable_bytes,
        "gaps": [
            {"from": gap.from_offset, "to": gap.to_offset, "reason": gap.reason}
            for gap in found.gaps
        ],
    }

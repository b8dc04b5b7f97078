"""Requests of the HTTP door, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from millstream.errors import InvalidName, InvalidRequest
from millstream.protocols.http.topics import TOPICS_MAX

_encode = msgspec.json.Encoder().encode


class Idempotency(Enum):
    """What may come of a request that is made twice."""

    NONE = "none"
    """It changes nothing."""
    SAME = "same"
    """Twice is as once."""
    EACH = "each"
    """Each time something happens: not to be repeated unless the first surely was not done."""


class Request(NamedTuple):
    """One request."""

    method: str
    path: str
    """With its query, as it goes over the wire."""
    effect: Idempotency = Idempotency.NONE
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    wait_s: float = 0.0
    """How long the node was asked to wait before it answers."""


class HttpProducerId(NamedTuple):
    """Who appends: a producer, as the node gave it out."""

    id: int
    epoch: int


# Topics.


def put_topic(topic: str, settings: Mapping[str, Any]) -> Request:
    """Create a topic, or change it."""
    return Request("PUT", topic_path(topic), Idempotency.SAME, _encode(settings))


def get_topic(topic: str) -> Request:
    """Describe a topic."""
    return Request("GET", topic_path(topic))


def get_topics(after: str) -> Request:
    """List topics by rising name, from the one after `after` on."""
    return Request("GET", f"/v1/topics?{_query({'after': after or None, 'limit': TOPICS_MAX})}")


def delete_topic(topic: str) -> Request:
    """Delete a topic with all that it holds."""
    return Request("DELETE", topic_path(topic), Idempotency.SAME)


# Records.


def post_producer() -> Request:
    """Ask for a producer id. Asked for twice, one of the two is never used."""
    return Request("POST", "/v1/producers", Idempotency.SAME)


def post_records(
    topic: str,
    rows: Sequence[bytes],
    *,
    partition: int | None = None,
    producer: HttpProducerId | None = None,
    sequence: int = 0,
) -> Request:
    """Append records that are JSON already; with a producer, repeating appends nothing anew."""
    parts = [b'{"records":[', b",".join(rows), b"]"]
    if partition is not None:
        parts.append(b',"partition":%d' % partition)
    effect = Idempotency.EACH
    if producer is not None:
        effect = Idempotency.SAME
        stamp = (producer.id, producer.epoch, sequence)
        parts.append(b',"producer":{"id":%d,"epoch":%d,"sequence":%d}' % stamp)
    parts.append(b"}")
    return Request("POST", f"{topic_path(topic)}/records", effect, b"".join(parts))


def get_records(topic: str, wait_ms: int = 0, **query: Any) -> Request:
    """Read what is new from a cursor on."""
    if wait_ms:
        query["wait_ms"] = wait_ms
    path = f"{topic_path(topic)}/records?{_query(query)}"
    return Request("GET", path, wait_s=wait_ms / 1000)


def delete_records(topic: str, which: Mapping[str, Any]) -> Request:
    """Delete records for good."""
    path = f"{topic_path(topic)}/records"
    return Request("DELETE", path, Idempotency.SAME, _encode(which))


def get_events(
    topics: Sequence[str], from_: str, *, last_event_id: str | None, exclude_node: str | None
) -> Request:
    """Follow topics; the answer does not end."""
    pairs = [("topic", topic) for topic in topics]
    headers: tuple[tuple[str, str], ...] = (("accept", "text/event-stream"),)
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isprintable()):
            raise InvalidRequest(f"cursor is {last_event_id[:100]!r}, which cannot be one")
        headers += (("last-event-id", last_event_id),)
    else:
        pairs.append(("from", from_))
    if exclude_node is not None:
        pairs.append(("exclude_node", exclude_node))
    return Request("GET", f"/v1/events?{urlencode(pairs)}", headers=headers)


# Queues.


def put_queue(queue: str, settings: Mapping[str, Any]) -> Request:
    """Create a queue, or change it."""
    return Request("PUT", queue_path(queue), Idempotency.SAME, _encode(settings))


def get_queue(queue: str) -> Request:
    """Describe a queue."""
    return Request("GET", queue_path(queue))


def get_queues() -> Request:
    """List all queues."""
    return Request("GET", "/v1/queues")


def delete_queue(queue: str) -> Request:
    """Delete a queue; its topic stays."""
    return Request("DELETE", queue_path(queue), Idempotency.SAME)


def post_claim(
    queue: str, *, max_jobs: int, lease_ms: int | None, wait_ms: int, worker: str
) -> Request:
    """Claim jobs. What a claim gave belongs to the worker though it never heard of it."""
    body: dict[str, Any] = {"max": max_jobs, "wait_ms": wait_ms, "worker": worker}
    if lease_ms is not None:
        body["lease_ms"] = lease_ms
    path = f"{queue_path(queue)}/claim"
    return Request("POST", path, Idempotency.EACH, _encode(body), wait_s=wait_ms / 1000)


def post_receipts(queue: str, verb: str, receipts: Sequence[str], **more: int | None) -> Request:
    """Say what becomes of jobs: `ack`, `nack` or `extend`."""
    body = {"receipts": list(receipts)} | {k: v for k, v in more.items() if v is not None}
    return Request("POST", f"{queue_path(queue)}/{verb}", Idempotency.SAME, _encode(body))


# Paths and queries.


def topic_path(topic: str) -> str:
    """Return the path of a topic."""
    return f"/v1/topics/{_quoted('topic', topic)}"


def queue_path(queue: str) -> str:
    """Return the path of a queue."""
    return f"/v1/queues/{_quoted('queue', queue)}"


def _quoted(what: str, name: str) -> str:
    """Return a name as part of a path; a node could not tell these from something else."""
    # A slash, however it is written, parts a path where a server has undone the quoting.
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name:
        raise InvalidName(f"name of the {what} is {name!r}, which cannot be one")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidName(f"name of the {what} is {name!r}, which cannot be one") from None


def _query(values: Mapping[str, Any]) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})

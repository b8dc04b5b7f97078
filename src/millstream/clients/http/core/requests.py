"""Requests of the HTTP API, as values, one function for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from millstream.clients.http.core.request import Idempotency, Request
from millstream.errors import InvalidName, InvalidRequest
from millstream.protocols.http.topics import TOPICS_MAX

_encode = msgspec.json.Encoder().encode


class HttpProducerId(NamedTuple):
    """Producer id and epoch that the node assigned."""

    id: int
    epoch: int


# Topics.


def put_topic(topic: str, settings: Mapping[str, Any]) -> Request:
    """Create or change a topic."""
    return Request("PUT", topic_path(topic), Idempotency.SAME, _encode(settings))


def get_topic(topic: str) -> Request:
    """Describe a topic."""
    return Request("GET", topic_path(topic))


def get_topics(after: str) -> Request:
    """List topics by name, starting after `after`."""
    return Request("GET", f"/v1/topics?{_query({'after': after or None, 'limit': TOPICS_MAX})}")


def delete_topic(topic: str) -> Request:
    """Delete a topic and its records."""
    return Request("DELETE", topic_path(topic), Idempotency.SAME)


# Records.


def post_producer() -> Request:
    """Request a producer id. If the request is repeated, one of the ids stays unused."""
    return Request("POST", "/v1/producers", Idempotency.SAME)


def post_records(
    topic: str,
    rows: Sequence[bytes],
    *,
    partition: int | None = None,
    producer: HttpProducerId | None = None,
    sequence: int = 0,
) -> Request:
    """Append records encoded as JSON. With a producer, a repeated request appends nothing."""
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
    """Read a page of records."""
    if wait_ms:
        query["wait_ms"] = wait_ms
    path = f"{topic_path(topic)}/records?{_query(query)}"
    return Request("GET", path, wait_s=wait_ms / 1000)


def delete_records(topic: str, selection: Mapping[str, Any]) -> Request:
    """Delete records permanently."""
    path = f"{topic_path(topic)}/records"
    return Request("DELETE", path, Idempotency.SAME, _encode(selection))


def get_events(
    topics: Sequence[str], from_: str, *, last_event_id: str | None, exclude_node: str | None
) -> Request:
    """Follow topics; the response does not end."""
    pairs = [("topic", topic) for topic in topics]
    headers: tuple[tuple[str, str], ...] = (("accept", "text/event-stream"),)
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isprintable()):
            raise InvalidRequest(f"{last_event_id[:100]!r} is not a valid cursor")
        headers += (("last-event-id", last_event_id),)
    else:
        pairs.append(("from", from_))
    if exclude_node is not None:
        pairs.append(("exclude_node", exclude_node))
    return Request("GET", f"/v1/events?{urlencode(pairs)}", headers=headers)


# Queues.


def put_queue(queue: str, settings: Mapping[str, Any]) -> Request:
    """Create or change a queue."""
    return Request("PUT", queue_path(queue), Idempotency.SAME, _encode(settings))


def get_queue(queue: str) -> Request:
    """Describe a queue."""
    return Request("GET", queue_path(queue))


def get_queues() -> Request:
    """List all queues."""
    return Request("GET", "/v1/queues")


def delete_queue(queue: str) -> Request:
    """Delete a queue; its topic remains."""
    return Request("DELETE", queue_path(queue), Idempotency.SAME)


def post_claim(
    queue: str, *, max_jobs: int, lease_ms: int | None, wait_ms: int, worker: str
) -> Request:
    """Claim jobs. They belong to the worker even if the response is lost."""
    body: dict[str, Any] = {"max": max_jobs, "wait_ms": wait_ms, "worker": worker}
    if lease_ms is not None:
        body["lease_ms"] = lease_ms
    path = f"{queue_path(queue)}/claim"
    return Request("POST", path, Idempotency.EACH, _encode(body), wait_s=wait_ms / 1000)


def post_receipts(queue: str, verb: str, receipts: Sequence[str], **more: int | None) -> Request:
    """Settle or extend jobs: `verb` is `ack`, `nack`, `release` or `extend`."""
    body = {"receipts": list(receipts)} | {k: v for k, v in more.items() if v is not None}
    return Request("POST", f"{queue_path(queue)}/{verb}", Idempotency.SAME, _encode(body))


# Paths and queries.


def topic_path(topic: str) -> str:
    return f"/v1/topics/{_quote('topic', topic)}"


def queue_path(queue: str) -> str:
    return f"/v1/queues/{_quote('queue', queue)}"


def _quote(what: str, name: str) -> str:
    """Return a name as a path segment. Raises `InvalidName` if it would change the path."""
    # A quoted slash separates path segments in a server that has unquoted the path.
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name:
        raise InvalidName(f"{name!r} is not a valid {what} name")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidName(f"{name!r} is not a valid {what} name") from None


def _query(values: Mapping[str, Any]) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})

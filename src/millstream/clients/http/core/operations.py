"""Operations of the client except appends, as steps without I/O."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from millstream.clients.http.core import requests, responses
from millstream.clients.http.core.append.appender import Appender
from millstream.clients.http.core.append.new_record import key_bytes
from millstream.clients.http.core.follow_state import FollowState
from millstream.clients.http.core.read_state import PageOptions, ReadState
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.steps import (
    ClientContext,
    RetriedRequest,
    Steps,
    send_with_retries,
)
from millstream.clients.http.core.values import ClaimedJob, Key, QueueState, TopicInfo, TopicState
from millstream.errors import MillstreamError, StaleReceipt, UnknownQueue, UnknownTopic
from millstream.protocols.http.topics import TopicsAnswer, TopicSummaryShape
from millstream.protocols.http.values import Base64, Text

# Topics.


def put_topic(context: ClientContext, topic: str, settings: Mapping[str, Any]) -> Steps[TopicInfo]:
    """Create a topic, or change the given settings of an existing one."""
    answer = yield from send_with_retries(context, requests.put_topic(topic, _given(settings)))
    return responses.info_of(responses.decoded(answer.body, TopicSummaryShape))


def describe_topic(context: ClientContext, topic: str) -> Steps[TopicState]:
    """Return the settings of a topic and the offsets of its partitions."""
    return responses.topic_of((yield from send_with_retries(context, requests.get_topic(topic))))


def list_topics(context: ClientContext) -> Steps[list[TopicInfo]]:
    """Return all topics, sorted by name."""
    topics: list[TopicInfo] = []
    after: str | None = ""
    while after is not None:
        answer = yield from send_with_retries(context, requests.get_topics(after))
        page = responses.decoded(answer.body, TopicsAnswer)
        topics += map(responses.info_of, page.topics)
        after = page.next if page.topics else None
    return topics


def delete_topic(context: ClientContext, topic: str) -> Steps[None]:
    """Delete a topic. Raises `UnknownTopic` if it does not exist."""
    yield from _delete(context, requests.delete_topic(topic), UnknownTopic)


def _delete(
    context: ClientContext, request: Request, unknown: type[MillstreamError]
) -> Steps[None]:
    call = RetriedRequest(context, request)
    try:
        yield from call.steps()
    except unknown:
        if not call.is_in_doubt:
            raise
        # An attempt without a response has deleted it.


def delete_records(
    context: ClientContext,
    topic: str,
    *,
    key: Key,
    key_prefix: Key,
    before: int | None,
    partition: int | None,
) -> Steps[int]:
    """Delete records permanently and return their number."""
    options = {
        "key": _text(key),
        "key_prefix": _text(key_prefix),
        "before": before,
        "partition": partition,
    }
    request = requests.delete_records(topic, _given(options))
    return responses.deleted_of((yield from send_with_retries(context, request)))


def _text(key: Key) -> Text | None:
    if not isinstance(key, bytes):
        key_bytes(key)  # Raises if it is not a key.
        return key
    return Base64(base64.b64encode(key).decode())


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


# Reading.


def start_reading(
    appender: Appender, topic: str, *, partition: int | None, from_: int | str, options: PageOptions
) -> Steps[ReadState]:
    """Return the state of a reader of one partition, or of all."""
    partitions = [partition] if partition is not None else None
    if partitions is None:
        partitions = list(range((yield from appender.count_partitions(topic))))
    return ReadState(topic, partitions, from_, options)


def start_following(context: ClientContext, follow_state: FollowState) -> Steps[None]:
    """Fetch the start position of a follower that starts at `latest`."""
    states = []
    for topic in follow_state.topics_to_ask:
        states.append((yield from describe_topic(context, topic)))
    follow_state.start_at(states)


# Queues.


def put_queue(context: ClientContext, queue: str, settings: Mapping[str, Any]) -> Steps[QueueState]:
    """Create a queue, or change the given settings of an existing one."""
    request = requests.put_queue(queue, _given(settings))
    return responses.queue_of((yield from send_with_retries(context, request)))


def describe_queue(context: ClientContext, queue: str) -> Steps[QueueState]:
    """Return the settings and job counts of a queue."""
    return responses.queue_of((yield from send_with_retries(context, requests.get_queue(queue))))


def list_queues(context: ClientContext) -> Steps[list[QueueState]]:
    return responses.queues_of((yield from send_with_retries(context, requests.get_queues())))


def delete_queue(context: ClientContext, queue: str) -> Steps[None]:
    """Delete a queue; its topic remains. Raises `UnknownQueue` if it does not exist."""
    yield from _delete(context, requests.delete_queue(queue), UnknownQueue)


def claim(
    context: ClientContext,
    queue: str,
    *,
    max_jobs: int,
    lease_ms: int | None,
    wait_ms: int,
    worker: str,
) -> Steps[list[ClaimedJob]]:
    """Claim jobs. Not retried if in doubt: such jobs return when their leases expire."""
    request = requests.post_claim(
        queue, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=wait_ms, worker=worker
    )
    return responses.jobs_of((yield from send_with_retries(context, request)), queue)


def ack(context: ClientContext, queue: str, receipts: Sequence[str]) -> Steps[None]:
    """Complete jobs. Raises `StaleReceipt` with those that belong to other workers."""
    if receipts:
        yield from send_with_retries(context, requests.post_receipts(queue, "ack", receipts))


def nack(context: ClientContext, queue: str, receipts: Sequence[str], delay_ms: int) -> Steps[None]:
    """Return jobs to the queue. Raises `StaleReceipt` with those that belong to other workers."""
    if receipts:
        request = requests.post_receipts(queue, "nack", receipts, delay_ms=delay_ms)
        yield from _return_jobs(context, request)


def release(context: ClientContext, queue: str, receipts: Sequence[str]) -> Steps[None]:
    """Return jobs that were not tried. Raises `StaleReceipt` as `nack` does."""
    if receipts:
        yield from _return_jobs(context, requests.post_receipts(queue, "release", receipts))


def _return_jobs(context: ClientContext, request: Request) -> Steps[None]:
    call = RetriedRequest(context, request)
    try:
        yield from call.steps()
    except StaleReceipt:
        if not call.is_in_doubt:
            raise
        # An attempt without a response returned them, or their leases expired.


def extend(
    context: ClientContext, queue: str, receipts: Sequence[str], lease_ms: int | None
) -> Steps[int]:
    """Extend leases and return their new length in milliseconds."""
    request = requests.post_receipts(queue, "extend", receipts, lease_ms=lease_ms)
    return responses.deadline_of((yield from send_with_retries(context, request)))

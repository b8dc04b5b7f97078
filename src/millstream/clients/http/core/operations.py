"""Everything that a client can be asked for, step by step, save appends."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from millstream.clients.http.core import requests
from millstream.clients.http.core import responses as answers
from millstream.clients.http.core.append.appender import Appender
from millstream.clients.http.core.append.new_record import key_bytes
from millstream.clients.http.core.follow_state import FollowState
from millstream.clients.http.core.read_state import PageOptions, ReadState
from millstream.clients.http.core.requests import Request
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


def put_topic(around: ClientContext, topic: str, settings: Mapping[str, Any]) -> Steps[TopicInfo]:
    """Create a topic, or change what is named of it."""
    answer = yield from send_with_retries(around, requests.put_topic(topic, _said(settings)))
    return answers.info_of(answers.decoded(answer.body, TopicSummaryShape))


def describe_topic(around: ClientContext, topic: str) -> Steps[TopicState]:
    """Tell how far a topic reaches."""
    return answers.topic_of((yield from send_with_retries(around, requests.get_topic(topic))))


def list_topics(around: ClientContext) -> Steps[list[TopicInfo]]:
    """List all topics, by rising name."""
    found: list[TopicInfo] = []
    after: str | None = ""
    while after is not None:
        answer = yield from send_with_retries(around, requests.get_topics(after))
        page = answers.decoded(answer.body, TopicsAnswer)
        found += map(answers.info_of, page.topics)
        after = page.next if page.topics else None
    return found


def delete_topic(around: ClientContext, topic: str) -> Steps[None]:
    """Delete a topic; raises `UnknownTopic` where there is none."""
    yield from _delete(around, requests.delete_topic(topic), UnknownTopic)


def _delete(around: ClientContext, request: Request, gone: type[MillstreamError]) -> Steps[None]:
    call = RetriedRequest(around, request)
    try:
        yield from call.steps()
    except gone:
        if not call.is_in_doubt:
            raise
        # An attempt that was not answered has done it.


def delete_records(
    around: ClientContext,
    topic: str,
    *,
    key: Key,
    key_prefix: Key,
    before: int | None,
    partition: int | None,
) -> Steps[int]:
    """Delete records for good; return how many went."""
    which = {
        "key": _text(key),
        "key_prefix": _text(key_prefix),
        "before": before,
        "partition": partition,
    }
    request = requests.delete_records(topic, _said(which))
    return answers.deleted_of((yield from send_with_retries(around, request)))


def _text(key: Key) -> Text | None:
    if not isinstance(key, bytes):
        key_bytes(key)  # Raises where it is no key.
        return key
    return Base64(base64.b64encode(key).decode())


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


# Reading.


def start_reading(
    appending: Appender, topic: str, *, partition: int | None, from_: int | str, which: PageOptions
) -> Steps[ReadState]:
    """Return a reading of one partition, or of all."""
    partitions = [partition] if partition is not None else None
    if partitions is None:
        partitions = list(range((yield from appending.count_partitions(topic))))
    return ReadState(topic, partitions, from_, which)


def start_following(around: ClientContext, following: FollowState) -> Steps[None]:
    """Find out where a follower begins that begins now."""
    states = []
    for topic in following.topics_to_ask:
        states.append((yield from describe_topic(around, topic)))
    following.begin_at(states)


# Queues.


def put_queue(around: ClientContext, queue: str, settings: Mapping[str, Any]) -> Steps[QueueState]:
    """Create a queue, or change what is named of it."""
    request = requests.put_queue(queue, _said(settings))
    return answers.queue_of((yield from send_with_retries(around, request)))


def describe_queue(around: ClientContext, queue: str) -> Steps[QueueState]:
    """Tell what a queue is set to, and count its jobs."""
    return answers.queue_of((yield from send_with_retries(around, requests.get_queue(queue))))


def list_queues(around: ClientContext) -> Steps[list[QueueState]]:
    """List all queues."""
    return answers.queues_of((yield from send_with_retries(around, requests.get_queues())))


def delete_queue(around: ClientContext, queue: str) -> Steps[None]:
    """Delete a queue; its topic stays. Raises `UnknownQueue` where there is none."""
    yield from _delete(around, requests.delete_queue(queue), UnknownQueue)


def claim(
    around: ClientContext,
    queue: str,
    *,
    max_jobs: int,
    lease_ms: int | None,
    wait_ms: int,
    worker: str,
) -> Steps[list[ClaimedJob]]:
    """Claim jobs. Not tried again where it may have been done: then the leases run out."""
    request = requests.post_claim(
        queue, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=wait_ms, worker=worker
    )
    return answers.jobs_of((yield from send_with_retries(around, request)), queue)


def ack(around: ClientContext, queue: str, receipts: Sequence[str]) -> Steps[None]:
    """Say that jobs are done. Raises `StaleReceipt` with those that belong to others."""
    if receipts:
        yield from send_with_retries(around, requests.post_receipts(queue, "ack", receipts))


def nack(around: ClientContext, queue: str, receipts: Sequence[str], delay_ms: int) -> Steps[None]:
    """Give jobs back. Raises `StaleReceipt` with those that belong to others."""
    if not receipts:
        return
    request = requests.post_receipts(queue, "nack", receipts, delay_ms=delay_ms)
    call = RetriedRequest(around, request)
    try:
        yield from call.steps()
    except StaleReceipt:
        if not call.is_in_doubt:
            raise
        # An attempt that was not answered gave them back, or they ran out: they are not ours.


def extend(
    around: ClientContext, queue: str, receipts: Sequence[str], lease_ms: int | None
) -> Steps[int]:
    """Have leases last longer; return for how many milliseconds from now."""
    request = requests.post_receipts(queue, "extend", receipts, lease_ms=lease_ms)
    return answers.deadline_of((yield from send_with_retries(around, request)))

"""Batches that are sent to leaders: which answers are followed, and which are errors."""

from __future__ import annotations

import uuid
from collections.abc import Hashable
from typing import Any, cast

import pytest

from millstream.broker.partition.batch_validator import InvalidBatchRecord, InvalidBatchValues
from millstream.broker.partition.partition import Partition
from millstream.cluster.forwarding.append_errors import append_error_response
from millstream.cluster.forwarding.append_forwarder import AppendForwarder
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.errors import (
    DeadlineExceeded,
    LeaderNotAvailable,
    MillstreamError,
    NotLeader,
    NotLeaderAnymore,
    OutcomeUnknown,
    OutOfOrderSequence,
    PeerUnavailable,
)
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest, AppendBatchResponse
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.in_loop import in_loop

BATCH = build_batch([Record(b"a"), Record(b"b")], now_ms=1)
APPENDED = AppendBatchResponse(base_offset=5, last_offset=6, high_watermark=7, commit_ms=2.0)


class SomePartition:
    topic_id = uuid.UUID(int=1)
    index = 3

    def __str__(self) -> str:
        return "t/3"


PARTITION = cast("Partition", SomePartition())


class Peers:
    """Nodes with prepared answers."""

    def __init__(self, *answers: AppendBatchResponse | MillstreamError) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    async def send(
        self,
        node_id: int,
        _purpose: object,
        request: AppendBatchRequest,
        *,
        timeout_s: float,
        order_key: Hashable | None = None,
    ) -> Any:
        assert (request.index, request.batch) == (3, BATCH)
        assert order_key is PARTITION
        assert timeout_s > 0
        self.asked.append(node_id)
        answer = self._answers.pop(0)
        if isinstance(answer, PeerUnavailable):
            raise answer
        return _Sent(answer)


class _Sent:
    def __init__(self, answer: AppendBatchResponse | MillstreamError) -> None:
        self._answer = answer

    async def response(self) -> AppendBatchResponse:
        if isinstance(self._answer, MillstreamError):
            raise self._answer
        return self._answer


def forwarder_to(peers: Peers) -> tuple[AppendForwarder, ForwardCounters]:
    counters = ForwardCounters()
    return AppendForwarder(1, peers, ManualTimers(ManualClock()), counters), counters


def led_by(node_id: int) -> NotLeader:
    return NotLeader(f"t/3 is led by node {node_id}", leader=node_id, leader_epoch=4)


@in_loop
async def test_a_batch_is_appended_at_the_leader():
    peers = Peers(APPENDED)
    forwarder, counters = forwarder_to(peers)
    appended = await forwarder.append(PARTITION, BATCH, led_by(2))
    assert (appended.offset, appended.head, appended.timings.commit_ms) == (5, 7, 2.0)
    assert counters.outcomes == {("append", "answered"): 1}


@in_loop
async def test_a_refusal_is_followed_once_to_the_node_that_it_names():
    peers = Peers(append_error_response(led_by(3)), APPENDED)
    forwarder, counters = forwarder_to(peers)
    assert (await forwarder.append(PARTITION, BATCH, led_by(2))).offset == 5
    assert peers.asked == [2, 3]
    assert counters.retries == {"append": 1}

    peers = Peers(append_error_response(led_by(3)), append_error_response(led_by(2)))
    forwarder, counters = forwarder_to(peers)
    with pytest.raises(NotLeader):
        await forwarder.append(PARTITION, BATCH, led_by(2))
    assert peers.asked == [2, 3]
    assert counters.outcomes == {("append", "unavailable"): 1}


@pytest.mark.parametrize("node_id", [-1, 1])
@in_loop
async def test_nothing_is_sent_if_no_other_node_is_named(node_id: int):
    peers = Peers()
    forwarder, _ = forwarder_to(peers)
    with pytest.raises(NotLeader):
        await forwarder.append(PARTITION, BATCH, led_by(node_id))


@pytest.mark.parametrize(
    "answer",
    [
        OutcomeUnknown("connection lost"),
        append_error_response(NotLeaderAnymore("deposed")),
        append_error_response(OutcomeUnknown("?")),
        AppendBatchResponse(error_code=-7, error_name="of_a_later_release"),
        AppendBatchResponse(base_offset=5, last_offset=5),  # Of two records.
        AppendBatchResponse(),
    ],
)
@in_loop
async def test_an_unknown_outcome_is_an_error_and_nothing_is_sent_again(
    answer: AppendBatchResponse | MillstreamError,
):
    peers = Peers(answer)
    forwarder, counters = forwarder_to(peers)
    with pytest.raises(OutcomeUnknown):
        await forwarder.append(PARTITION, BATCH, led_by(2))
    assert peers.asked == [2]
    assert counters.outcomes == {("append", "unknown"): 1}


@pytest.mark.parametrize(
    "error",
    [
        OutOfOrderSequence("5 follows 3"),
        DeadlineExceeded("disk is slow", "limit"),
        LeaderNotAvailable("none"),
        InvalidBatchRecord([1]),
        InvalidBatchValues([(1, "field id: the value is missing")]),
    ],
)
@in_loop
async def test_errors_of_the_leader_keep_their_class(error: MillstreamError):
    forwarder, _ = forwarder_to(Peers(append_error_response(error)))
    with pytest.raises(type(error)) as raised:
        await forwarder.append(PARTITION, BATCH, led_by(2))
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "kind", None) == getattr(error, "kind", None)


@in_loop
async def test_a_batch_that_was_not_sent_is_refused():
    forwarder, counters = forwarder_to(Peers(PeerUnavailable("node 2: cannot connect"), APPENDED))
    with pytest.raises(PeerUnavailable):
        await forwarder.append(PARTITION, BATCH, led_by(2))
    assert (await forwarder.append(PARTITION, BATCH, led_by(2))).offset == 5
    assert counters.outcomes == {("append", "unavailable"): 1, ("append", "answered"): 1}

"""Sends batches to the nodes that lead their partitions.

A refusal that proves that nothing was appended is followed once, to the node that it names. Every
other error goes to the client. After an unknown outcome nothing is sent again: the batch may be in
the log, and only its producer knows whether it may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Protocol

from millstream.broker.access.caller import Caller
from millstream.broker.partition.partition import Partition
from millstream.broker.topics.record_appender import (
    ANY_OFFSET,
    APPEND_TIMEOUT_MS,
    AppendTimings,
    PartitionAppend,
)
from millstream.clock import Timers
from millstream.cluster.forwarding.append_errors import append_error_of
from millstream.cluster.forwarding.append_lane import AppendLane
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.errors import MalformedAnswer, MillstreamError, NotLeader, OutcomeUnknown
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest, AppendBatchResponse
from millstream.records.batch import decode_header

logger = logging.getLogger(__name__)

API = "append"

FORWARD_SECONDS_MAX = APPEND_TIMEOUT_MS / 1000
"""How long a batch may take, from when it is sent to when it is committed."""

REDIRECTS_MAX = 1
"""How often a batch follows a refusal to another node."""


class SentCall(Protocol):
    """A request that was sent."""

    async def response(self) -> Any:
        """Return the response, or raise what the peer answered or the connection met."""
        ...


class PeerSends(Protocol):
    """Requests to other nodes that keep their order: `PeerPool`."""

    async def send(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        *,
        timeout_s: float,
        order_key: Hashable | None = None,
    ) -> SentCall:
        """Send a request; return when it was sent."""
        ...


class AppendForwarder:
    """Sends batches to other nodes. Implements `BatchForwarder` of the broker."""

    def __init__(
        self, node_id: int, peers: PeerSends, timers: Timers, counters: ForwardCounters
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._timers = timers
        self._counters = counters
        self._lanes: dict[Partition, AppendLane] = {}

    async def append(
        self,
        partition: Partition,
        batch: bytes,
        refusal: NotLeader,
        *,
        expected_offset: int = ANY_OFFSET,
        caller: Caller | None = None,
    ) -> PartitionAppend:
        """Append a batch at the node that `refusal` names; return when it is committed."""
        if self._is_nowhere(refusal):
            raise refusal
        lane = self._lanes.setdefault(partition, AppendLane(self._timers))
        request = append_request(partition, batch, expected_offset, caller)
        try:
            response = await self._append(lane, partition, request, refusal)
        except MillstreamError as error:
            self._counters.note_error(API, error)
            if isinstance(error, OutcomeUnknown):
                logger.warning(
                    "%s: the outcome of a forwarded batch is unknown: %s", partition, error
                )
            raise
        finally:
            if lane.is_idle:
                self._lanes.pop(partition, None)
        self._counters.note_answer(API)
        timings = AppendTimings(response.commit_ms, response.fsync_ms, response.throttle_ms)
        return PartitionAppend(response.base_offset, response.high_watermark, timings)

    def _is_nowhere(self, refusal: NotLeader) -> bool:
        """Return whether a refusal names no node to which a batch can be sent."""
        return refusal.leader in (-1, self._node_id)

    async def _append(
        self,
        lane: AppendLane,
        partition: Partition,
        request: AppendBatchRequest,
        refusal: NotLeader,
    ) -> AppendBatchResponse:
        batch = request.batch
        assert isinstance(batch, bytes)
        ticket = lane.take_ticket()
        redirects = 0
        while True:
            await lane.enter(ticket, refusal.leader)
            response, may_repeat = await self._send(lane, partition, request, refusal)
            if not response.error_code:
                _check_response(response, batch)
                return response
            error = append_error_of(response, f"{partition}: node {refusal.leader}")
            is_followed = isinstance(error, NotLeader) and not self._is_nowhere(error)
            if not is_followed or not may_repeat or redirects == REDIRECTS_MAX:
                raise error
            assert isinstance(error, NotLeader)
            redirects += 1
            self._counters.retries[API] += 1
            refusal = error

    async def _send(
        self,
        lane: AppendLane,
        partition: Partition,
        request: AppendBatchRequest,
        refusal: NotLeader,
    ) -> tuple[AppendBatchResponse, bool]:
        """Return the response, and whether the batch may still be sent elsewhere in order."""
        request = replace(request, leader_epoch=refusal.leader_epoch)
        sent: SentCall | None = None
        try:
            sent = await self._peers.send(
                refusal.leader,
                Purpose.FORWARDING,
                request,
                timeout_s=FORWARD_SECONDS_MAX,
                order_key=partition,
            )
        finally:
            generation = lane.sent(is_in_flight=sent is not None)
        may_repeat = False
        try:
            response = await sent.response()
        finally:
            may_repeat = lane.ended(generation)
        return response, may_repeat


def append_request(
    partition: Partition, batch: bytes, expected_offset: int, caller: Caller | None
) -> AppendBatchRequest:
    """Return the request for a batch, which names the caller and not its secret."""
    request = AppendBatchRequest(
        topic_id=partition.topic_id,
        index=partition.index,
        expected_offset=expected_offset,
        batch=batch,
    )
    if caller is None:
        return request
    return replace(
        request,
        principal=str(caller.principal),
        token_id="" if caller.token is None else caller.token.id,
        client_address=caller.host,
    )


def _check_response(response: AppendBatchResponse, batch: bytes) -> None:
    """Raise unless a success says where all records of the batch are."""
    count = decode_header(batch).last_offset_delta + 1
    first, last = response.base_offset, response.last_offset
    if first < 0 or last - first + 1 != count:
        raise OutcomeUnknown(
            f"leader answered with the offsets {first} to {last} for {count} records"
        ) from MalformedAnswer("offsets do not match the batch")

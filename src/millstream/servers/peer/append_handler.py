"""AppendBatch: batches that other nodes received from their clients, for partitions led here."""

from __future__ import annotations

import asyncio

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import Appended, append_time_of
from millstream.broker.topics.record_appender import append_timings, check_offset
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.cluster.forwarding.append_errors import append_error_response
from millstream.errors import MalformedRequest, MillstreamError, NotLeader, StorageFailed
from millstream.protocols.peer.apis import API_OF_REQUEST
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest, AppendBatchResponse
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.peer.peer_context import PeerContext
from millstream.servers.peer.peer_gate import PeerGate


class AppendHandler:
    """Appends the batches of other nodes. Requests of a connection keep their order."""

    def __init__(self, topics: Topics, clock: Clock, gate: PeerGate) -> None:
        self._topics = topics
        self._gate = gate
        self._clock = clock

    def __call__(
        self, request: AppendBatchRequest, context: PeerContext
    ) -> AppendBatchResponse | DeferredResponse:
        """Append a batch; the response is finished when it is committed.

        The batch stays in the memory that it was received into. It cannot be cancelled: the log
        reads it until the response is finished.
        """
        try:
            partition = self._partition(request)
            batch = request.batch
            if not isinstance(batch, bytes | memoryview):
                raise MalformedRequest("batch is missing")
            answer = DeferredResponse()
            timeout_ms = int((context.deadline - asyncio.get_running_loop().time()) * 1000)
            waiter = _Waiter(partition, self._clock, answer, request.expected_offset)
            partition.appender.append(
                batch,
                waiter,
                timeout_ms=timeout_ms,
                on_admit=waiter.note_admission,
                is_built=True,
            )
        except MillstreamError as error:
            return append_error_response(error)
        return answer

    def _partition(self, request: AppendBatchRequest) -> Partition:
        """Return the partition if this node leads it, in the epoch that the sender knows.

        Raises if the client that has sent the records may not write to the topic.
        """
        topic = self._topics.by_id(request.topic_id)
        self._gate.require_topic(
            API_OF_REQUEST[AppendBatchRequest].key,
            topic.name,
            principal=request.principal,
            token_id=request.token_id,
            client_address=request.client_address,
        )
        partition = topic.partition(request.index)
        if partition.replica is not None:
            partition.replica.check_leader()
        if not partition.is_open:
            raise NotLeader(f"{partition} is not open at this node")
        if request.leader_epoch > partition.offsets.leader_epoch:
            raise NotLeader(
                f"{partition}: epoch {request.leader_epoch} has begun, and this node only knows"
                f" {partition.offsets.leader_epoch}"
            )
        return partition


class _Waiter:
    """Finishes the response to one batch."""

    __slots__ = ("_admitted", "_answer", "_clock", "_expected_offset", "_partition", "_started")

    def __init__(
        self, partition: Partition, clock: Clock, answer: DeferredResponse, expected_offset: int
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._answer = answer
        self._expected_offset = expected_offset
        self._started = self._admitted = clock.monotonic()

    def note_admission(self, offset: int) -> None:
        check_offset(self._partition, offset, self._expected_offset)
        self._admitted = self._clock.monotonic()

    def done(self) -> bool:
        return self._answer.is_done

    def set_result(self, result: Appended, /) -> None:
        partition = self._partition
        ended = self._clock.monotonic()
        timings = append_timings(partition, self._started, self._admitted, ended)
        self._answer.finish(
            AppendBatchResponse(
                base_offset=result.offset,
                last_offset=result.last_offset,
                append_time_ms=append_time_of(result),
                high_watermark=max(partition.high_watermark, result.last_offset + 1),
                commit_ms=timings.commit_ms,
                fsync_ms=timings.fsync_ms,
                throttle_ms=timings.throttle_ms,
            )
        )

    def set_exception(self, exception: Exception, /) -> None:
        if not isinstance(exception, MillstreamError):
            exception = StorageFailed(f"{self._partition}: {exception}")
        self._answer.finish(append_error_response(exception))

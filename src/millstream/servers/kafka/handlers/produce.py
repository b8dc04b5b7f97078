"""Produce: appends batches to several partitions.

Every batch has its place in its log before the next request of the connection starts, so that
pipelined requests keep their order; the response waits for what `acks` asks for. Records are
written from the memory in which they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from millstream.broker.cluster_view import NO_NODE, ClusterView
from millstream.broker.partition.batch_validator import InvalidBatchRecord
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import append_time_of
from millstream.broker.quotas import QuotaKind
from millstream.errors import (
    ConcurrentTransaction,
    InvalidRecord,
    InvalidTransactionState,
    MillstreamError,
    NotLeader,
    TransactionalIdAccessDenied,
    UnsupportedCompression,
    again,
)
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseLeader,
    ProduceResponseNode,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from millstream.records.batch import HEADER_SIZE, MAGIC, BatchHeader, unpack_header
from millstream.records.compression import Codec
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.append.pending_append import Appended
from millstream.storage.files.names import check_topic

TOPIC_ID_SINCE = 13
"""The first version that names topics by id."""

ZSTD_SINCE = 7
"""The first version that may contain zstd: older consumers could not read it."""

ABORTABLE_SINCE = 11
"""The first version whose clients abort a transaction when they are told to."""

JOINS_TRANSACTION_SINCE = 12
"""The first version whose batches add their partition to the transaction (KIP-890)."""

ALL = -1
LEADER = 1
NONE = 0


def produce(request: ProduceRequest, context: RequestContext) -> object:
    """Append the batches, and answer as `acks` says; with 0, not at all."""
    work = PendingProduce(request, context)
    if work.is_ready():
        return work.begin()
    return work.prepare_and_begin()


def _result_of(
    index: int, partition: Partition, done: asyncio.Future[Appended]
) -> ProduceResponsePartition:
    """Return the result of a batch that was passed to its partition."""
    error = done.exception()
    if error is None:
        appended = done.result()
        return ProduceResponsePartition(
            index=index,
            base_offset=appended.offset,
            log_append_time_ms=append_time_of(appended),
            log_start_offset=partition.log_start_offset,
        )
    if isinstance(error, MillstreamError):
        return error_result(index, error)
    raise error


class _PartitionBatch:
    """One partition of the request, with its batch and the result."""

    __slots__ = (
        "batch",
        "error",
        "expected_marker_offset",
        "header",
        "index",
        "is_verified",
        "partition",
        "result",
    )

    def __init__(self, index: int, batch: memoryview | None) -> None:
        self.index = index
        self.batch = batch
        self.header: BatchHeader | None = None
        """Header of its batch, if it looks like one."""
        self.partition: Partition | None = None
        self.error: MillstreamError | None = None
        self.expected_marker_offset: int | None = None
        """Marker offset that the coordinator saw, so that no earlier transaction is affected."""
        self.is_verified = False
        """Whether another node, which coordinates its transaction, said that it is open."""
        self.result: ProduceResponsePartition | None = None


class PendingProduce:
    """One produce request in flight."""

    def __init__(self, request: ProduceRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self._is_coordinated_elsewhere = (
            request.transactional_id is not None
            and context.broker.transactions.is_elsewhere(request.transactional_id)
        )
        self._topics = [
            (topic, [_PartitionBatch(part.index, part.records) for part in topic.partition_data])
            for topic in request.topic_data
        ]
        self._refusal = self._transaction_refusal()
        self._slots = [slot for _, slots in self._topics for slot in slots]
        self._waiting = 0
        self._size = 0
        self._deferred = DeferredResponse()
        for topic, slots in self._topics:
            self._resolve(topic, slots)

    def _transaction_refusal(self) -> MillstreamError | None:
        """Return the error if the caller may not use the transactional id of the request."""
        transactional_id = self._request.transactional_id
        if transactional_id is None:
            return None
        try:
            self._context.require_transactional_id(transactional_id)
        except MillstreamError as error:
            return error
        return None

    def _resolve(self, topic: ProduceRequestTopic, slots: list[_PartitionBatch]) -> None:
        for slot in slots:
            try:
                slot.header = check_records(slot.batch, self._context.version)
                if self._refusal is not None:
                    raise again(self._refusal)
                self._check_transactional(slot.header)
                slot.partition = self._partition_of(topic, slot.index)
            except MillstreamError as error:
                slot.error = error

    def _partition_of(self, topic: ProduceRequestTopic, index: int) -> Partition:
        context = self._context
        if context.version >= TOPIC_ID_SINCE:
            found = context.broker.topics.by_id(topic.topic_id)
            context.require_topic_by_id(found)
            return found.partition(index)
        context.require_topic(topic.name)
        return context.broker.topics.partition(check_topic(topic.name), index)

    def _check_transactional(self, header: BatchHeader) -> None:
        """Raise if a batch of a transaction comes without the id that the caller has to prove.

        Otherwise a producer could write into a transaction of which it knows only the number.
        """
        is_hidden = header.is_transactional and self._request.transactional_id is None
        if is_hidden and self._context.access is not None:
            raise TransactionalIdAccessDenied(
                "a batch of a transaction needs the transactional id in its request"
            )

    # Preparation: what has to be awaited before a batch can be appended.

    def is_ready(self) -> bool:
        """Return whether all batches can be appended right now."""
        return all(self._is_slot_ready(slot) for slot in self._slots)

    def _is_slot_ready(self, slot: _PartitionBatch) -> bool:
        partition = slot.partition
        if partition is None or slot.error is not None:
            return True
        return partition.is_open and not self._has_to_join(slot)

    def _has_to_join(self, slot: _PartitionBatch) -> bool:
        """Return whether a batch's partition is not part of its producer's open transaction."""
        if slot.header is None or slot.partition is None or not slot.header.is_transactional:
            return False
        producer, partition = _producer_of(slot.header), slot.partition
        transactions, transactional_id = (
            self._context.broker.transactions,
            self._request.transactional_id,
        )
        if transactions.is_ongoing(
            *producer, partition.topic, partition.index, transactional_id=transactional_id
        ):
            return False
        if not self._is_coordinated_elsewhere:
            return True
        # The first batch of a transaction was verified, and until the marker it stays open.
        return not (
            slot.is_verified
            or (
                partition.appender.is_in_transaction(*producer)
                and transactions.is_verified(transactional_id, producer[0])
            )
        )

    async def prepare_and_begin(self) -> object:
        """Open partitions and join transactions, then append."""
        joining: dict[tuple[int, int], list[_PartitionBatch]] = {}
        for slot in self._slots:
            if slot.partition is None or slot.error is not None:
                continue
            try:
                await slot.partition.open()
            except MillstreamError as error:
                slot.error = error
                continue
            if slot.header is not None and self._has_to_join(slot):
                joining.setdefault(_producer_of(slot.header), []).append(slot)
        for producer, slots in joining.items():
            await self._join_transaction(*producer, slots)
        return self.begin()

    async def _join_transaction(
        self, producer_id: int, producer_epoch: int, slots: list[_PartitionBatch]
    ) -> None:
        """Add partitions to the producer's transaction, or reject their batches."""
        version = self._context.version
        partitions = []
        for slot in slots:
            assert slot.partition is not None
            slot.expected_marker_offset = slot.partition.appender.marker_offset_of(producer_id)
            partitions.append((slot.partition.topic, slot.partition.index))
        try:
            await self._context.broker.transactions.ensure_partitions(
                self._request.transactional_id,
                producer_id,
                producer_epoch,
                partitions,
                may_add=version >= JOINS_TRANSACTION_SINCE,
                is_abortable=version >= ABORTABLE_SINCE,
            )
            for slot in slots:
                slot.is_verified = self._is_coordinated_elsewhere
        except ConcurrentTransaction:
            # Older clients fail on the exact code; with this one all of them retry.
            is_known = version >= JOINS_TRANSACTION_SINCE
            code = ErrorCode.CONCURRENT_TRANSACTIONS if is_known else ErrorCode.NOT_ENOUGH_REPLICAS
            for slot in slots:
                slot.result = _failed(slot.index, code, "the transaction before is being ended")
        except MillstreamError as error:
            for slot in slots:
                slot.error = error

    # Appending.

    def begin(self) -> DeferredResponse | ProduceResponse | None:
        """Append every batch; answer at once if there is nothing to wait for."""
        acks = self._request.acks
        if acks not in (ALL, LEADER, NONE):
            for slot in self._slots:
                slot.result = _failed(slot.index, ErrorCode.INVALID_REQUIRED_ACKS, None)
        for slot in self._slots:
            if slot.result is None:
                self._append(slot, is_early=acks != ALL)
        return self._deferred if self._waiting else self._answer()

    def _append(self, slot: _PartitionBatch, *, is_early: bool) -> None:
        if slot.error is not None:
            slot.result = error_result(slot.index, slot.error)
            return
        assert slot.partition is not None
        assert slot.batch is not None
        self._size += len(slot.batch)
        if self._has_to_join(slot):  # The transaction ended during the preparation.
            error = InvalidTransactionState(f"{slot.partition}: the transaction has ended")
            slot.result = error_result(slot.index, error)
            return
        if self._is_coordinated_elsewhere and slot.expected_marker_offset is None:
            # It may have to wait for its offset, and another node may end the transaction by then.
            slot.expected_marker_offset = self._marker_offset_of(slot)
        try:
            future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            slot.partition.appender.append(
                slot.batch,
                future,
                timeout_ms=self._request.timeout_ms,
                is_early=is_early,
                expected_marker_offset=slot.expected_marker_offset,
            )
        except MillstreamError as error:
            slot.result = error_result(slot.index, error)
            return
        self._waiting += 1
        future.add_done_callback(lambda done: self._appended(slot, done))

    def _marker_offset_of(self, slot: _PartitionBatch) -> int | None:
        if slot.partition is None or slot.header is None or not slot.header.is_transactional:
            return None
        return slot.partition.appender.marker_offset_of(slot.header.producer_id)

    def _appended(self, slot: _PartitionBatch, done: asyncio.Future[Appended]) -> None:
        assert slot.partition is not None
        slot.result = _result_of(slot.index, slot.partition, done)
        self._waiting -= 1
        if not self._waiting:
            self._deferred.finish(self._answer())

    # Answering.

    def _answer(self) -> ProduceResponse | None:
        throttle_ms = self._context.charge(QuotaKind.PRODUCE, self._size)
        if self._request.acks == NONE:
            return None
        return ProduceResponse(
            responses=tuple(
                ProduceResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=tuple(slot.result for slot in slots if slot.result),
                )
                for topic, slots in self._topics
            ),
            throttle_time_ms=throttle_ms,
            node_endpoints=leader_endpoints(
                self._context.broker.cluster,
                (slot.result for slot in self._slots if slot.result),
            ),
        )


def leader_endpoints(
    cluster: ClusterView, results: Iterable[ProduceResponsePartition]
) -> tuple[ProduceResponseNode, ...]:
    """Return the addresses of the leaders that results name: clients need not ask (KIP-951)."""
    leaders = {result.current_leader.leader_id for result in results if result.error_code}
    if not leaders:
        return ()
    nodes = (cluster.node(leader) for leader in sorted(leaders) if leader != NO_NODE)
    return tuple(
        ProduceResponseNode(
            node_id=node.node_id, host=node.kafka.host, port=node.kafka.port, rack=node.rack
        )
        for node in nodes
        if node is not None
    )


def error_result(index: int, error: MillstreamError) -> ProduceResponsePartition:
    """Return the result of a batch that was rejected."""
    result = _failed(index, code_of(error), str(error))
    if isinstance(error, NotLeader):
        leader = ProduceResponseLeader(leader_id=error.leader, leader_epoch=error.leader_epoch)
        return replace(result, current_leader=leader)
    if not isinstance(error, InvalidBatchRecord):
        return result
    records = tuple(
        ProduceResponseRecordError(
            batch_index=record_index, batch_index_error_message=error.reason(record_index)
        )
        for record_index in error.record_indexes
    )
    return replace(result, record_errors=records)


def _failed(index: int, code: ErrorCode, message: str | None) -> ProduceResponsePartition:
    return ProduceResponsePartition(
        index=index,
        error_code=code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        error_message=message,
    )


def check_records(records: memoryview | None, version: int) -> BatchHeader:
    """Return the header of exactly one batch of the present format; raise otherwise."""
    if records is None or len(records) < HEADER_SIZE:
        size = 0 if records is None else len(records)
        raise InvalidRecord(f"a batch must have at least {HEADER_SIZE} bytes, got {size}")
    header = BatchHeader._make(unpack_header(records))
    if header.magic != MAGIC:
        raise InvalidRecord(f"batch format must be {MAGIC}, got {header.magic}")
    if HEADER_SIZE <= header.size < len(records):
        raise InvalidRecord(
            f"records must be one batch of {header.size} bytes, got {len(records)} bytes"
        )
    if version < ZSTD_SINCE and header.codec == Codec.ZSTD:
        raise UnsupportedCompression(f"zstd needs version {ZSTD_SINCE} or newer, got {version}")
    return header


def _producer_of(header: BatchHeader) -> tuple[int, int]:
    return header.producer_id, header.producer_epoch

"""Fetch: reads records of several partitions, now or when there are enough of them.

A fetch that finds too little waits without polling: each of its partitions calls back when there
are new records, and only those partitions are read again. Records are sent from the files in which
they are stored; they are neither copied nor decoded.

If a partition has no more records, but its end is further on, an empty batch takes the consumer
there. That is not urgent, so it does not end the wait: a client that ignores such a batch would ask
again at once, forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from millstream.broker.cluster_view import NO_NODE, ClusterView
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.reader import RangeWithDeletions
from millstream.broker.quotas import QuotaKind
from millstream.errors import MillstreamError, NotLeader, OffsetNotAvailable, OffsetOutOfRange
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseEpochEnd,
    FetchResponseLeader,
    FetchResponseNode,
    FetchResponsePartition,
    FetchResponseTopic,
)
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchSession,
    PartitionKey,
)
from millstream.servers.kafka.handlers.replica_ids import is_replica
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.prefetch import ColdRange

TOPIC_ID_SINCE = 13
"""The first version that names topics by id."""

SESSION_SINCE = 7
"""The first version with fetch sessions."""

READ_COMMITTED = 1
WAIT_MS_MAX = 300_000
"""Upper limit of the wait, whatever a fetch asks for: the response must come before idle limits."""


def fetch(request: FetchRequest, context: RequestContext) -> object:
    """Answer a fetch at once, or when enough can be read or its wait is over."""
    try:
        requested, session = _requested(request, context)
    except _Rejected as rejected:
        return FetchResponse(error_code=rejected.code, session_id=NO_SESSION)
    work = PendingFetch(request, context, requested, session)
    unopened = work.unopened()
    if unopened or work.cold_ranges():
        return _prepare_and_answer(unopened, work)
    return work.begin()


async def _prepare_and_answer(
    unopened: Sequence[Partition], work: PendingFetch
) -> FetchResponse | DeferredResponse:
    """Open partitions and prefetch old data, away from the loop, then answer."""
    for partition in unopened:
        try:
            await partition.open()
        except MillstreamError:  # Reading it reports the same error.
            continue
    # Together: one that waits for a cold store must not delay the others once more.
    await asyncio.gather(
        *(
            partition.reader.prefetch(ranges)
            for partition, ranges in work.cold_ranges()
            if partition.is_open
        )
    )
    return work.begin()


class _Rejected(Exception):
    def __init__(self, code: ErrorCode) -> None:
        self.code = code


def _requested(
    request: FetchRequest, context: RequestContext
) -> tuple[Iterable[CachedPartition], FetchSession | None]:
    """Return the partitions of this request, or of its session."""
    if is_replica(request.replica_id) or is_replica(request.replica_state.replica_id):
        raise _Rejected(ErrorCode.INVALID_REQUEST)
    uses_ids = context.version >= TOPIC_ID_SINCE
    named = [
        CachedPartition(
            PartitionKey(topic.topic, topic.topic_id, part.partition),
            part.fetch_offset,
            part.partition_max_bytes,
            part.current_leader_epoch,
            part.last_fetched_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    sessions, now = context.fetch_sessions, context.broker.clock.monotonic()
    epoch = request.session_epoch if context.version >= SESSION_SINCE else FINAL_EPOCH
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.end(request.session_id, principal=context.principal)
        if epoch == FINAL_EPOCH:
            return named, None
        new = sessions.begin(named, principal=context.principal, uses_topic_ids=uses_ids, now=now)
        return named, new
    session = sessions.resume(
        request.session_id,
        epoch,
        principal=context.principal,
        uses_topic_ids=uses_ids,
        now=now,
    )
    if isinstance(session, ErrorCode):
        raise _Rejected(session)
    forgotten = (
        PartitionKey(topic.topic, topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    )
    session.update(named, forgotten)
    return list(session.partitions.values()), session


class PendingFetch:
    """One fetch in flight."""

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        requested: Iterable[CachedPartition],
        session: FetchSession | None,
    ) -> None:
        self._context = context
        self._session = session
        self._is_full = session is None or request.session_epoch == INITIAL_EPOCH
        self._size_min = request.min_bytes
        self._requested_max = max(0, min(request.max_bytes, context.config.fetch_bytes_max))
        self._wait_ms = min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
        self._is_committed_only = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        self._may_follow = bool(self._rack) and context.broker.cluster.serves_rack(self._rack)
        access = context.access
        self._rules_version = 0 if access is None else access.version
        self._requested = list(requested)
        self._partitions = [self._resolve(requested.key) for requested in self._requested]
        self._results: list[FetchResponsePartition | None] = []
        """Results so far. Records are released while the fetch waits, and read again later."""
        self._sizes: list[int] = []
        """Bytes of records that were read; an empty batch counts as 0."""
        self._changed: set[int] = set()
        self._watchers: list[tuple[Partition, partial[None]]] = []
        self._deferred: DeferredResponse | None = None
        """Set while the fetch waits."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_read_scheduled = False

    @property
    def _size_max(self) -> int:
        """Bytes of records that the response may have now: less if many responses wait."""
        memory = self._context.response_memory
        return self._requested_max if memory is None else min(self._requested_max, memory.share())

    def unopened(self) -> list[Partition]:
        """Return the partitions that were not used since the node started."""
        return [p for p in self._partitions if isinstance(p, Partition) and not p.is_open]

    def cold_ranges(self) -> list[tuple[Partition, list[ColdRange | RangeWithDeletions]]]:
        """Return the ranges to be read that would delay the event loop.

        Records that are read again later, while the fetch waits for new ones, are at the end of the
        log and need no prefetch.
        """
        ranges_by_partition = []
        remaining = self._requested_max
        for requested, partition in zip(self._requested, self._partitions, strict=True):
            if remaining <= 0:
                break
            if not isinstance(partition, Partition) or not partition.is_open:
                continue  # Reading it reports the error.
            if requested.offset < partition.high_watermark:
                size_max = min(remaining, requested.size_max)
                remaining -= size_max
                if ranges := partition.reader.cold_ranges(requested.offset, size_max=size_max):
                    ranges_by_partition.append((partition, ranges))
        return ranges_by_partition

    def begin(self) -> FetchResponse | DeferredResponse:
        """Read once, and answer if that is enough."""
        remaining = self._size_max
        is_first = True
        for requested, partition in zip(self._requested, self._partitions, strict=True):
            result, size = self._read(requested, partition, remaining=remaining, is_first=is_first)
            self._results.append(result)
            self._sizes.append(size)
            remaining = max(0, remaining - size)
            is_first = is_first and not size
        return self._answer() if self._is_enough() else self._wait()

    def _resolve(self, key: PartitionKey) -> Partition | MillstreamError:
        context = self._context
        topics = context.broker.topics
        try:
            if key.topic_id != NO_ID:
                found = topics.by_id(key.topic_id)
                context.require_topic_by_id(found)
                return found.partition(key.partition)
            context.require_topic(key.topic)
            return topics.partition(key.topic, key.partition)
        except MillstreamError as error:
            return error

    # Reading.

    def _read(
        self,
        requested: CachedPartition,
        partition: Partition | MillstreamError,
        *,
        remaining: int,
        is_first: bool,
    ) -> tuple[FetchResponsePartition, int]:
        index = requested.key.partition
        if isinstance(partition, MillstreamError):
            return _failed(index, partition), 0
        try:
            partition.check_reader(requested.leader_epoch, may_follow=self._may_follow)
            if (direction := self._direction(requested, partition)) is not None:
                return direction, 0
            if remaining <= 0:
                return _nothing(index, partition, None), 0
            read = partition.reader.read(
                requested.offset,
                size_max=min(remaining, requested.size_max),
                is_committed_only=self._is_committed_only,
                is_first=is_first,
            )
        except OffsetOutOfRange as error:
            return _failed(index, error, log_start=partition.log_start_offset), 0
        except MillstreamError as error:
            return _failed(index, error), 0
        aborted = None
        if self._is_committed_only:
            aborted = tuple(
                FetchResponseAbortedTransaction(
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset
                )
                for transaction in read.aborted
            )
        result = FetchResponsePartition(
            partition_index=index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=aborted,
            records=read.parts,
        )
        return result, 0 if read.is_blank else read.size

    def _direction(
        self, requested: CachedPartition, partition: Partition
    ) -> FetchResponsePartition | None:
        """Return a result that sends the consumer elsewhere; None if it is to be served here."""
        if partition.is_following:
            _check_available(requested.offset, partition)
        elif (nearest := self._nearest(requested.offset, partition)) != NO_NODE:
            result = _nothing(requested.key.partition, partition, None)
            return replace(result, preferred_read_replica=nearest)
        if (diverging := _diverging(requested, partition)) is not None:
            return _nothing(requested.key.partition, partition, diverging)
        return None

    def _nearest(self, offset: int, partition: Partition) -> int:
        """Return the replica that the consumer should read from in place of the leader (KIP-392).

        Offsets that are out of range are the leader's to answer, so that a consumer is not sent to
        and fro.
        """
        if not self._rack or not partition.log_start_offset <= offset <= partition.high_watermark:
            return NO_NODE
        cluster = self._context.broker.cluster
        return cluster.nearest_replica(partition.topic, partition.index, self._rack)

    def _is_enough(self) -> bool:
        if self._wait_ms == 0 or not self._requested:
            return True
        size = sum(self._sizes)
        if size >= self._size_min or size >= self._size_max:
            return True
        return any(
            result is not None and (result.error_code or _is_directing(result))
            for result in self._results
        )

    # Waiting.

    def _wait(self) -> DeferredResponse:
        self._release_records()
        self._deferred = DeferredResponse(self._stop_waiting)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._wait_ms / 1000, self._finish)
        for number, partition in enumerate(self._partitions):
            if isinstance(partition, Partition):
                callback = partial(self._on_change, number)
                partition.watch(callback)
                self._watchers.append((partition, callback))
        self._context.fetch_sessions.waiting[self] = self._finish
        return self._deferred

    def _on_change(self, number: int) -> None:
        self._changed.add(number)
        if not self._is_read_scheduled:
            self._is_read_scheduled = True
            asyncio.get_running_loop().call_soon(self._read_changed)

    def _read_changed(self) -> None:
        """Read the partitions again that have new records."""
        self._is_read_scheduled = False
        if self._deferred is None:
            return
        self._recheck_rights()
        changed, self._changed = self._changed, set()
        for number in sorted(changed):
            self._read_again(number)
        if self._is_enough():
            self._finish()
        else:
            self._release_records()

    def _release_records(self) -> None:
        """Release the records: a client may have a thousand waiting fetches of full size."""
        self._results = [
            None if size else result
            for result, size in zip(self._results, self._sizes, strict=True)
        ]

    def _finish(self) -> None:
        if (deferred := self._deferred) is not None:
            self._stop_waiting()
            self._recheck_rights()
            self._read_released()
            deferred.finish(self._answer())

    def _read_released(self) -> None:
        """Read the released records again."""
        for number, result in enumerate(self._results):
            if result is None:
                self._read_again(number)

    def _recheck_rights(self) -> None:
        """Resolve the partitions again if the rules have changed since the fetch began to wait."""
        access = self._context.access
        if access is None or access.version == self._rules_version:
            return
        self._rules_version = access.version
        for number, requested in enumerate(self._requested):
            partition = self._resolve(requested.key)
            if isinstance(partition, MillstreamError):
                self._partitions[number] = partition
                self._results[number] = _failed(requested.key.partition, partition)
                self._sizes[number] = 0

    def _read_again(self, number: int) -> None:
        others = sum(self._sizes) - self._sizes[number]
        self._results[number], self._sizes[number] = self._read(
            self._requested[number],
            self._partitions[number],
            remaining=self._size_max - others,
            is_first=others == 0,
        )

    def _stop_waiting(self) -> None:
        """Clean up, whether the fetch was answered or its connection was lost."""
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
        for partition, callback in self._watchers:
            partition.unwatch(callback)
        self._watchers.clear()
        self._context.fetch_sessions.waiting.pop(self, None)

    # Answering.

    def _answer(self) -> FetchResponse:
        topics: dict[tuple[str, UUID], list[FetchResponsePartition]] = {}
        for requested, result, size in zip(
            self._requested, self._results, self._sizes, strict=True
        ):
            assert result is not None, "released records were read again"
            if not self._is_full and not _is_news(requested, result):
                continue
            requested.sent_high_watermark = result.high_watermark
            requested.sent_log_start = result.log_start_offset
            topics.setdefault((requested.key.topic, requested.key.topic_id), []).append(result)
            if size and self._session is not None and requested.key in self._session.partitions:
                self._session.move_to_end(requested.key)
        throttle_ms = self._context.charge(QuotaKind.CONSUME, sum(self._sizes))
        self._results.clear()
        return FetchResponse(
            throttle_time_ms=throttle_ms,
            session_id=self._session.id if self._session else NO_SESSION,
            responses=tuple(
                FetchResponseTopic(topic=name, topic_id=topic_id, partitions=tuple(results))
                for (name, topic_id), results in topics.items()
            ),
            node_endpoints=_leader_endpoints(
                self._context.broker.cluster,
                (result for results in topics.values() for result in results if result.error_code),
            ),
        )


def _leader_endpoints(
    cluster: ClusterView, failed: Iterable[FetchResponsePartition]
) -> tuple[FetchResponseNode, ...]:
    """Return the addresses of the leaders that results name: clients need not ask (KIP-951)."""
    leaders = {result.current_leader.leader_id for result in failed}
    if not leaders:
        return ()
    nodes = (cluster.node(leader) for leader in sorted(leaders) if leader != NO_NODE)
    return tuple(
        FetchResponseNode(
            node_id=node.node_id, host=node.kafka.host, port=node.kafka.port, rack=node.rack
        )
        for node in nodes
        if node is not None
    )


def _is_news(requested: CachedPartition, result: FetchResponsePartition) -> bool:
    """Return whether a resumed session has to include the partition in its response."""
    return bool(
        result.records
        or result.error_code
        or _is_directing(result)
        or result.high_watermark != requested.sent_high_watermark
        or result.log_start_offset != requested.sent_log_start
    )


def _is_directing(result: FetchResponsePartition) -> bool:
    """Return whether a result tells the consumer to go on elsewhere, at once."""
    return result.diverging_epoch.epoch >= 0 or result.preferred_read_replica != NO_NODE


def _check_available(offset: int, partition: Partition) -> None:
    """Raise if a replica that follows does not know that the records before `offset` are there.

    The leader said so, and this node will soon: an empty answer would be taken for the end.
    """
    end = partition.high_watermark
    if offset > end:
        message = f"{partition}: this replica ends at {end}, got offset {offset}"
        raise OffsetNotAvailable(message, end=end)


def _diverging(requested: CachedPartition, partition: Partition) -> FetchResponseEpochEnd | None:
    """Return where the log diverges from what the consumer has read, if it does."""
    if requested.last_fetched_epoch < 0:
        return None
    epoch, end = partition.offsets.epoch_end(requested.last_fetched_epoch)
    if epoch >= 0 and (epoch < requested.last_fetched_epoch or end < requested.offset):
        return FetchResponseEpochEnd(epoch=epoch, end_offset=end)
    return None


def _nothing(
    index: int, partition: Partition, diverging: FetchResponseEpochEnd | None
) -> FetchResponsePartition:
    return FetchResponsePartition(
        partition_index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        diverging_epoch=diverging or FetchResponseEpochEnd(),
        records=b"",
    )


def _failed(index: int, error: MillstreamError, *, log_start: int = -1) -> FetchResponsePartition:
    leader = FetchResponseLeader()
    if isinstance(error, NotLeader):
        leader = FetchResponseLeader(leader_id=error.leader, leader_epoch=error.leader_epoch)
    return FetchResponsePartition(
        partition_index=index,
        error_code=code_of(error),
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=log_start,
        current_leader=leader,
        aborted_transactions=None,
        records=b"",
    )

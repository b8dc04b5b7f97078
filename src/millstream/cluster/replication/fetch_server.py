"""The leader's side of replication: answers the fetches of followers.

A fetch that finds nothing new waits, without polling: the logs of its partitions wake it. A session
for each follower remembers its partitions, so a fetch only names those that changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replica_fetch import FetchKind, ReplicaFetch
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.slice_codec import encode_segment_info
from millstream.errors import DamagedRecords, MillstreamError, OffsetOutOfRange
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import peer_code_of
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchDiverging,
    PeerFetchRequest,
    PeerFetchRequestPartition,
    PeerFetchResponse,
    PeerFetchResponsePartition,
)
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log

SESSION_END = -1
NO_SESSION = 0

CODES: Mapping[FetchKind, PeerErrorCode] = {
    FetchKind.OUT_OF_RANGE: PeerErrorCode.OFFSET_OUT_OF_RANGE,
    FetchKind.NOT_LEADER: PeerErrorCode.NOT_LEADER_OR_FOLLOWER,
    FetchKind.FENCED_LEADER_EPOCH: PeerErrorCode.FENCED_LEADER_EPOCH,
    FetchKind.UNKNOWN_LEADER_EPOCH: PeerErrorCode.UNKNOWN_LEADER_EPOCH,
    FetchKind.FENCED_BROKER_EPOCH: PeerErrorCode.STALE_BROKER_EPOCH,
    FetchKind.NOT_A_REPLICA: PeerErrorCode.NOT_LEADER_OR_FOLLOWER,
}


@dataclass(slots=True)
class _SessionPartition:
    """What the follower said of a partition last, and what it was told."""

    request: PeerFetchRequestPartition
    sent_high_watermark: int = -1
    sent_log_start: int = -1


@dataclass(slots=True)
class _FetchSession:
    id: int
    epoch: int
    partitions: dict[PartitionId, _SessionPartition] = field(default_factory=dict)


class FetchServer:
    """Answers the fetches of all followers of this node."""

    def __init__(
        self,
        context: ReplicaContext,
        replicas: Mapping[PartitionId, LocalReplica],
        background: Executor,
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._background = background
        self._sessions: dict[int, _FetchSession] = {}
        """By node: a follower has one session."""
        self._next_session = 1
        self._waiting: dict[PartitionId, set[asyncio.Event]] = {}

    def wake(self, key: PartitionId) -> None:
        """Wake the fetches that wait for a partition."""
        for event in self._waiting.get(key, ()):
            event.set()

    async def fetch(self, request: PeerFetchRequest, node_id: int) -> PeerFetchResponse:
        """Answer a fetch of a follower, now or when there is something for it."""
        session = self._session(request, node_id)
        if session is None:
            return PeerFetchResponse(error_code=PeerErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        deadline = asyncio.get_running_loop().time() + request.wait_ms_max / 1000
        while True:
            news = asyncio.Event()
            self._register(session.partitions, news)
            try:
                results = await self._read(session, request, node_id)
                remaining = deadline - asyncio.get_running_loop().time()
                if remaining <= 0 or any(_is_urgent(result) for result in results):
                    return _answer(session, results)
                try:
                    async with asyncio.timeout(remaining):
                        await news.wait()
                except TimeoutError:
                    continue
            finally:
                self._unregister(session.partitions, news)

    # Sessions.

    def _session(self, request: PeerFetchRequest, node_id: int) -> _FetchSession | None:
        if request.session_id == NO_SESSION:
            session = _FetchSession(self._next_session, 0)
            self._next_session += 1
            self._sessions[node_id] = session
        else:
            known = self._sessions.get(node_id)
            if known is None or (known.id, known.epoch + 1) != (
                request.session_id,
                request.session_epoch,
            ):
                self._sessions.pop(node_id, None)
                return None
            session = known
            session.epoch += 1
        for forgotten in request.forgotten:
            session.partitions.pop(PartitionId(forgotten.topic_id, forgotten.index), None)
        for item in request.partitions:
            key = PartitionId(item.topic_id, item.index)
            session.partitions[key] = _SessionPartition(item)
        return session

    def _register(self, keys: Iterable[PartitionId], news: asyncio.Event) -> None:
        for key in keys:
            self._waiting.setdefault(key, set()).add(news)

    def _unregister(self, keys: Iterable[PartitionId], news: asyncio.Event) -> None:
        for key in keys:
            events = self._waiting.get(key)
            if events is not None:
                events.discard(news)
                if not events:
                    del self._waiting[key]

    # Reading.

    async def _read(
        self, session: _FetchSession, request: PeerFetchRequest, node_id: int
    ) -> list[PeerFetchResponsePartition]:
        results = []
        remaining = request.bytes_max
        for key, known in list(session.partitions.items()):
            result = await self._read_partition(
                key, known.request, request.broker_epoch, node_id, remaining
            )
            size = 0 if result.batches is None else len(result.batches)
            remaining = max(0, remaining - size)
            is_news = (
                _is_urgent(result)
                or result.high_watermark != known.sent_high_watermark
                or result.log_start != known.sent_log_start
            )
            if is_news:
                results.append(result)
        return results

    async def _read_partition(
        self,
        key: PartitionId,
        item: PeerFetchRequestPartition,
        broker_epoch: int,
        node_id: int,
        remaining: int,
    ) -> PeerFetchResponsePartition:
        replica = self._replicas.get(key)
        leader = None if replica is None else replica.leader
        if replica is None or leader is None:
            return _refused(key, PeerErrorCode.NOT_LEADER_OR_FOLLOWER)
        fetch = ReplicaFetch(
            node_id,
            broker_epoch,
            item.leader_epoch,
            item.fetch_offset,
            item.last_fetched_epoch,
            item.revision,
        )
        decision = leader.fetch(fetch, self._context.clock.monotonic())
        replica.publish_high_watermark()
        if leader.is_handing_over:
            replica.on_due(replica)
        log = replica.partition.log
        if decision.kind is FetchKind.DIVERGING:
            return PeerFetchResponsePartition(
                topic_id=key.topic_id,
                index=key.partition,
                leader_epoch=leader.leader_epoch,
                diverging=PeerFetchDiverging(epoch=decision.epoch, end_offset=decision.offset),
            )
        if decision.kind is not FetchKind.SERVE:
            self._context.counters.refusals[decision.kind.name.lower()] += 1
            return _refused(key, CODES[decision.kind], log)
        if not log.replication.accepts_replica(item.fetch_offset, item.tombstones_removed):
            # Its files are from before tombstones that are gone by now: it has to copy everything.
            self._context.counters.refusals["outdated"] += 1
            return _refused(key, PeerErrorCode.OFFSET_OUT_OF_RANGE, log)
        replica.note_cleaned(node_id, item.cleaned_offset)
        result = PeerFetchResponsePartition(
            topic_id=key.topic_id,
            index=key.partition,
            leader_epoch=leader.leader_epoch,
            high_watermark=leader.high_watermark,
            log_start=log.start_offset,
            eviction_floor=log.eviction_floor,
            eviction_reason=log.eviction_reason,
        )
        if item.fetch_offset >= log.replication.durable_offset or remaining <= 0:
            return result
        return await self._read_slice(replica, item, result, remaining)

    async def _read_slice(
        self,
        replica: LocalReplica,
        item: PeerFetchRequestPartition,
        result: PeerFetchResponsePartition,
        remaining: int,
    ) -> PeerFetchResponsePartition:
        log = replica.partition.log
        size_max = min(item.bytes_max, remaining)
        segments = log.segments
        is_old = bool(segments) and item.fetch_offset < segments[-1].base_offset
        try:
            if is_old:  # It may have to be loaded from the disk.
                source = await self._background.run(
                    lambda: log.replication.read(item.fetch_offset, size_max=size_max)
                )
            else:
                source = log.replication.read(item.fetch_offset, size_max=size_max)
        except OffsetOutOfRange:
            return _refused(replica.key, PeerErrorCode.OFFSET_OUT_OF_RANGE, log)
        except DamagedRecords as damage:
            return _refused(replica.key, peer_code_of(damage))
        except MillstreamError as error:
            return _refused(replica.key, peer_code_of(error))
        self._context.counters.served_bytes += len(source.data)
        return PeerFetchResponsePartition(
            topic_id=result.topic_id,
            index=result.index,
            leader_epoch=result.leader_epoch,
            high_watermark=result.high_watermark,
            log_start=result.log_start,
            eviction_floor=result.eviction_floor,
            eviction_reason=result.eviction_reason,
            segment_base=source.segment,
            position=source.position,
            is_last_of_segment=source.is_last_of_segment,
            seal=encode_segment_info(source),
            batches=memoryview(source.data),
        )


def _answer(session: _FetchSession, results: list[PeerFetchResponsePartition]) -> PeerFetchResponse:
    """Return the response, and remember what it tells.

    A partition that is refused leaves the session, here and at the follower, which names it again
    if it still wants it. Otherwise every later fetch would be answered at once with that error.
    """
    for result in results:
        key = PartitionId(result.topic_id, result.index)
        if result.error_code:
            del session.partitions[key]
            continue
        known = session.partitions[key]
        known.sent_high_watermark = result.high_watermark
        known.sent_log_start = result.log_start
    return PeerFetchResponse(session_id=session.id, partitions=tuple(results))


def _is_urgent(result: PeerFetchResponsePartition) -> bool:
    """Return whether a follower must not wait for a result."""
    return bool(
        result.batches
        or result.error_code
        or result.diverging is not None
        or result.is_last_of_segment
    )


def _refused(
    key: PartitionId, code: PeerErrorCode, log: Log | None = None
) -> PeerFetchResponsePartition:
    return PeerFetchResponsePartition(
        topic_id=key.topic_id,
        index=key.partition,
        error_code=code,
        log_start=-1 if log is None else log.replication.first_offset,
        tombstones_removed=0 if log is None else log.replication.tombstones_removed,
    )

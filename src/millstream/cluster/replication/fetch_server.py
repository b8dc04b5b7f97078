"""The leader's side of replication: answers the fetches of followers.

A fetch that finds nothing new waits, without polling: the logs of its partitions wake it, and only
those that did are looked at again. A session for each follower remembers its partitions, so a fetch
only names those that changed.

Followers fetch the same records at about the same time, so what was read for one of them is kept
for a moment for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replica_fetch import FetchKind, ReplicaFetch
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.slice_cache import SliceCache
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
from millstream.storage.segment.replica_slice import ReplicaSlice

SMALL_SESSION = 64
"""Partitions of a session that are all looked at for each fetch."""

COMPLETE_SECONDS = 0.25
"""How often all partitions of a larger one are looked at, at least: twice as often as an idle
follower fetches.
"""

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
    changed: dict[PartitionId, None] = field(default_factory=dict)
    """Partitions with something new since they were looked at, in order."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a follower should be told at once."""
    complete_at: float = 0.0
    """When all partitions have to be looked at again."""


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
        self._slices = SliceCache(context.clock)

    def wake(self, key: PartitionId) -> None:
        """Wake the fetches that wait for a partition."""
        for session in self._sessions.values():
            if key in session.partitions:
                session.changed[key] = None
                session.news.set()

    def _note_high_watermark(self, key: PartitionId) -> None:
        """Tell followers of a new high watermark with their next fetch."""
        for session in self._sessions.values():
            if key in session.partitions:
                session.changed[key] = None

    async def fetch(self, request: PeerFetchRequest, node_id: int) -> PeerFetchResponse:
        """Answer a fetch of a follower, now or when there is something for it."""
        session = self._session(request, node_id)
        if session is None:
            return PeerFetchResponse(error_code=PeerErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        now = asyncio.get_running_loop().time()
        deadline = now + request.wait_ms_max / 1000
        self._slices.expire()
        results: dict[PartitionId, PeerFetchResponsePartition] = {}
        keys = _due(session, request, now)
        while True:
            session.changed.clear()
            session.news.clear()
            results |= await self._read(session, request, node_id, keys)
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0 or any(_is_urgent(result) for result in results.values()):
                return _answer(session, list(results.values()))
            try:
                async with asyncio.timeout(remaining):
                    await session.news.wait()
                keys = list(session.changed)
            except TimeoutError:
                keys = list(session.partitions)

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

    # Reading.

    async def _read(
        self,
        session: _FetchSession,
        request: PeerFetchRequest,
        node_id: int,
        keys: Iterable[PartitionId],
    ) -> dict[PartitionId, PeerFetchResponsePartition]:
        """Return what is new in some partitions of a session."""
        results = {}
        remaining = request.bytes_max
        for key in keys:
            known = session.partitions.get(key)
            if known is None:  # A newer fetch has forgotten it.
                continue
            if remaining <= 0:
                session.changed[key] = None  # It may have records, for which there is no room.
            result = await self._read_partition(
                key, known.request, request.broker_epoch, node_id, remaining
            )
            size = 0 if result.batches is None else len(result.batches)
            remaining = max(0, remaining - size)
            if size:  # Others come first in the next response: this one may have filled it.
                session.partitions[key] = session.partitions.pop(key)
            is_news = (
                _is_urgent(result)
                or result.high_watermark != known.sent_high_watermark
                or result.log_start != known.sent_log_start
            )
            if is_news:
                results[key] = result
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
        if replica.publish_high_watermark():
            self._note_high_watermark(key)
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
        if item.fetch_offset >= log.replication.written_offset or remaining <= 0:
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
        try:
            source = self._slices.get(replica.key, item, size_max)
            if source is None:
                source = await self._read_log(log, item.fetch_offset, size_max)
                self._slices.add(replica.key, item, source)
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

    async def _read_log(self, log: Log, offset: int, size_max: int) -> ReplicaSlice:
        segments = log.segments
        read = partial(log.replication.read, offset, size_max=size_max, is_durable=False)
        if segments and offset < segments[-1].base_offset:
            return await self._background.run(read)  # It may have to be loaded from the disk.
        return read()


def _due(session: _FetchSession, request: PeerFetchRequest, now: float) -> list[PartitionId]:
    """Return the partitions to look at when a fetch arrives.

    A fetch tells of each partition in the session that its follower has what it had before. In a
    large session that is worth looking at from time to time only; in between, it is enough to look
    at those that the fetch names, and at those with something new, which come first.
    """
    if len(session.partitions) <= SMALL_SESSION or now >= session.complete_at:
        session.complete_at = now + COMPLETE_SECONDS
        return list(session.partitions)
    named = (PartitionId(item.topic_id, item.index) for item in request.partitions)
    return list(dict.fromkeys((*session.changed, *named)))


def _answer(session: _FetchSession, results: list[PeerFetchResponsePartition]) -> PeerFetchResponse:
    """Return the response, and remember what it tells.

    A partition that is refused leaves the session, here and at the follower, which names it again
    if it still wants it. Otherwise every later fetch would be answered at once with that error.
    """
    for result in results:
        key = PartitionId(result.topic_id, result.index)
        known = session.partitions.get(key)
        if known is None:
            continue
        if result.error_code:
            del session.partitions[key]
            continue
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

"""The leader's side of replication: answers the fetches of followers.

    fetch arrives ─► look at what it names, and at what is new ─► records? ─► answer
                                                                     │ none
                     a log is written ─► look at that, once a turn ◄─┘ wait, without polling

A session for each follower remembers its partitions, so a fetch only names those that changed, and
costs nothing for the others. All of it runs in callbacks of the event loop: a lone record waits for
it twice, with each of its followers.

A fetch tells of each partition of its session where the follower is. So a partition is looked at

-   with a fetch that names it: its follower is somewhere else, or knows a newer state;
-   after its log, its leader or its high watermark has changed: that wakes the fetch that waits, or
    is for the next one;
-   after a response that had no room for its records, or did not reach the follower;
-   with each fetch as long as the leader counts them, because the follower is to join the ISR;
-   with the first fetch of a session, and of a life of the follower's node;
-   in any case with the first fetch after `COMPLETE_SECONDS`, and when a fetch has waited in vain.

Followers fetch the same records at about the same time, so what was read for one of them is kept
for a moment for the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replica_fetch import FetchKind, ReplicaFetch
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.slice_cache import SliceCache
from millstream.cluster.replication.slice_codec import encode_segment_info
from millstream.cluster.replication_state import NO_LIFE
from millstream.errors import MillstreamError, OffsetOutOfRange
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

logger = logging.getLogger(__name__)

COMPLETE_SECONDS = 0.25
"""How often all partitions of a session are looked at, at least: twice as often as an idle follower
fetches.
"""

JOINING_MAX = 64
"""Partitions without news that are looked at with one fetch, because the leader counts fetches."""

JOINING_WAIT_SECONDS = 0.05
"""How long such a fetch waits at most: while nothing is written, a follower would need seconds to
join the ISR, in which nobody else has what its leader commits.
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
    joining: dict[PartitionId, None] = field(default_factory=dict)
    """Partitions of which the leader counts the fetches, those first that waited longest."""
    broker_epoch: int = NO_LIFE
    """The life of the follower's node in its last fetch."""
    waiting: WaitingFetch | None = None
    """The fetch of the follower that was not answered yet."""
    complete_at: float = 0.0
    """When all partitions have to be looked at again."""

    def forget(self, key: PartitionId) -> None:
        """Remove a partition that its follower does not fetch any more."""
        self.partitions.pop(key, None)
        self.joining.pop(key, None)

    def unanswered(self, fetch: WaitingFetch) -> None:
        """Look again at what a response would have told that its follower did not get."""
        self.changed |= dict.fromkeys(fetch.results)


class _ColdRead(NamedTuple):
    """Records that may have to be loaded from the disk."""

    replica: LocalReplica
    item: PeerFetchRequestPartition
    result: PeerFetchResponsePartition
    """The answer without them."""


class WaitingFetch:
    """A fetch that was not answered yet."""

    __slots__ = (
        "_answer",
        "is_done",
        "is_due",
        "is_scheduled",
        "node_id",
        "remaining",
        "request",
        "results",
        "timer",
    )

    def __init__(
        self, request: PeerFetchRequest, node_id: int, answer: Callable[[PeerFetchResponse], None]
    ) -> None:
        self.request = request
        self.node_id = node_id
        self.results: dict[PartitionId, PeerFetchResponsePartition] = {}
        self.remaining = request.bytes_max
        """Bytes of records for which the response has room."""
        self.is_scheduled = False
        """Whether it is going to be looked at, or records for it are being read."""
        self.is_due = request.wait_ms_max <= 0
        """Whether it is answered even if there is nothing new."""
        self.is_done = False
        self.timer: asyncio.TimerHandle | None = None
        self._answer = answer

    def end(self, response: PeerFetchResponse | None = None) -> None:
        """Answer it, or forget it: nobody waits for it any more."""
        if self.is_done:
            return
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if response is not None:
            self._answer(response)


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
        self._reads: set[asyncio.Task[None]] = set()

    def wake(self, key: PartitionId) -> None:
        """Answer the fetches that wait for a partition, with all that is written in this turn."""
        for session in self._sessions.values():
            if key in session.partitions:
                session.changed[key] = None
                fetch = session.waiting
                if fetch is not None and not fetch.is_scheduled:
                    fetch.is_scheduled = True
                    asyncio.get_running_loop().call_soon(self._look_again, session, fetch)

    def note_high_watermark(self, key: PartitionId) -> None:
        """Tell followers of a new high watermark with their next fetch."""
        for session in self._sessions.values():
            if key in session.partitions:
                session.changed[key] = None

    def fetch(
        self, request: PeerFetchRequest, node_id: int, answer: Callable[[PeerFetchResponse], None]
    ) -> WaitingFetch:
        """Answer a fetch of a follower, now or when there is something for it."""
        session = self._session(request, node_id)
        fetch = WaitingFetch(request, node_id, answer)
        if session is None:
            fetch.end(PeerFetchResponse(error_code=PeerErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return fetch
        if session.waiting is not None:  # Its follower has given it up.
            session.waiting.end(PeerFetchResponse(session_id=session.id))
            session.unanswered(session.waiting)
        session.waiting = fetch
        loop = asyncio.get_running_loop()
        self._slices.expire()
        self._look(session, fetch, _due(session, request, loop.time()))
        if not fetch.is_done:
            wait = request.wait_ms_max / 1000
            if session.joining:
                wait = min(wait, JOINING_WAIT_SECONDS)
            fetch.timer = loop.call_later(wait, self._expire, session, fetch)
        return fetch

    # Waiting.

    def _look_again(self, session: _FetchSession, fetch: WaitingFetch) -> None:
        fetch.is_scheduled = False
        if not fetch.is_done:
            self._look(session, fetch, list(session.changed))

    def _expire(self, session: _FetchSession, fetch: WaitingFetch) -> None:
        fetch.timer, fetch.is_due = None, True
        if not fetch.is_scheduled:
            self._look(session, fetch, list(session.partitions))

    def _look(
        self, session: _FetchSession, fetch: WaitingFetch, keys: Sequence[PartitionId]
    ) -> None:
        """Look at partitions, and answer if there is something that must not wait."""
        session.changed.clear()
        try:
            cold = self._read(session, fetch, keys)
        except Exception:  # noqa: BLE001 - it is logged there.
            self._fail(session, fetch)
            return
        if cold:
            fetch.is_scheduled = True
            task = asyncio.get_running_loop().create_task(self._read_cold(session, fetch, cold))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
        elif fetch.is_due or any(map(_is_urgent, fetch.results.values())):
            self._answer(session, fetch)

    async def _read_cold(
        self, session: _FetchSession, fetch: WaitingFetch, cold: Sequence[_ColdRead]
    ) -> None:
        """Read records in a thread, one partition after the other, and answer with them."""
        try:
            for replica, item, result in cold:
                if fetch.is_done or fetch.remaining <= 0:
                    session.changed[replica.key] = None
                    continue
                read = partial(
                    replica.partition.log.replication.read,
                    item.fetch_offset,
                    size_max=min(item.bytes_max, fetch.remaining),
                    is_durable=False,
                )
                try:
                    source = await self._background.run(read)
                except MillstreamError as error:
                    fetch.results[replica.key] = _unread(replica, error)
                    continue
                self._slices.add(replica.key, item, source)
                fetch.results[replica.key] = self._with_records(result, source)
                _take_room(session, fetch, replica.key, len(source.data))
        except Exception:  # noqa: BLE001 - it is logged there.
            self._fail(session, fetch)
            return
        self._answer(session, fetch)

    def _answer(self, session: _FetchSession, fetch: WaitingFetch) -> None:
        if fetch.is_done:
            session.unanswered(fetch)
            return
        if session.waiting is fetch:
            session.waiting = None
        fetch.end(_response(session, list(fetch.results.values())))

    def _fail(self, session: _FetchSession, fetch: WaitingFetch) -> None:
        """Log an internal error, and let the follower begin again. Call it in `except`."""
        self._context.counters.internal_errors += 1
        logger.exception("a fetch of node %d failed", fetch.node_id)
        if session.waiting is fetch:
            session.waiting = None
        fetch.end(PeerFetchResponse(error_code=PeerErrorCode.UNKNOWN_SERVER_ERROR))

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
            session.forget(PartitionId(forgotten.topic_id, forgotten.index))
        for item in request.partitions:
            key = PartitionId(item.topic_id, item.index)
            session.partitions[key] = _SessionPartition(item)
        return session

    # Reading.

    def _read(
        self, session: _FetchSession, fetch: WaitingFetch, keys: Iterable[PartitionId]
    ) -> list[_ColdRead]:
        """Add to a fetch what is new in some partitions; return what has to be read in a thread."""
        request, cold = fetch.request, []
        fetch.remaining = request.bytes_max
        for key in keys:
            known = session.partitions.get(key)
            if known is None:  # A newer fetch has forgotten it.
                continue
            if fetch.remaining <= 0:
                session.changed[key] = None  # It may have records, for which there is no room.
            result = self._read_partition(
                key, known.request, request.broker_epoch, fetch.node_id, fetch.remaining
            )
            self._note_joining(session, key, fetch.node_id)
            if isinstance(result, _ColdRead):
                cold.append(result)
                continue
            is_news = (
                _is_urgent(result)
                or result.high_watermark != known.sent_high_watermark
                or result.log_start != known.sent_log_start
            )
            if is_news:
                fetch.results[key] = result
            _take_room(session, fetch, key, 0 if result.batches is None else len(result.batches))
        return cold

    def _note_joining(self, session: _FetchSession, key: PartitionId, node_id: int) -> None:
        """Note whether the next fetch of a follower counts for a partition."""
        session.joining.pop(key, None)
        replica = self._replicas.get(key)
        leader = None if replica is None else replica.leader
        if leader is not None and leader.counts_fetches(node_id):
            session.joining[key] = None

    def _read_partition(
        self,
        key: PartitionId,
        item: PeerFetchRequestPartition,
        broker_epoch: int,
        node_id: int,
        remaining: int,
    ) -> PeerFetchResponsePartition | _ColdRead:
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
        if item.fetch_offset >= log.replication.written_offset or remaining <= 0:
            return result
        return self._read_slice(replica, item, result, min(item.bytes_max, remaining))

    def _read_slice(
        self,
        replica: LocalReplica,
        item: PeerFetchRequestPartition,
        result: PeerFetchResponsePartition,
        size_max: int,
    ) -> PeerFetchResponsePartition | _ColdRead:
        log, offset = replica.partition.log, item.fetch_offset
        source = self._slices.get(replica.key, item, size_max)
        if source is None:
            segments = log.segments
            if segments and offset < segments[-1].base_offset:
                return _ColdRead(replica, item, result)
            try:
                source = log.replication.read(offset, size_max=size_max, is_durable=False)
            except MillstreamError as error:
                return _unread(replica, error)
            self._slices.add(replica.key, item, source)
        return self._with_records(result, source)

    def _with_records(
        self, result: PeerFetchResponsePartition, source: ReplicaSlice
    ) -> PeerFetchResponsePartition:
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


def _take_room(session: _FetchSession, fetch: WaitingFetch, key: PartitionId, size: int) -> None:
    """Note that a response has records of a partition."""
    fetch.remaining = max(0, fetch.remaining - size)
    if size and key in session.partitions:
        # Others come first in the next response: this one may have filled it.
        session.partitions[key] = session.partitions.pop(key)


def _due(session: _FetchSession, request: PeerFetchRequest, now: float) -> list[PartitionId]:
    """Return the partitions to look at when a fetch arrives.

    A fetch tells of each partition in the session that its follower has what it had before. That is
    worth looking at from time to time only; in between, it is enough to look at those with
    something new, which come first, at those that the fetch names, and at some of those for which
    the leader counts fetches.
    """
    is_new_life = request.broker_epoch != session.broker_epoch
    session.broker_epoch = request.broker_epoch
    if now >= session.complete_at or is_new_life:
        session.complete_at = now + COMPLETE_SECONDS
        return list(session.partitions)
    named = (PartitionId(item.topic_id, item.index) for item in request.partitions)
    joining = islice(session.joining, JOINING_MAX)
    return list(dict.fromkeys((*session.changed, *named, *joining)))


def _response(
    session: _FetchSession, results: list[PeerFetchResponsePartition]
) -> PeerFetchResponse:
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
            session.forget(key)
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


def _unread(replica: LocalReplica, error: MillstreamError) -> PeerFetchResponsePartition:
    """Return the answer for a partition whose records could not be read."""
    if isinstance(error, OffsetOutOfRange):
        return _refused(replica.key, PeerErrorCode.OFFSET_OUT_OF_RANGE, replica.partition.log)
    return _refused(replica.key, peer_code_of(error))


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

"""The follower's side of replication: fetches from one leader for all partitions that it leads.

    fetch ─► answer ─► write every slice ─► all of them are synced ─► fetch, which reports it

There is one fetch in flight, for all partitions together. A follower reports only what is synced,
and one sync serves many partitions, so nothing is gained by more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.follower import FollowerReplica, OfferedSlice, SliceDecision
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.slice_codec import decode_slice
from millstream.errors import MillstreamError, OutcomeUnknown, Unavailable
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchForgottenPartition,
    PeerFetchRequest,
    PeerFetchRequestPartition,
    PeerFetchResponse,
    PeerFetchResponsePartition,
)

logger = logging.getLogger(__name__)

WAIT_MS_MAX = 500
"""How long a leader may wait for new records. A follower that is idle is heard this often."""

CALL_SECONDS_MAX = 5.0
"""Deadline of a fetch, beyond the wait of the leader."""

RESPONSE_BYTES_MAX = 16 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Several of the largest batches that clients send by default: each fetch is followed by a sync,
and a follower that takes one batch at a time would sync as often as its leader gets one.
"""

COMPLETE_SECONDS = 0.25
"""How often all replicas are looked at for what changes without a fetch, at least: their starts,
and how far they are compacted.
"""

RETRY_SECONDS = 0.2
"""Time until the next fetch after the leader could not be reached or refused."""


class PeerCalls(Protocol):
    """Requests to other nodes: `PeerPool`."""

    async def call(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        *,
        timeout_s: float,
    ) -> Any:
        """Send a request to a node and return its response."""
        ...


class _SentPartition(NamedTuple):
    """What the leader's session knows of one partition."""

    replica: LocalReplica
    fetch: ReplicaFetch
    item: PeerFetchRequestPartition


class _Writes:
    """The writes of one response: ends when all of them are synced, or were refused."""

    def __init__(self) -> None:
        self._left = 0
        self._ended: asyncio.Future[None] | None = None

    def add(self) -> _SliceWrite:
        self._left += 1
        return _SliceWrite(self._end_one)

    def _end_one(self) -> None:
        self._left -= 1
        if not self._left and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def wait(self) -> None:
        """Return when all have ended.

        Only from now on: some end at once, such as the end of a segment without records, while
        others are still to be added.
        """
        if self._left:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended


class _SliceWrite:
    """One write, and how it ended. Implements `AppendWaiter` of the log."""

    __slots__ = ("_end", "_is_done", "error")

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._is_done = False
        self.error: Exception | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, _: object, /) -> None:
        if not self._is_done:
            self._is_done = True
            self._end()

    def set_exception(self, exception: Exception, /) -> None:
        if not self._is_done:
            self._is_done = True
            self.error = exception
            self._end()


class _TakenPartition(NamedTuple):
    """What was answered for one partition, and the write of its records, if there are any."""

    sent: _SentPartition
    result: PeerFetchResponsePartition
    write: _SliceWrite | None


class ReplicaFetcher:
    """Fetches from one leader."""

    def __init__(
        self,
        leader_id: int,
        context: ReplicaContext,
        peers: PeerCalls,
        replicas: Callable[[], Mapping[PartitionId, LocalReplica]],
        on_repair: Callable[[LocalReplica], None],
    ) -> None:
        """`replicas` returns those that follow this leader now.

        `on_repair` is called with one that has to be repaired before it goes on.
        """
        self.leader_id = leader_id
        self._context = context
        self._peers = peers
        self._replicas = replicas
        self._on_repair = on_repair
        self._session_id = 0
        self._session_epoch = 0
        self._sent: dict[PartitionId, _SentPartition] = {}
        """What the leader's session knows of each partition."""
        self._followed: Mapping[PartitionId, LocalReplica] = {}
        """The replicas that follow this leader, as of the last look at all of them."""
        self._complete_at = 0.0
        """When all replicas have to be looked at again."""
        self._outdated: list[LocalReplica] = []
        """Replicas whose logs have more than their machines know."""
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Fetch again soon: there may be more partitions to fetch for."""
        self.forget_followed()
        self._changed.set()

    def forget_followed(self) -> None:
        """Look at all replicas before the next fetch: others may follow this leader by then."""
        self._complete_at = 0.0

    async def stop(self) -> None:
        """Stop fetching. Slices that were received are written or dropped."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                is_done = await self._fetch_once()
            except (Unavailable, OutcomeUnknown) as error:
                logger.debug("fetch from node %d: %s", self.leader_id, error)
                is_done = False
                self._end_session()
            except MillstreamError as error:
                logger.warning("fetch from node %d: %s", self.leader_id, error)
                is_done = False
                self._end_session()
            except Exception:  # A bug in one partition must not stop all replicas.
                logger.exception("fetch from node %d failed", self.leader_id)
                is_done = False
                self._end_session()
            if not is_done:
                # Not `wait_for`, which may swallow a cancellation at the moment of a change.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._changed.wait()

    def _end_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._sent.clear()
        self.forget_followed()

    async def _fetch_once(self) -> bool:
        """Fetch once; return False if the next one should wait a little."""
        request = self._request()
        while self._outdated:
            await self._begin_again(self._outdated.pop(), None)
        if request is None:
            self._end_session()
            return False
        response = await self._peers.call(
            self.leader_id,
            Purpose.REPLICATION,
            request,
            timeout_s=CALL_SECONDS_MAX + WAIT_MS_MAX / 1000,
        )
        assert isinstance(response, PeerFetchResponse)
        if response.error_code:
            self._end_session()
            return response.error_code == PeerErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._session_id = response.session_id
        return await self._take(response)

    def _request(self) -> PeerFetchRequest | None:
        """Return the next request; None if there is nothing to fetch for.

        With a session, it names only what the leader does not know. Most fetches are about one
        partition of many, so the others cost no more than a look: what they would ask is built
        again only from time to time, for what changes without a fetch.
        """
        now = asyncio.get_running_loop().time()
        is_complete = now >= self._complete_at
        if is_complete:
            self._complete_at = now + COMPLETE_SECONDS
            self._followed = self._replicas()
        sent, named, forgotten = self._sent, [], []
        if is_complete:
            forgotten = [key for key in sent if key not in self._followed]
        for key, replica in self._followed.items():
            known = sent.get(key)
            is_same = known is not None and replica.asks(known.fetch)
            if is_same and not is_complete:
                continue
            if is_same and known is not None:
                fetch: ReplicaFetch | None = known.fetch
            else:
                fetch = self._next_fetch(replica)
            if fetch is None:
                if known is not None:
                    forgotten.append(key)
                continue
            item = _requested(key, replica, fetch)
            # A new fetch is always named: if it asks the same as one before, what that one brought
            # was not taken over, and the leader does not know.
            if known is None or not is_same or known.item != item:
                named.append(item)
            sent[key] = _SentPartition(replica, fetch, item)
        for key in forgotten:
            del sent[key]
        if not sent:
            return None
        if self._session_id:
            self._session_epoch += 1
        return PeerFetchRequest(
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            broker_epoch=self._context.membership.broker_epoch,
            wait_ms_max=WAIT_MS_MAX,
            bytes_max=RESPONSE_BYTES_MAX,
            partitions=tuple(named),
            forgotten=tuple(
                PeerFetchForgottenPartition(topic_id=key.topic_id, index=key.partition)
                for key in forgotten
            ),
        )

    def _next_fetch(self, replica: LocalReplica) -> ReplicaFetch | None:
        follower = replica.follower
        if follower is None or replica.leader_id != self.leader_id:
            return None  # It has changed since all were looked at.
        if not replica.partition.is_open:
            return None
        durable = replica.partition.log.replication.durable_offset
        if durable > follower.written_end:
            # A write that was in flight when it began to follow has ended since.
            self._outdated.append(replica)
            return None
        if follower.synced_end != follower.written_end:
            # The log says what is synced, whatever became of the response that brought it.
            _note_synced(replica, follower)
        return follower.next_fetch()

    # Answers.

    async def _take(self, response: PeerFetchResponse) -> bool:
        """Take over a response; return whether the next fetch need not wait.

        What goes wrong with one partition must not keep the others from being finished: one whose
        records were written and not reported as synced would not be fetched for any more.
        """
        taken: list[_TakenPartition] = []
        writes = _Writes()
        is_done = True
        for result in response.partitions:
            sent = self._sent.get(PartitionId(result.topic_id, result.index))
            if sent is None:
                continue
            try:
                if result.error_code:
                    is_done = await self._refused(sent, result) and is_done
                elif result.diverging is not None:
                    await sent.replica.truncate(
                        sent.fetch, result.diverging.epoch, result.diverging.end_offset
                    )
                else:
                    taken.append(_TakenPartition(sent, result, self._write(sent, result, writes)))
            except Exception as error:  # noqa: BLE001 - it is logged there.
                is_done = False
                await self._begin_again(sent.replica, error)
        await writes.wait()
        for item in taken:
            try:
                if item.write is not None and item.write.error is not None:
                    raise item.write.error
                await self._finish(item.sent, item.result)
            except Exception as error:  # noqa: BLE001 - it is logged there.
                is_done = False
                await self._begin_again(item.sent.replica, error)
        return is_done

    async def _begin_again(self, replica: LocalReplica, error: Exception | None) -> None:
        """Follow from where the log is, after an error because records were not taken over."""
        if error is None:
            logger.info("%s: follows from the end of its log", replica)
        elif isinstance(error, MillstreamError):
            logger.warning("%s: records were not taken over: %s", replica, error)
        else:
            self._context.counters.internal_errors += 1
            logger.error("%s: records were not taken over", replica, exc_info=error)
        if replica.follower is None or not replica.partition.is_open:
            return
        try:
            await replica.begin_again()
        except MillstreamError as failure:
            replica.follow_problem = f"{replica}: the replica does not follow: {failure}"
            logger.error("%s", replica.follow_problem)  # noqa: TRY400

    def _write(
        self, sent: _SentPartition, result: PeerFetchResponsePartition, writes: _Writes
    ) -> _SliceWrite | None:
        """Write the slice of a result, if the machine accepts it."""
        replica, fetch, _ = sent
        follower = replica.follower
        if follower is None:
            return None
        follower.answered(fetch, result.high_watermark)
        if not result.batches and not result.is_last_of_segment:
            return None
        return self._write_slice(sent, follower, result, writes)

    def _write_slice(
        self,
        sent: _SentPartition,
        follower: FollowerReplica,
        result: PeerFetchResponsePartition,
        writes: _Writes,
    ) -> _SliceWrite | None:
        replica, fetch, _ = sent
        source = decode_slice(result, fetch.offset)
        log = replica.partition.log
        if replica.should_copy(fetch, source, result.high_watermark):
            replica.is_far_behind = True
            self._on_repair(replica)
            return None
        if source.data:
            is_rewritten = source.generation > 0
            offered = OfferedSlice(
                base_offset=source.offset,
                end_offset=source.next_offset,
                epoch=source.leader_epoch,
                # A rewritten segment has other positions here; the log finds its own.
                segment_base=follower.segment_base if is_rewritten else source.segment,
                position=follower.position if is_rewritten else source.position,
                size=len(source.data),
            )
            decision = follower.accept(fetch, offered)
            if decision is SliceDecision.DROP:
                return None
            if decision is SliceDecision.MISMATCH and not is_rewritten:
                end = log.replication.position
                replica.stop(
                    f"the leader's slice at offset {source.offset}, byte {source.position} of"
                    f" segment {source.segment}, does not continue this replica, which ends at"
                    f" offset {end.offset}, byte {end.position} of segment {end.segment}"
                )
                return None
        write = writes.add()
        try:
            log.replication.submit(source, write)
        except Unavailable as error:  # For example a full disk: it is fetched again.
            write.set_exception(error)
            return write
        except MillstreamError as error:
            write.set_exception(error)
            replica.stop(f"a slice of the leader was not accepted: {error}")
            return None
        self._context.counters.fetched_bytes += len(source.data)
        if source.data:
            replica.partition.producers.add(source.data)
            follower.written(offered)
        return write

    async def _finish(self, sent: _SentPartition, result: PeerFetchResponsePartition) -> None:
        """Tell the machine what is synced, and readers what is committed."""
        replica = sent.replica
        follower = replica.follower
        if follower is None or not replica.partition.is_open:
            return
        log = replica.partition.log
        if log.offline is not None:
            replica.follow_problem = f"{replica}: {log.offline}"
            self._on_repair(replica)
            return
        _note_synced(replica, follower)
        replica.advance()
        await self._follow_start(replica, result)

    async def _follow_start(
        self, replica: LocalReplica, result: PeerFetchResponsePartition
    ) -> None:
        """Take over the start of the leader's log."""
        log, follower = replica.partition.log, replica.follower
        if follower is None or result.log_start <= log.start_offset:
            return
        start = min(result.log_start, log.end_offset)
        if start > log.start_offset:
            await log.replication.set_start(
                start,
                eviction_floor=min(max(result.eviction_floor, log.eviction_floor), start),
                eviction_reason=result.eviction_reason or log.eviction_reason,
            )
            follower.started_at(log.start_offset)

    async def _refused(self, sent: _SentPartition, result: PeerFetchResponsePartition) -> bool:
        """React to an error; return whether the next fetch need not wait."""
        replica, fetch, _ = sent
        code = result.error_code
        self._sent.pop(replica.key, None)
        # The leader has deleted what comes next, on purpose; or it has removed tombstones that come
        # next, and this replica may have older records of their keys. Everybody knows.
        is_behind = max(result.log_start, result.tombstones_removed) > fetch.offset
        if code == PeerErrorCode.OFFSET_OUT_OF_RANGE and is_behind and result.log_start >= 0:
            await replica.restart_at(result.log_start, tombstones_copied=result.tombstones_removed)
            return True
        logger.debug(
            "%s: node %d refused a fetch at offset %d: code %d",
            replica,
            self.leader_id,
            fetch.offset,
            code,
        )
        return False


def _note_synced(replica: LocalReplica, follower: FollowerReplica) -> None:
    """Tell the machine what the log has, and what of it is synced."""
    replication = replica.partition.log.replication
    end = replication.position
    follower.segment_base, follower.position = end.segment, end.position
    follower.synced(replication.durable_offset)


def _requested(
    key: PartitionId, replica: LocalReplica, fetch: ReplicaFetch
) -> PeerFetchRequestPartition:
    log = replica.partition.log
    return PeerFetchRequestPartition(
        topic_id=key.topic_id,
        index=key.partition,
        leader_epoch=fetch.leader_epoch,
        fetch_offset=fetch.offset,
        last_fetched_epoch=fetch.last_epoch,
        revision=fetch.revision,
        log_start=log.start_offset,
        bytes_max=PARTITION_BYTES_MAX,
        cleaned_offset=log.replication.cleaned_offset,
        tombstones_removed=log.replication.tombstones_removed,
    )

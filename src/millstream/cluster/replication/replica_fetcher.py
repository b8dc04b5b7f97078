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
    """What was asked for one partition."""

    replica: LocalReplica
    fetch: ReplicaFetch


class _TakenPartition(NamedTuple):
    """What was answered for one partition, and the write of its records, if there are any."""

    sent: _SentPartition
    result: PeerFetchResponsePartition
    write: asyncio.Future[Any] | None


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
        self._known: dict[PartitionId, PeerFetchRequestPartition] = {}
        """What the leader's session knows of each partition."""
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Fetch again soon: there may be more partitions to fetch for."""
        self._changed.set()

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
        self._known.clear()

    async def _fetch_once(self) -> bool:
        """Fetch once; return False if the next one should wait a little."""
        asked: dict[PartitionId, _SentPartition] = {}
        for key, replica in self._replicas().items():
            follower = replica.follower
            fetch = None if follower is None else follower.next_fetch()
            if fetch is not None:
                asked[key] = _SentPartition(replica, fetch)
        if not asked:
            self._end_session()
            return False
        request = self._request(asked)
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
        return await self._take(response, asked)

    def _request(self, asked: Mapping[PartitionId, _SentPartition]) -> PeerFetchRequest:
        """Return the request: with a session, it names only what the leader does not know."""
        named = []
        for key, (replica, fetch) in asked.items():
            item = PeerFetchRequestPartition(
                topic_id=key.topic_id,
                index=key.partition,
                leader_epoch=fetch.leader_epoch,
                fetch_offset=fetch.offset,
                last_fetched_epoch=fetch.last_epoch,
                revision=fetch.revision,
                log_start=replica.partition.log.start_offset,
                bytes_max=PARTITION_BYTES_MAX,
                cleaned_offset=replica.partition.log.replication.cleaned_offset,
                tombstones_removed=replica.partition.log.replication.tombstones_removed,
            )
            if self._known.get(key) != item:
                named.append(item)
                self._known[key] = item
        forgotten = [key for key in self._known if key not in asked]
        for key in forgotten:
            del self._known[key]
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

    # Answers.

    async def _take(
        self, response: PeerFetchResponse, asked: Mapping[PartitionId, _SentPartition]
    ) -> bool:
        """Take over a response; return whether the next fetch need not wait.

        What goes wrong with one partition must not keep the others from being finished: one whose
        records were written and not reported as synced would not be fetched for any more.
        """
        taken: list[_TakenPartition] = []
        is_done = True
        for result in response.partitions:
            sent = asked.get(PartitionId(result.topic_id, result.index))
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
                    taken.append(_TakenPartition(sent, result, self._write(sent, result)))
            except Exception as error:  # noqa: BLE001 - it is logged there.
                is_done = False
                await self._begin_again(sent.replica, error)
        if writes := [item.write for item in taken if item.write is not None]:
            await asyncio.wait(writes)
        for item in taken:
            try:
                if item.write is not None:
                    _check_written(item.write)
                await self._finish(item.sent, item.result)
            except Exception as error:  # noqa: BLE001 - it is logged there.
                is_done = False
                await self._begin_again(item.sent.replica, error)
        return is_done

    async def _begin_again(self, replica: LocalReplica, error: Exception) -> None:
        """Follow from where the log is, after records were not taken over."""
        if isinstance(error, MillstreamError):
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
        self, sent: _SentPartition, result: PeerFetchResponsePartition
    ) -> asyncio.Future[Any] | None:
        """Write the slice of a result, if the machine accepts it."""
        replica, fetch = sent
        follower = replica.follower
        if follower is None:
            return None
        follower.answered(fetch, result.high_watermark)
        if not result.batches and not result.is_last_of_segment:
            return None
        return self._write_slice(sent, follower, result)

    def _write_slice(
        self,
        sent: _SentPartition,
        follower: FollowerReplica,
        result: PeerFetchResponsePartition,
    ) -> asyncio.Future[Any] | None:
        replica, fetch = sent
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
        try:
            written = log.replication.append(source)
        except Unavailable as error:  # For example a full disk: it is fetched again.
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed
        except MillstreamError as error:
            replica.stop(f"a slice of the leader was not accepted: {error}")
            return None
        self._context.counters.fetched_bytes += len(source.data)
        if source.data:
            replica.partition.producers.add(source.data)
            follower.written(offered)
        return written

    async def _finish(self, sent: _SentPartition, result: PeerFetchResponsePartition) -> None:
        """Tell the machine what is synced, and readers what is committed."""
        replica, _ = sent
        follower = replica.follower
        if follower is None or not replica.partition.is_open:
            return
        log = replica.partition.log
        if log.offline is not None:
            replica.follow_problem = f"{replica}: {log.offline}"
            self._on_repair(replica)
            return
        end = log.replication.position
        follower.segment_base, follower.position = end.segment, end.position
        follower.synced(log.replication.durable_offset)
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
        replica, fetch = sent
        code = result.error_code
        self._known.pop(replica.key, None)
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


def _check_written(write: asyncio.Future[Any]) -> None:
    """Raise if records were not written."""
    if write.cancelled():
        # Not the error of the future, which would cancel the task that fetches.
        raise Unavailable("the write was cancelled")
    if (error := write.exception()) is not None:
        raise error

"""All replicas of this node: their roles, their fetchers, and their clocks.

Every partition of every topic has a `LocalReplica` here, present or not: it knows who leads. The
states of partitions come from the metadata store; each partition applies them one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import CommittedEnd
from millstream.cluster.replication.fetch_server import FetchServer
from millstream.cluster.replication.local_replica import LocalReplica, ResyncProgress
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.replica_fetcher import PeerCalls, ReplicaFetcher
from millstream.cluster.replication.replica_repair import ReplicaRepair, ResyncPolicy
from millstream.cluster.replication.segment_copier import ByteRateLimiter, SegmentCopier
from millstream.cluster.replication.segment_server import SegmentServer
from millstream.cluster.replication_state import NO_NODE, ReplicationState
from millstream.errors import MillstreamError, Stopping
from millstream.storage.disk.executor import Executor
from millstream.storage.files.names import LogName
from millstream.storage.log import Log
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
"""How often leaders look at their followers. Far below the lag at which one leaves the ISR."""

HIGH_WATERMARKS_SECONDS = 5.0
"""How often the high watermarks of all replicas are stored: what is lost since is not noticed."""

ROLE_RETRY_SECONDS = 1.0
"""Time until a replica that could not take its role tries again. Nobody else would: the state of
its partition says that it leads or follows, and may not change for days."""

HAND_OVER_SECONDS_MAX = 5.0
"""How long a node that stops waits for its successors."""


class ReplicaLag(NamedTuple):
    """How far a follower is, as this node knows it, which leads the partition."""

    partition: Partition
    node_id: int
    records: int
    bytes: int
    seconds: float
    is_in_sync: bool


class LedPartition(NamedTuple):
    """A partition that this node leads."""

    partition: Partition
    in_sync: int
    """Replicas that have every committed record, the leader included."""
    assigned: int
    """Replicas that it should have, without those that are being removed."""


class ReplicaManager:
    """The replicas of one node. Owned by one event loop."""

    def __init__(
        self,
        context: ReplicaContext,
        peers: PeerCalls,
        background: Executor,
        resync: ResyncPolicy,
    ) -> None:
        self.context = context
        self.replicas: dict[PartitionId, LocalReplica] = {}
        self.server = FetchServer(context, self.replicas, background)
        self.segments = SegmentServer(context, self.replicas, background)
        limiter = ByteRateLimiter(resync.bytes_per_second, context.clock)
        self.repair = ReplicaRepair(
            context,
            self.replicas,
            SegmentCopier(context, peers, limiter),
            policy=resync,
            background=background,
            run_exclusive=self.run_exclusive,
        )
        self.on_leading: list[Callable[[LocalReplica, int | None], None]] = []
        """Called with the leader epoch when this node leads a partition, with None at the end."""
        self._peers = peers
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._applying: dict[PartitionId, asyncio.Task[None]] = {}
        self._role_retries: dict[PartitionId, asyncio.TimerHandle] = {}
        """The next attempt of each replica that could not take its role."""
        self._ticks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._saver: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._is_running = False

    # Partitions.

    def add(self, topic: Topic, partition: Partition) -> LocalReplica:
        """Take over the replication of a partition that the broker has just made."""
        key = PartitionId(topic.id, partition.index)
        replica = LocalReplica(self.context, topic, partition, key)
        replica.on_leading = self._on_leading
        replica.on_news = self._on_news
        replica.on_high_watermark = self._on_high_watermark
        replica.on_due = self._tick_now
        partition.replica = replica
        self.replicas[key] = replica
        if key in self.context.state.partitions:
            self._apply_later(key)
        return replica

    def remove(self, topic: Topic) -> None:
        """Forget the partitions of a deleted topic."""
        for index in range(len(topic.partitions)):
            key = PartitionId(topic.id, index)
            self._cancel_retry(key)
            if (replica := self.replicas.pop(key, None)) is not None:
                replica.forget()

    def _on_leading(self, replica: LocalReplica, epoch: int | None) -> None:
        for callback in self.on_leading:
            callback(replica, epoch)

    def _on_news(self, replica: LocalReplica) -> None:
        self.server.wake(replica.key)

    def _on_high_watermark(self, replica: LocalReplica) -> None:
        self.server.note_high_watermark(replica.key)

    # Following the cluster.

    def start(self, store: Store) -> None:
        """Apply the states of all partitions, and those to come."""
        self._store = store
        self._is_running = True
        state = self.context.state
        state.on_partition.append(self._on_partition)
        state.on_life_ended.append(self._on_life_ended)
        self.context.membership.on_life = self._on_life
        for key in state.partitions:
            self._apply_later(key)
        loop = asyncio.get_running_loop()
        self._ticker = loop.create_task(self._tick())
        self._saver = loop.create_task(self._save_high_watermarks())
        self.repair.start(store)

    async def hand_over(self) -> None:
        """Hand all leaderships over, as far as others can take them, before the node stops."""
        leading = [replica for replica in self.replicas.values() if replica.leader is not None]
        handed = [replica for replica in leading if replica.hand_over()]
        deadline = asyncio.get_running_loop().time() + HAND_OVER_SECONDS_MAX
        while any(replica.leader is not None for replica in handed):
            if asyncio.get_running_loop().time() >= deadline:
                left = sum(1 for replica in handed if replica.leader is not None)
                logger.warning("%d leaderships were not handed over in time", left)
                return
            for replica in handed:
                replica.hand_over()  # Its successor may only now have joined the ISR.
                self._tick_now(replica)
            await asyncio.sleep(TICK_SECONDS / 4)

    async def stop(self) -> None:
        """Stop leading and following."""
        self._is_running = False
        state = self.context.state
        if self._on_partition in state.on_partition:
            state.on_partition.remove(self._on_partition)
            state.on_life_ended.remove(self._on_life_ended)
        for key in list(self._role_retries):
            self._cancel_retry(key)
        tasks = [*self._ticks, *self._applying.values()]
        await self.repair.stop()
        for loop_task in (self._ticker, self._saver):
            if loop_task is not None:
                loop_task.cancel()
                tasks.append(loop_task)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store_high_watermarks()
        for replica in self.replicas.values():
            try:
                await replica.end_life()
            except MillstreamError as error:
                logger.warning("%s: %s", replica, error)

    def _on_partition(self, key: PartitionId, _: ReplicationState | None) -> None:
        if key in self.replicas:
            self._apply_later(key)

    def _on_life_ended(self, node_id: int, broker_epoch: int) -> None:
        """Tell leaders that a follower is gone; they need not wait for it to be late.

        Only in that life: it may fetch in its next one already, of which this node hears later.
        """
        for replica in self.replicas.values():
            leader = replica.leader
            if leader is not None and node_id in leader.state.replicas:
                leader.node_gone(node_id, broker_epoch)
                self._tick_now(replica)

    def _on_life(self, _: int) -> None:
        """Begin again in a new life of the node: nothing of the former one is valid."""
        for key in self.replicas:
            self._apply_later(key, is_new_life=True)

    def _apply_later(self, key: PartitionId, *, is_new_life: bool = False) -> None:
        """Apply the newest state of a partition, after what is being applied now."""
        if self._is_running:
            self._run_later(key, lambda replica: self._apply(replica, is_new_life=is_new_life))

    def _retry_later(self, key: PartitionId) -> None:
        """Try again to apply the state of a partition, after what is being applied now."""
        if self._is_running:
            self._run_later(key, self._retry)

    async def run_exclusive(
        self, key: PartitionId, change: Callable[[LocalReplica], Awaitable[None]]
    ) -> None:
        """Run a change of a replica after those of its role, and wait for it."""
        if not self._is_running:
            raise Stopping("the node is stopping")
        # A repair that is given up must not leave a log half changed.
        await asyncio.shield(self._run_later(key, change))

    def _run_later(
        self, key: PartitionId, change: Callable[[LocalReplica], Awaitable[None]]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            self._run_after(self._applying.get(key), key, change)
        )
        self._applying[key] = task
        self._followers_changed()
        task.add_done_callback(lambda done: self._applied(key, done))
        return task

    def _applied(self, key: PartitionId, task: asyncio.Task[None]) -> None:
        if self._applying.get(key) is task:
            del self._applying[key]
            self._followers_changed()
        if not task.cancelled():
            task.exception()  # Who waits for it gets it.

    def _followers_changed(self) -> None:
        """Tell the fetchers that a replica begins to change, and follows nobody, or has ended."""
        for fetcher in self._fetchers.values():
            fetcher.forget_followed()

    async def _run_after(
        self,
        before: asyncio.Task[None] | None,
        key: PartitionId,
        change: Callable[[LocalReplica], Awaitable[None]],
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        replica = self.replicas.get(key)
        if replica is None or not self._is_running:
            return
        try:
            await change(replica)
        finally:
            self._follow_leader(replica)

    async def _apply(self, replica: LocalReplica, *, is_new_life: bool) -> None:
        await self._take_role(replica, is_new_life=is_new_life)
        if replica.is_repaired:  # By another leader, for example.
            self.repair.wake(replica)

    async def _retry(self, replica: LocalReplica) -> None:
        # If this fails too, nothing is new for the repair, which waits longer after each attempt.
        if await self._take_role(replica) and replica.is_repaired:
            self.repair.wake(replica)

    async def _take_role(self, replica: LocalReplica, *, is_new_life: bool = False) -> bool:
        """Apply the state of a partition; return whether the replica has the role it asks for."""
        try:
            if is_new_life:
                await replica.end_life()
            await replica.apply(self.context.state.partitions.get(replica.key))
        except MillstreamError as error:
            self._role_failed(replica, str(error))
            return False
        except Exception:
            self.context.counters.internal_errors += 1
            if replica.key not in self._role_retries:
                logger.exception("%s: the replica cannot take its role", replica)
            self._role_failed(replica, "internal error")
            return False
        self._cancel_retry(replica.key)
        replica.role_problem = None
        return True

    def _role_failed(self, replica: LocalReplica, reason: str) -> None:
        problem = f"{replica}: the replica cannot take its role: {reason}"
        if problem != replica.role_problem:
            logger.error("%s", problem)
        replica.role_problem = problem
        self._cancel_retry(replica.key)
        self._role_retries[replica.key] = asyncio.get_running_loop().call_later(
            ROLE_RETRY_SECONDS, self._retry_later, replica.key
        )

    def _cancel_retry(self, key: PartitionId) -> None:
        if (retry := self._role_retries.pop(key, None)) is not None:
            retry.cancel()

    def _follow_leader(self, replica: LocalReplica) -> None:
        leader_id = replica.leader_id
        if leader_id in (NO_NODE, self.context.node_id):
            return
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            self._fetchers[leader_id] = ReplicaFetcher(
                leader_id,
                self.context,
                self._peers,
                lambda: self._following(leader_id),
                self.repair.wake,
            )
        else:
            fetcher.wake()

    def _following(self, leader_id: int) -> dict[PartitionId, LocalReplica]:
        return {
            key: replica
            for key, replica in self.replicas.items()
            if replica.leader_id == leader_id and key not in self._applying
        }

    # What the replicas had.

    async def _save_high_watermarks(self) -> None:
        while True:
            await asyncio.sleep(HIGH_WATERMARKS_SECONDS)
            try:
                await self._store_high_watermarks()
                await self._remove_leftovers()
            except Exception:  # It is tried again: without it, lost records are not noticed.
                logger.exception("high watermarks were not stored")

    async def _remove_leftovers(self) -> None:
        """Remove the files of replicas that are on other nodes now."""
        assert self._store is not None, "the manager was started"
        names = self._store.unsorted_names()
        for key, replica in list(self.replicas.items()):
            state = self.context.state.partitions.get(key)
            if replica.is_present or state is None or self.context.node_id in state.replicas:
                continue
            if LogName(replica.partition.topic, replica.partition.index) not in names:
                continue
            try:
                # Not only what the watch has brought: what the store says now.
                await self.context.proposer.refresh(key)
                await self.run_exclusive(key, LocalReplica.remove_files)
            except MillstreamError as error:
                logger.warning("%s: files of a former replica are kept: %s", replica, error)

    async def _store_high_watermarks(self) -> None:
        try:
            await self.context.high_watermarks.store(self._high_watermarks())
        except OSError as error:
            logger.warning("high watermarks were not stored: %s", error)

    def _high_watermarks(self) -> Mapping[PartitionId, CommittedEnd]:
        """Return what each replica of this node has, as far as that is known."""
        stored, committed = self.context.high_watermarks, dict[PartitionId, CommittedEnd]()
        for key, state in self.context.state.partitions.items():
            replica = self.replicas.get(key)
            if self.context.node_id not in state.replicas:
                continue
            if replica is None or replica.is_unproved or not replica.partition.is_open:
                if (known := stored.get(key)) is not None:
                    committed[key] = known
            else:
                committed[key] = replica.committed_end()
        return committed

    # Time.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for replica in list(self.replicas.values()):
                if replica.leader is not None:
                    self._tick_now(replica)

    def _tick_now(self, replica: LocalReplica) -> None:
        try:
            change = replica.tick()
        except MillstreamError as error:  # For example, its topic is just being deleted.
            logger.debug("%s: followers were not looked at: %s", replica, error)
            return
        except Exception:  # A bug in one partition must not end the ISR changes of all.
            self.context.counters.internal_errors += 1
            logger.exception("%s: followers were not looked at", replica)
            return
        if change is not None:
            task = asyncio.get_running_loop().create_task(change)
            self._ticks.add(task)
            task.add_done_callback(self._ticks.discard)

    # Problems.

    def problems(self) -> list[str]:
        """Return what is wrong with replicas of this node."""
        return [replica.problem for replica in self.replicas.values() if replica.problem]

    def small_isrs(self) -> list[str]:
        """Return the partitions led here of which too few replicas are in sync."""
        return [
            f"{replica}: replicas in sync are {list(replica.leader.state.in_sync_nodes)}, and"
            f" min.insync.replicas is {replica.leader.min_insync}"
            for replica in self.replicas.values()
            if replica.leader is not None
            and len(replica.leader.state.in_sync_nodes) < replica.leader.min_insync
        ]

    def behind(self) -> Iterator[ReplicaLag]:
        """Yield the replicas that follow this node, and live, and are not in sync."""
        for lag in self.lags():
            if not lag.is_in_sync and lag.node_id in self.context.state.nodes:
                yield lag

    def led_partitions(self) -> Iterator[LedPartition]:
        """Yield the partitions that this node leads."""
        for replica in self.replicas.values():
            if (leader := replica.leader) is not None:
                yield LedPartition(
                    replica.partition, len(leader.state.in_sync_nodes), len(leader.state.target)
                )

    def lags(self) -> Iterator[ReplicaLag]:
        """Yield how far the replicas are that follow this node."""
        now = self.context.clock.monotonic()
        for replica in self.replicas.values():
            leader = replica.leader
            if leader is None or not replica.partition.is_open:
                continue
            for node in leader.state.replicas:
                progress = leader.follower(node)
                if progress is None:
                    continue
                end = max(progress.end, leader.log_start)
                yield ReplicaLag(
                    partition=replica.partition,
                    node_id=node,
                    records=max(0, leader.written_end - end),
                    bytes=_bytes_from(replica.partition.log, end),
                    seconds=progress.lag(now),
                    is_in_sync=leader.state.is_counted(node),
                )

    def resyncs(self) -> Iterator[tuple[LocalReplica, ResyncProgress]]:
        """Yield the replicas that copy whole segments now."""
        for replica in self.replicas.values():
            if (progress := replica.resync) is not None:
                yield replica, progress


def _bytes_from(log: Log, offset: int) -> int:
    """Return about how many bytes a log has from an offset on: exact at the start of a segment."""
    total = 0
    for segment in reversed(log.segments):
        if segment.next_offset <= offset:
            break
        length = segment.next_offset - segment.base_offset
        behind = min(length, segment.next_offset - offset)
        total += segment.size * behind // max(1, length)
    return total

"""Makes replicas of this node whole again: `cluster.repair` decides, this class acts.

    every second: damaged logs, logs that are offline, replicas that asked for it
        ─► condition of the replica ─► next_repair ─► step, and the next one

One task works on a replica at a time. Steps that change the log in place run like changes of the
role, after what is being applied; copying segments takes long and runs beside it, and each copied
segment is made part of the log only if the role is still the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import RepairStep, ReplicaCondition, disowning, next_repair
from millstream.cluster.replication.local_replica import LocalReplica, ResyncProgress
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.segment_copier import ManifestPage, SegmentCopier
from millstream.cluster.resync import (
    OwnLog,
    ResyncKind,
    SegmentIdentity,
    last_step,
    resync_step,
)
from millstream.errors import (
    CorruptData,
    MillstreamError,
    ReplicaMismatch,
    Unavailable,
)
from millstream.storage.disk.executor import Executor
from millstream.storage.inspect.damaged_segments import (
    NO_DAMAGE,
    DamagedSegments,
    find_damaged_segments,
)
from millstream.storage.log import Log
from millstream.storage.replica.segment_resync import ManifestSegment
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the node looks for damaged replicas."""

RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 20.0
"""Time between attempts to repair one replica: well below the minute that a repair may take."""

STEPS_MAX = 32
"""Steps of one repair: a limit in case that a step does not help."""

Exclusive = Callable[[PartitionId, Callable[[LocalReplica], Awaitable[None]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ResyncPolicy:
    """How whole segments are copied."""

    bytes_min: int = 16 * 1024 * 1024
    """Finished segments below this size are fetched record by record."""
    bytes_per_second: int = 0
    """Limit of all copies of a node together; 0 is none."""
    copies_max: int = 2
    """Partitions that are copied at a time."""


@dataclass(slots=True)
class _Attempt:
    """When the next repair of a replica may be tried."""

    failures: int = 0
    next_at: float = 0.0


class ReplicaRepair:
    """Repairs the replicas of one node. Owned by one event loop."""

    def __init__(
        self,
        context: ReplicaContext,
        replicas: Mapping[PartitionId, LocalReplica],
        copier: SegmentCopier,
        *,
        policy: ResyncPolicy,
        background: Executor,
        run_exclusive: Exclusive,
    ) -> None:
        """`run_exclusive` runs a change of a replica after those of its role, and waits for it."""
        self._context = context
        self._replicas = replicas
        self._copier = copier
        self._policy = policy
        self._background = background
        self._run_exclusive = run_exclusive
        self._store: Store | None = None
        self._tasks: dict[PartitionId, asyncio.Task[None]] = {}
        self._attempts: dict[PartitionId, _Attempt] = {}
        self._copies = asyncio.Semaphore(policy.copies_max)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, store: Store) -> None:
        """Look for damaged replicas from now on."""
        self._store = store
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop. What was copied so far is kept for the next start."""
        tasks = [*self._tasks.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self, replica: LocalReplica) -> None:
        """Look at a replica now."""
        self._attempts.pop(replica.key, None)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                for replica in list(self._suspects()):
                    self._begin(replica)
            except Exception:  # A bug must not end all repairs.
                logger.exception("looking for damaged replicas failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()

    def _suspects(self) -> Iterator[LocalReplica]:
        """Yield the replicas that may need a repair."""
        assert self._store is not None
        health = self._store.health
        names = {str(name) for name in self._store.damage()}
        names |= {str(log.name) for log in health.offline()}
        for replica in self._replicas.values():
            if (
                replica.is_repaired
                or replica.was_damaged
                or replica.repair_problem is not None  # What was damaged may be deleted by now.
                or (replica.partition.is_open and replica.partition.was_damaged)
                or (names and str(replica.partition) in names)
            ):
                yield replica

    def _begin(self, replica: LocalReplica) -> None:
        key, now = replica.key, self._context.clock.monotonic()
        attempt = self._attempts.get(key)
        if key in self._tasks or (attempt is not None and now < attempt.next_at):
            return
        task = asyncio.get_running_loop().create_task(self._mend(replica))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _mend(self, replica: LocalReplica) -> None:
        """Do one step after the other until the replica is whole, or has to wait."""
        try:
            for _ in range(STEPS_MAX):
                damage = await self._damage_of(replica)
                step = next_repair(self._condition(replica, damage))
                if step is RepairStep.NOTHING:
                    if damage == NO_DAMAGE:
                        replica.note_repaired()
                    self._attempts.pop(replica.key, None)
                    replica.repair_problem = None
                    return
                logger.warning("%s: repair: %s", replica, step.value)
                await self._do(step, replica, damage)
                self._context.counters.repairs[step.value] += 1
                if step is RepairStep.HAND_OVER:
                    self._retry_later(replica)
                    return
            self._retry_later(replica)
        except MillstreamError as error:
            self._retry_later(replica)
            if replica.key in self._replicas:
                replica.repair_problem = f"{replica}: the replica is not repaired yet: {error}"
                logger.warning("%s", replica.repair_problem)
        except Exception:
            self._retry_later(replica)
            replica.repair_problem = f"{replica}: the replica is not repaired yet: internal error"
            logger.exception("%s", replica.repair_problem)
        finally:
            replica.resync = None

    def _retry_later(self, replica: LocalReplica) -> None:
        attempt = self._attempts.setdefault(replica.key, _Attempt())
        seconds = min(RETRY_SECONDS_MIN * 2**attempt.failures, RETRY_SECONDS_MAX)
        attempt.failures = min(attempt.failures + 1, 16)
        attempt.next_at = self._context.clock.monotonic() + seconds

    # Condition.

    async def _damage_of(self, replica: LocalReplica) -> DamagedSegments:
        partition = replica.partition
        if not partition.is_open or not partition.log.damage:
            return NO_DAMAGE
        return await self._background.run(partial(find_damaged_segments, partition.log))

    def _condition(self, replica: LocalReplica, damage: DamagedSegments) -> ReplicaCondition:
        context, partition = self._context, replica.partition
        state = context.state.partitions.get(replica.key)
        if state is None or set(state.replicas) <= {context.node_id}:  # Nobody could help.
            return ReplicaCondition(is_leader=False, has_leader=False, is_counted=False)
        if context.node_id not in state.replicas:
            return ReplicaCondition(is_leader=False, has_leader=False, is_counted=False)
        is_open = partition.is_open
        has_leader = state.leader != context.node_id and state.leader in context.state.nodes
        return ReplicaCondition(
            is_leader=replica.leader is not None,
            has_leader=has_leader,
            is_counted=state.is_counted(context.node_id) or not replica.is_disowned,
            is_end_lost=(
                replica.is_end_lost
                or damage.last_base is not None
                or not is_open
                or partition.log.offline is not None
            ),
            is_unproved=replica.is_unproved,
            is_damaged=bool(damage.ranges),
            was_damaged=replica.was_damaged or (is_open and partition.was_damaged),
            is_far_behind=replica.is_far_behind,
        )

    # Steps.

    async def _do(self, step: RepairStep, replica: LocalReplica, damage: DamagedSegments) -> None:
        if step is RepairStep.HAND_OVER:
            if not replica.hand_over():
                raise Unavailable("no other replica is in sync, to which it could be handed over")
        elif step is RepairStep.DISOWN:
            # From now on it does not fetch, until it is recovered or proved.
            replica.is_end_lost = replica.is_end_lost or not replica.is_unproved
            await disown(self._context, replica.key)
            replica.is_disowned = True
        elif step is RepairStep.RECOVER_END:
            await self._run_exclusive(
                replica.key, lambda current: current.recover_end(damage.last_base)
            )
        elif step is RepairStep.REOPEN:
            await self._run_exclusive(replica.key, lambda current: current.reopen())
        elif step is RepairStep.REPLACE:
            await self._replace(replica, damage.ranges)
        else:
            async with self._copies:
                await self._resync(replica, is_proved=step is RepairStep.COPY)

    def _check_role(self, replica: LocalReplica, leader_epoch: int) -> None:
        """Raise if the partition has another leader since a repair was begun."""
        state = self._context.state.partitions.get(replica.key)
        if (
            self._replicas.get(replica.key) is not replica
            or state is None
            or state.leader_epoch != leader_epoch
        ):
            raise Unavailable("the partition has another leader meanwhile")

    # Resync.

    async def _resync(self, replica: LocalReplica, *, is_proved: bool) -> None:
        """Copy the finished segments of the leader that this replica does not have."""
        state = self._context.state.partitions[replica.key]
        leader, epoch = state.leader, state.leader_epoch
        log = replica.partition.log
        first = log.replication.durable_offset if is_proved else log.replication.first_offset
        page = await self._copier.manifest(replica.key, leader, epoch, first)
        if is_proved and page.sealed_bytes < self._policy.bytes_min:
            replica.is_far_behind = False
            # Beyond the end of this replica in any case: if the leader has finished nothing behind
            # it, the next slice would be taken for the beginning of a segment to copy again.
            replica.slices_until = max(page.sealed_end, first + 1)
            return
        replica.resync = progress = ResyncProgress(leader, page.sealed_bytes)
        logger.info("%s: copying %d bytes from node %d", replica, page.sealed_bytes, leader)
        while await self._copy_page(replica, page, epoch, progress, is_proved=is_proved):
            # More may have been finished meanwhile.
            end = page.segments[-1].next_offset
            page = await self._copier.manifest(replica.key, leader, epoch, end)
            progress.bytes_total = max(
                progress.bytes_total, progress.bytes_done + page.sealed_bytes
            )
        self._check_role(replica, epoch)
        step = last_step(_own_log(log, is_proved=is_proved), page.sealed_end)
        if step.kind is ResyncKind.CUT:
            await self._cut(replica, epoch, step.offset)
        high_watermark, sealed_end = page.high_watermark, page.sealed_end

        async def finish(current: LocalReplica) -> None:
            self._check_role(current, epoch)
            await current.finish_resync(high_watermark, sealed_end)

        await self._run_exclusive(replica.key, finish)
        logger.info("%s: copied up to offset %d", replica, sealed_end)

    async def _copy_page(
        self,
        replica: LocalReplica,
        page: ManifestPage,
        epoch: int,
        progress: ResyncProgress,
        *,
        is_proved: bool,
    ) -> bool:
        """Copy the segments of a page; return whether there may be more."""
        log = replica.partition.log
        for wanted in page.segments:
            identity = _identity(wanted)
            self._check_role(replica, epoch)
            step = resync_step(_own_log(log, is_proved=is_proved), identity)
            if step.kind is ResyncKind.CUT:
                await self._cut(replica, epoch, step.offset)
                log = replica.partition.log
                step = resync_step(_own_log(log, is_proved=is_proved), identity)
            if step.kind in (ResyncKind.SLICES, ResyncKind.CUT):
                return False
            is_kept = step.kind is ResyncKind.KEEP
            if step.kind is ResyncKind.PROVE:
                resync = log.replication.resync
                is_kept = await self._background.run(partial(resync.is_intact, wanted))
            if is_kept:
                progress.bytes_done += wanted.size
            else:
                await self._copier.copy(replica, progress.source, epoch, wanted, progress)
        return bool(page.segments)

    async def _cut(self, replica: LocalReplica, epoch: int, offset: int) -> None:
        async def cut(current: LocalReplica) -> None:
            self._check_role(current, epoch)
            await current.cut_unproved(offset)

        await self._run_exclusive(replica.key, cut)

    # Replacing damaged segments.

    async def _replace(self, replica: LocalReplica, ranges: Iterable[tuple[int, int]]) -> None:
        for first, end in ranges:
            await self._replace_range(replica, first, end)
            logger.warning("%s: offsets %d to %d were repaired", replica, first, end - 1)

    async def _replace_range(self, replica: LocalReplica, first: int, end: int) -> None:
        """Copy the segments of a range of offsets from the first node that has them whole."""
        state = self._context.state.partitions[replica.key]
        sources = replica.repair_sources()
        error: MillstreamError = Unavailable("no other replica is in sync that could have them")
        for source in sources:
            try:
                await self._copy_range(replica, source, state.leader_epoch, first, end)
            except ReplicaMismatch as mismatch:
                # Its segments begin and end elsewhere, so all of them have to be copied.
                logger.warning("%s: node %d: %s", replica, source, mismatch)
                replica.is_unproved = True
                return
            except MillstreamError as failure:
                logger.warning("%s: node %d: %s", replica, source, failure)
                error = failure
            else:
                return
        raise error

    async def _copy_range(
        self, replica: LocalReplica, source: int, epoch: int, first: int, end: int
    ) -> None:
        log = replica.partition.log
        page = await self._copier.manifest(replica.key, source, epoch, first)
        wanted = [entry for entry in page.segments if entry.base_offset < end]
        reached = first
        for entry in wanted:
            if entry.base_offset > reached:
                break
            reached = max(reached, entry.next_offset)
        if reached < end:
            raise Unavailable(f"node {source} has no finished segment with offset {reached}")
        self._check_against_seals(log, wanted)
        progress = replica.resync = ResyncProgress(source, sum(entry.size for entry in wanted))
        for entry in wanted:
            self._check_role(replica, epoch)
            try:
                await self._copier.copy(replica, source, epoch, entry, progress)
            except ReplicaMismatch:
                if not any(s.base_offset == first for s in log.segments[:-1]):
                    raise
                # Without the damaged one in its place, smaller ones may fit.
                await log.replication.resync.quarantine(first)
                await self._copier.copy(replica, source, epoch, entry, progress)

    def _check_against_seals(self, log: Log, wanted: Iterable[ManifestSegment]) -> None:
        """Raise if another node claims that an uncleaned segment had other bytes than here."""
        own = {segment.base_offset: segment for segment in log.sealed}
        for entry in wanted:
            sealed = own.get(entry.base_offset)
            if sealed is None or sealed.generation or entry.generation:
                continue
            if not sealed.seal.digest or entry.is_equal(sealed.seal):
                continue
            if sealed.next_offset == entry.next_offset and sealed.size == entry.size:
                raise CorruptData(
                    f"segment {entry.base_offset} has another digest on the other node than its"
                    " seal here: one of them is not what the leader wrote"
                )


async def disown(context: ReplicaContext, key: PartitionId) -> None:
    """Say in the metadata store that this node's replica does not have every committed record.

    Raises `Unavailable` if that was not possible, or is not known.
    """
    state = context.state.partitions.get(key)
    if state is not None:
        await context.proposer.carry_out(key, disowning(state, context.node_id))


def _identity(wanted: ManifestSegment) -> SegmentIdentity:
    return SegmentIdentity(
        wanted.base_offset, wanted.next_offset, wanted.size, wanted.digest, wanted.generation
    )


def _own_log(log: Log, *, is_proved: bool) -> OwnLog:
    return OwnLog(
        log.start_offset,
        log.replication.durable_offset,
        tuple(
            SegmentIdentity(
                segment.base_offset,
                segment.next_offset,
                segment.size,
                segment.seal.digest,
                segment.generation,
            )
            for segment in log.sealed
        ),
        is_proved=is_proved,
    )

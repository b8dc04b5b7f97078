"""The state of a queue together with its log, its topic and its clock.

    one turn of the loop                                   durable
    state -> decision -> event -> applied, and appended ----> the request is answered

- A decision changes the state at once, so the next request sees it. It is answered when it is
  durable, and so is a request that changed nothing but depends on it.
- If the log refuses an event, all waiting requests fail, and the state is replayed from the log.
  Nothing that is lost had been answered.
- The monotonic clock restarts with each boot. Then every lease and delay starts again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.queues.decisions import drop_deleted_jobs
from millstream.broker.queues.events import (
    FirstDeliveries,
    JobsDelivered,
    NodeBooted,
    PartitionAdded,
    PartitionTruncated,
    QueueEvent,
    QueueStateSnapshot,
    ReceiptsInvalidated,
    decode_event,
    encode_event,
)
from millstream.broker.queues.job_source import JobSource, LocalJobs
from millstream.broker.queues.jobs import DEAD_LETTERING, DELAYED, EXPIRED, LEASED, RETURNED
from millstream.broker.queues.receipts import Receipts
from millstream.broker.queues.retention_holds import UnfinishedJobsHold
from millstream.broker.queues.snapshot import restore_state, snapshot_of
from millstream.broker.queues.state import QueueStateMachine
from millstream.broker.queues.values import QueueConfig, QueueCounts, QueueLimits
from millstream.broker.state.event_log import EventLog
from millstream.broker.topics.record_appender import AppendTimings
from millstream.broker.topics.topic import Topic
from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import Durability
from millstream.errors import MillstreamError, NotCoordinator, NotCoordinatorAnymore, again
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log

logger = logging.getLogger(__name__)

_TOLERANCE_MS = 0.001
"""Seconds times a thousand may be slightly below a whole number of milliseconds."""

_DEAD_LETTER_GENERATION = 0
"""No state has this generation, so a seal of a dead letter is never a valid receipt."""


class QueueStore:
    """The durable state of one queue. Owned by one event loop."""

    def __init__(
        self,
        topic: Topic,
        log: Log,
        *,
        secret: bytes,
        config: QueueConfig,
        clock: Clock,
        timers: Timers,
        background: Executor,
        limits: QueueLimits,
        draw_generation: Callable[[], int],
        is_clean: bool,
        source: JobSource | None = None,
    ) -> None:
        self.topic = topic
        self._source = source or LocalJobs()
        self.config = config
        self.state = QueueStateMachine(ended_max=limits.ended_max)
        self.receipts = Receipts(secret, topic.id.bytes, 0)
        self.seals = Receipts(secret, topic.id.bytes, _DEAD_LETTER_GENERATION)
        """Marks records of the dead-letter topic as coming from this queue."""
        self.refusal: MillstreamError | None = None
        """The reason why the queue cannot be used; `None` if it can."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called when there may be work: a job arrived, came back, or is exhausted."""
        self.on_failure: Callable[[MillstreamError], None] = lambda _: None
        """Called when requests that wait have to fail."""
        self._secret = secret
        self._clock = clock
        self._timers = timers
        self._background = background
        self.limits = limits
        self._events = EventLog(
            log, clock, on_failure=self._fail, events_bytes_min=limits.events_bytes_min
        )
        self._expired = 0
        self._removals: dict[int, tuple[int, object]] = {}
        self._read_at = 0.0
        """When the state was read, which has deliveries of before only."""
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._draw_generation = draw_generation
        self._must_renew = not is_clean
        """Whether deliveries that were answered may be lost, so that their numbers will be used
        again.
        """
        self._is_new_state = True
        self.changes = 0
        """How often the readable records of a partition changed."""
        self._changed: set[int] = set()
        """Partitions whose readable records changed since they were checked."""
        self._watches: dict[int, Callable[[], None]] = {}
        self._is_change_scheduled = False
        self._rebuilding: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_deposed = False
        """Whether another node coordinates the queue: its jobs are still held from retention."""

    # Opening and closing.

    async def open(self) -> None:
        """Replay the log, and open the partitions, except those that cannot be opened now."""
        await self._read()
        self.hold_partitions()
        await self.grow()

    async def grow(self) -> None:
        """Open the partitions that are not open, and add the new ones to the queue."""
        for partition in self.partitions:
            try:
                await partition.open()
            except MillstreamError as error:
                logger.warning(
                    "queue %s: partition %s cannot be opened: %s", self.topic.name, partition, error
                )
        self._recheck_all()
        self.current()

    def hold_partitions(self) -> None:
        """Keep unfinished jobs of all partitions from retention."""
        for partition in self.topic.partitions:
            if not isinstance(partition.retention_hold, UnfinishedJobsHold):
                partition.retention_hold = UnfinishedJobsHold(self, partition.index)
                partition.is_queue = True
        for source in self.partitions:
            if source.index not in self._watches:
                watch = partial(self._note_change, source.index)
                self._watches[source.index] = watch
                source.watch(watch)

    async def close(self) -> None:
        """Finish the events that were appended, and release the partitions."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for source in self.partitions:
            if (watch := self._watches.get(source.index)) is not None:
                source.unwatch(watch)
        for partition in [] if self._is_deposed else self.topic.partitions:
            partition.retention_hold = None
            partition.is_queue = False
        await self._events.close()
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])

    @property
    def partitions(self) -> Sequence[ReadablePartition]:
        """The partitions of its topic, to read jobs."""
        return self._source.partitions(self.topic)

    async def catch_up(self) -> bool:
        """Learn of all jobs that were appended before the call; return whether there are new ones.

        Raises if the leader of a partition cannot be asked: there may be jobs in it.
        """
        changes = self.changes
        for partition in self.partitions:
            await partition.catch_up()
        return self.changes != changes

    @property
    def log(self) -> Log:
        return self._events.log

    @property
    def snapshots(self) -> int:
        """Snapshots written since the queue was opened."""
        return self._events.snapshots

    @property
    def expired(self) -> int:
        """Leases that ran out since the queue was opened."""
        return self._expired + self.state.expired

    async def _read(self) -> None:
        state = await self._background.run(self._replay)
        self._expired += self.state.expired
        self.state = state
        self._removals.clear()
        self._read_at = self._clock.monotonic()
        self._is_new_state = True

    def _replay(self) -> QueueStateMachine:
        """Return the state that the log describes."""
        ended_max = self.limits.ended_max
        state = QueueStateMachine(ended_max=ended_max)
        for event in self._events.replay(decode_event, QueueStateSnapshot):
            if isinstance(event, QueueStateSnapshot):
                state = restore_state(event, ended_max=ended_max)
            else:
                state.apply(event)
        return state

    # Decisions.

    async def usable(self) -> QueueStateMachine:
        """Return the current state once it can be used; raises the reason if it cannot.

        The caller has to decide before it awaits anything else.
        """
        while self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)
        if self.refusal is not None:
            raise again(self.refusal)
        self.refresh()
        return self.state

    def current(self) -> QueueStateMachine | None:
        """Return the state as it is now, or `None` if it cannot be used at the moment."""
        if not self.is_usable:
            return None
        self.refresh()
        return self.state

    @property
    def is_usable(self) -> bool:
        """Whether the state matches the log, including the events in flight."""
        return self._rebuilding is None and self.refusal is None and not self._is_closed

    def commit(self, event: QueueEvent | None) -> asyncio.Future[None] | None:
        """Apply an event and append it to the log; pass the result to `wait` before answering.

        Without an event, the answer still has to wait for the events before: it may depend on them.
        """
        if event is None:
            return self._events.pending
        self.state.apply(event)
        ticket = self._events.append(encode_event(event))
        if self._events.is_snapshot_due:
            ticket = self.compact()
        self._arm()
        return ticket

    def compact(self) -> asyncio.Future[None]:
        """Write a snapshot; the events before it are deleted."""
        return self._events.append_snapshot(encode_event(snapshot_of(self.state)))

    async def wait(self, ticket: asyncio.Future[None] | None) -> AppendTimings:
        """Return when what was committed is durable; raises if it was refused."""
        if ticket is None:
            return AppendTimings()
        started = self._clock.monotonic()
        await asyncio.shield(ticket)
        commit = self._clock.monotonic() - started
        log = self._events.log
        is_synced = log.config.durability is Durability.FSYNC
        fsync = min(commit, log.counters.last_sync_seconds) if is_synced else 0.0
        return AppendTimings(commit_ms=round(commit * 1000, 3), fsync_ms=round(fsync * 1000, 3))

    def refuse(self, error: MillstreamError) -> None:
        """Fail all requests with `error` from now on, including those that wait."""
        self.refusal = error
        self.on_failure(error)

    def depose(self, error: MillstreamError) -> None:
        """Refuse everything, because this node is not the coordinator any more.

        Requests that wait for the log fail: only the next coordinator knows whether they took
        effect.
        """
        self._is_deposed = True
        self.refuse(error)
        self._events.fence(error)

    async def settle(self) -> None:
        """Return when all decisions made so far are durable."""
        await self.wait(self._events.pending)

    def _fail(self, error: MillstreamError) -> None:
        if self._is_closed:
            return
        logger.warning(
            "queue %s: events were not written, replaying the log: %s", self.topic.name, error
        )
        if isinstance(error, NotCoordinator | NotCoordinatorAnymore):
            self.refuse(error)  # The log has another leader: what this node reads may be outdated.
            return
        self._must_renew |= self.log.config.durability is not Durability.FSYNC
        if self._rebuilding is None:
            self._rebuilding = asyncio.get_running_loop().create_task(self._rebuild())
        self.on_failure(error)

    async def _rebuild(self) -> None:
        try:
            await self._read()
        except MillstreamError as error:
            self.refusal = error
        finally:
            self._rebuilding = None
        if self.refusal is None and not self._is_closed:
            self._arm()

    # Clock and topic.

    def now_ms(self) -> int:
        """Return the time by which leases run out."""
        return int(self._clock.monotonic() * 1000 + _TOLERANCE_MS)

    def begin_ms(self) -> int:
        """Return the time at which a lease starts, rounded up: none is shorter than requested."""
        return math.ceil(self._clock.monotonic() * 1000 - _TOLERANCE_MS)

    def refresh(self) -> None:
        """Bring the state up to date with the clock and the topic."""
        if self._is_new_state:
            self._begin()
        while self._changed:
            partition = self.partitions[self._changed.pop()]
            if partition.is_open:
                self._check_partition(partition)
        self.state.advance(self.now_ms(), self.config.deliveries_max)

    def _begin(self) -> None:
        self._is_new_state = False
        self._recheck_all()
        state, boot_id = self.state, self._clock.boot_id()
        if self._must_renew or not state.partitions:
            self.commit(ReceiptsInvalidated(self._draw_generation()))
            self._must_renew = False
        self._read_generation()
        if not boot_id or boot_id != state.boot_id:
            self.commit(NodeBooted(boot_id, self.begin_ms()))
        self._arm()

    def _read_generation(self) -> None:
        self.receipts = Receipts(self._secret, self.topic.id.bytes, self.state.generation)

    def _leader_end(self, partition: ReadablePartition) -> int | None:
        return self._source.leader_end(partition, self._read_at)

    def _check_partition(self, partition: ReadablePartition) -> None:
        """Commit what happened to a partition: it is new, lost its end, or records were deleted."""
        removals = partition.reader.removals
        index, start_offset = partition.index, removals[0]
        known = self._removals.get(index)
        if known is not None and known[0] == start_offset and known[1] is removals[1]:
            return
        self._removals[index] = removals
        partition_jobs = self.state.partitions.get(index)
        if partition_jobs is None:
            self.commit(PartitionAdded(index, start_offset))
            return
        end_offset = self._leader_end(partition) if known is None else None
        if end_offset is not None and partition_jobs.frontier > end_offset:
            self.commit(PartitionTruncated(index, end_offset))
            self.commit(ReceiptsInvalidated(self._draw_generation()))
            self._read_generation()
        self.commit(
            drop_deleted_jobs(
                self.state, {index: partition.reader.deleted_among(partition_jobs.jobs)}
            )
        )
        if partition_jobs.frontier < start_offset:
            skipped = start_offset - partition_jobs.frontier
            self.commit(
                JobsDelivered(0, 0, [FirstDeliveries(index, [], start_offset, skipped)], [])
            )

    def _recheck_all(self) -> None:
        self._changed.update(range(len(self.partitions)))

    def _note_change(self, index: int) -> None:
        """Remember that the records of a partition changed. Called in the middle of its commit."""
        self.changes += 1
        self._changed.add(index)
        if not self._is_change_scheduled and not self._is_closed:
            self._is_change_scheduled = True
            asyncio.get_running_loop().call_soon(self._on_change)

    def _on_change(self) -> None:
        self._is_change_scheduled = False
        if self.current() is not None:
            self.on_wake()

    def _arm(self) -> None:
        """Set the timer to the next deadline."""
        due_ms = self.state.next_due_ms
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        seconds = max(0.001, due_ms / 1000 - self._clock.monotonic())
        self._timer = self._timers.call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self.current() is not None:
            self._arm()
            self.on_wake()

    # Counts.

    def counts(self) -> QueueCounts:
        """Count the jobs of each state."""
        self.current()
        state = self.state
        kinds = state.kinds
        fresh = sum(map(self._fresh, self.partitions))
        ready = kinds[EXPIRED] + kinds[RETURNED] + kinds[DEAD_LETTERING] + fresh
        leased, delayed = kinds[LEASED], kinds[DELAYED]
        return QueueCounts(
            enqueued=state.acked + state.dead + ready + leased + delayed,
            ready=ready,
            leased=leased,
            delayed=delayed,
            acked=state.acked,
            dead=state.dead,
            delivered=state.delivered,
            removed=state.removed,
            damaged=state.damaged,
        )

    def _fresh(self, partition: ReadablePartition) -> int:
        partition_jobs = self.state.partitions.get(partition.index)
        if not partition.is_open or partition_jobs is None:
            return 0
        first, end = (
            max(partition_jobs.frontier, partition.log_start_offset),
            partition.last_stable_offset,
        )
        return max(0, end - first - partition.reader.count_deleted(first, end))

"""The state of a queue with its log, its topic and its clock.

    decide, in one turn of the loop         durable
    look at the state -> event -> apply -> submitted ----> whoever asked is answered

- What was decided shows in the state at once, so that the next request goes by it; nobody hears of
  it before it is durable, and neither of what it would be repeated for.
- Where the log refuses an event, all who wait are told why, and the state is read again from the
  log. Nothing of what is lost had been answered.
- A boot has its own clock. In another one, each lease and delay begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

from millstream.broker.partition.partition import Partition
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
from millstream.errors import MillstreamError
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log

logger = logging.getLogger(__name__)

_TOLERANCE_MS = 0.001
"""Seconds times a thousand may come out a little below a whole number."""

_DEAD_LETTER_GENERATION = 0
"""No state has it: what seals dead letters seals no receipt."""


class QueueStore:
    """What is known of the jobs of one queue, and made durable. Lives on one event loop."""

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
    ) -> None:
        self.topic = topic
        self.config = config
        self.state = QueueStateMachine(ended_max=limits.ended_max)
        self.receipts = Receipts(secret, topic.id.bytes, 0)
        self.seals = Receipts(secret, topic.id.bytes, _DEAD_LETTER_GENERATION)
        """What shows that a record of the dead-letter topic came from here."""
        self.refusal: MillstreamError | None = None
        """Why the queue cannot be used, if it cannot."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called when there may be something to do: a job came, came back, or is doomed."""
        self.on_failure: Callable[[MillstreamError], None] = lambda _: None
        """Called when events were refused."""
        self._secret = secret
        self._clock = clock
        self._timers = timers
        self._background = background
        self.limits = limits
        self._events = EventLog(
            log, clock, on_failure=self._fail, events_bytes_min=limits.events_bytes_min
        )
        self._expired = 0
        self._shapes: dict[int, tuple[int, object]] = {}
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._draw_generation = draw_generation
        self._must_renew = not is_clean
        """Whether deliveries that were answered may be lost, so that their numbers come again."""
        self._is_new_state = True
        self._changed: set[int] = set()
        """Partitions in which more or less can be read since they were looked at."""
        self._watches: dict[int, Callable[[], None]] = {}
        self._is_noted = False
        self._rebuilding: asyncio.Task[None] | None = None
        self._is_closed = False

    # Opening and closing.

    async def open(self) -> None:
        """Read the log, and open the partitions; one that cannot be opened is left out for now."""
        await self._read()
        self.keep_partitions()
        await self.grow()

    async def grow(self) -> None:
        """Open the partitions that are not open, and let the queue begin in those that are new."""
        for partition in self.topic.partitions:
            try:
                await partition.open()
            except MillstreamError as error:
                logger.warning(
                    "queue %s: %s cannot be opened: %s", self.topic.name, partition, error
                )
        self._look_at_all()
        if self.is_usable:
            self.refresh()

    def keep_partitions(self) -> None:
        """Keep retention from jobs that are not done, in all partitions that there are now."""
        for partition in self.topic.partitions:
            if partition.retention_hold is None:
                partition.retention_hold = UnfinishedJobsHold(self, partition.index)
            if partition.index not in self._watches:
                watch = partial(self._note_change, partition.index)
                self._watches[partition.index] = watch
                partition.watch(watch)

    async def close(self) -> None:
        """Finish what was submitted, and let go of the partitions."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for partition in self.topic.partitions:
            if (watch := self._watches.get(partition.index)) is not None:
                partition.unwatch(watch)
            partition.retention_hold = None
        await self._events.close()
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])

    @property
    def log(self) -> Log:
        """The log of the events."""
        return self._events.log

    @property
    def snapshots(self) -> int:
        """How many snapshots were written since the queue was opened."""
        return self._events.snapshots

    @property
    def expired(self) -> int:
        """How many leases ran out since the queue was opened."""
        return self._expired + self.state.expired

    async def _read(self) -> None:
        state = await self._background.run(self._replay)
        self._expired += self.state.expired
        self.state = state
        self._shapes.clear()
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

    # Deciding.

    async def usable(self) -> QueueStateMachine:
        """Return the state as it is now, once it can be used; raises why it cannot.

        What is decided on it has to be decided before anything else is waited for.
        """
        while self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)
        if self.refusal is not None:
            raise self.refusal
        self.refresh()
        return self.state

    @property
    def is_usable(self) -> bool:
        """Whether the state is what the log says, or is about to say."""
        return self._rebuilding is None and self.refusal is None and not self._is_closed

    def commit(self, event: QueueEvent | None) -> asyncio.Future[None] | None:
        """Apply an event and have it written; `wait` for what this returns, before any answer.

        Without one, what was committed before has to be waited for all the same: the answer may
        rest on it.
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
        """Write all that is known once more, and let go of the events before."""
        return self._events.append_snapshot(encode_event(snapshot_of(self.state)))

    async def wait(self, ticket: asyncio.Future[None] | None) -> AppendTimings:
        """Return when what was committed is durable; raises where it is not."""
        if ticket is None:
            return AppendTimings()
        begun = self._clock.monotonic()
        await asyncio.shield(ticket)
        commit = self._clock.monotonic() - begun
        log = self._events.log
        is_synced = log.config.durability is Durability.FSYNC
        fsync = min(commit, log.counters.last_sync_seconds) if is_synced else 0.0
        return AppendTimings(commit_ms=round(commit * 1000, 3), fsync_ms=round(fsync * 1000, 3))

    async def settle(self) -> None:
        """Return when all that was decided up to now is durable."""
        await self.wait(self._events.pending)

    def _fail(self, error: MillstreamError) -> None:
        if self._is_closed:
            return
        logger.warning("queue %s: events were refused: %s", self.topic.name, error)
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

    # What time and the topic bring.

    def now_ms(self) -> int:
        """The time by which leases run out."""
        return int(self._clock.monotonic() * 1000 + _TOLERANCE_MS)

    def begin_ms(self) -> int:
        """The time from which a lease counts: never earlier than it is, so none is too short."""
        return math.ceil(self._clock.monotonic() * 1000 - _TOLERANCE_MS)

    def refresh(self) -> None:
        """Take in what time and the topic have brought since."""
        if self._is_new_state:
            self._begin()
        while self._changed:
            partition = self.topic.partitions[self._changed.pop()]
            if partition.is_open:
                self._look_at(partition)
        self.state.advance(self.now_ms(), self.config.deliveries_max)

    def _begin(self) -> None:
        self._is_new_state = False
        self._look_at_all()
        state, boot_id = self.state, self._clock.boot_id()
        if self._must_renew or not state.lanes:
            self.commit(ReceiptsInvalidated(self._draw_generation()))
            self._must_renew = False
        self._read_generation()
        if not boot_id or boot_id != state.boot_id:
            self.commit(NodeBooted(boot_id, self.begin_ms()))
        self._arm()

    def _read_generation(self) -> None:
        self.receipts = Receipts(self._secret, self.topic.id.bytes, self.state.generation)

    def _look_at(self, partition: Partition) -> None:
        """Find out what became of the jobs of a partition: it is new, or some were deleted."""
        shape = partition.reader.removals
        index, start_offset = partition.index, shape[0]
        known = self._shapes.get(index)
        if known is not None and known[0] == start_offset and known[1] is shape[1]:
            return
        self._shapes[index] = shape
        lane = self.state.lanes.get(index)
        if lane is None:
            self.commit(PartitionAdded(index, start_offset))
            return
        if (
            known is None
            and lane.frontier > partition.high_watermark
            and not partition.appender.offline
        ):
            self.commit(PartitionTruncated(index, partition.high_watermark))
            self.commit(ReceiptsInvalidated(self._draw_generation()))
            self._read_generation()
        self.commit(
            drop_deleted_jobs(self.state, {index: partition.reader.deleted_among(lane.jobs)})
        )
        if lane.frontier < start_offset:
            gone = start_offset - lane.frontier
            self.commit(JobsDelivered(0, 0, [FirstDeliveries(index, [], start_offset, gone)], []))

    def _look_at_all(self) -> None:
        self._changed.update(range(len(self.topic.partitions)))

    def _note_change(self, index: int) -> None:
        """Take note, in the middle of a commit, that more or less can be read of a partition."""
        self._changed.add(index)
        if not self._is_noted and not self._is_closed:
            self._is_noted = True
            asyncio.get_running_loop().call_soon(self._on_change)

    def _on_change(self) -> None:
        self._is_noted = False
        if self.is_usable:
            self.refresh()
            self.on_wake()

    def _arm(self) -> None:
        """Have the timer go off when time changes something next."""
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
        if self.is_usable:
            self.refresh()
            self._arm()
            self.on_wake()

    # What it knows.

    def counts(self) -> QueueCounts:
        """Count all jobs."""
        if self.is_usable:
            self.refresh()
        state = self.state
        kinds = state.kinds
        fresh = sum(map(self._fresh, self.topic.partitions))
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
        )

    def _fresh(self, partition: Partition) -> int:
        lane = self.state.lanes.get(partition.index)
        if not partition.is_open or lane is None:
            return 0
        first, end = max(lane.frontier, partition.log_start_offset), partition.last_stable_offset
        return max(0, end - first - partition.reader.count_deleted(first, end))

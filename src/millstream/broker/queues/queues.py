"""The queues of a node.

Metadata has one row for each queue; its events are stored in an internal partition of their own,
beside those of groups and transactions. The node that leads it coordinates the queue. Rules:

1. Creating a queue creates its log, with the offsets at which it starts, and then its row. The
   queue exists once the row does.
2. Deleting a queue deletes the row and then the log. Its topic stays.
3. A queue belongs to a topic by the topic's id. Deleting the topic, through any server, deletes the
   queue; a topic created later under the same name is not a queue. Except a topic of class
   `ephemeral`, which is created again at each start: its queue is created again with it.
4. If the log of a queue is damaged, the queue is refused with the reason, and the rest of the node
   is not affected.
5. In a cluster, every node knows all rows, and follows the changes that others make. It opens the
   queues that it coordinates, and refuses the others with `NotCoordinator`. When it is deposed,
   everything that waits fails, and nothing is written any more. A queue exists once its row does;
   its coordinator adds the partitions of the topic to it.
6. Every node keeps unfinished jobs from retention, because it may lead partitions with jobs of any
   queue: it deletes what the coordinator has told it to be finished, and until then nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec

from millstream.broker.access.caller import Caller
from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.loop_threads import LoopThreads
from millstream.broker.queues.job_source import HoldReports, JobSource
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.queue_caps import QUEUES_GUARD_KEY, QueueCaps
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.retention_holds import HoldEverything, ReportedHold
from millstream.broker.queues.row import QUEUES_PREFIX, QueueRow, decode_row, encode_row, queue_key
from millstream.broker.queues.values import QueueChanges, QueueConfig, QueueLimits, apply_changes
from millstream.broker.state.coordinators import LOAD_RETRY_SECONDS
from millstream.broker.state.internal_partitions import (
    LONE_EPOCH,
    QUEUE_PREFIX,
    InternalPartition,
    InternalPartitions,
)
from millstream.broker.state.state_writer import SEGMENT_BYTES_MAX
from millstream.broker.topics.configs.topic_config import COMPACT, TopicConfig
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent
from millstream.broker.topics.topic_caps import owner_of
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import BrokerConfig, Durability, LogConfig
from millstream.errors import (
    Busy,
    CoordinatorLoading,
    InvalidConfig,
    InvalidRequest,
    MillstreamError,
    NotCoordinator,
    Stopping,
    UnknownQueue,
    again,
)
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    Metadata,
    MetadataChange,
    Watch,
)
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log

logger = logging.getLogger(__name__)

QUEUES_MAX = 1_000
"""Each queue has its own log, and keeps its partitions open."""

HOLD_REPORT_SECONDS = 10.0
"""How often the leaders of a queue's partitions are told which jobs are finished."""

SECRET_SIZE = 32


async def hold_queue_topics(metadata: Metadata, topics: Topics) -> None:
    """Keep the jobs of all queues from retention until the queues are open.

    Called before anything opens a partition: the limits of a topic apply from then on, and until
    its queue is open it is not known which jobs are finished.
    """
    for entry in await metadata.list(QUEUES_PREFIX):
        row = decode_row(entry.key, entry.value)
        topic = topics.find(row.name)
        if topic is not None and topic.id == row.topic_id:
            for partition in topic.partitions:
                partition.retention_hold = HoldEverything()


class WorkQueues:
    """All queues of a node. Owned by one event loop."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: InternalPartitions,
        log_config: LogConfig,
        metadata: Metadata,
        config: BrokerConfig | None = None,
        appends: RecordAppender,
        clock: Clock,
        timers: Timers,
        background: Executor | None = None,
        limits: QueueLimits | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        is_shared: bool = False,
        source: JobSource | None = None,
        hold_reports: HoldReports | None = None,
    ) -> None:
        """Make the queues.

        `is_shared` if other nodes of a cluster change them too; then `source` reads jobs of
        partitions that others lead, and `hold_reports` tells them which are finished.
        """
        self._topics = topics
        self._partitions = partitions
        self._log_config = log_config
        self._metadata = metadata
        self._caps = QueueCaps(config or BrokerConfig(), metadata)
        self._is_shared = is_shared
        self._source = source
        self._hold_reports = hold_reports
        self._appends = appends
        self._clock = clock
        self._timers = timers
        self._background = background or LoopThreads()
        self._limits = limits or QueueLimits()
        self._draw = draw
        self._queues: dict[str, WorkQueue] = {}
        self._refused: dict[str, MillstreamError] = {}
        """Queues that could not be opened, and why."""
        self._rows: dict[str, QueueRow] = {}
        self._revisions: dict[str, int] = {}
        """Revisions of the rows."""
        self._led: dict[str, int] = {}
        """Names of the logs that this node leads, with the epoch of each."""
        self._watch: Watch | None = None
        self._reporting: Timer | None = None
        self._reported: dict[str, dict[int, int]] = {}
        """The offsets that were reported last, by queue."""
        self._creating: set[str] = set()
        self._locks = KeyedLocks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] = lambda: None

    # Opening and closing.

    async def open(self) -> None:
        """Open all queues that this node coordinates, and delete the logs of deleted queues."""
        if self._is_shared:
            self._watch = self._metadata.watch(QUEUES_PREFIX, self._on_row_change)
        self._unwatch = self._topics.on_change(self._on_topic_change)
        self._topics.vetoes.append(self._veto)
        for entry in await self._metadata.list(QUEUES_PREFIX):
            row = decode_row(entry.key, entry.value)
            if self._is_shared:
                await self._load_shared(row, entry.revision)
                continue
            topic = self._topics.find(row.name)
            if topic is not None and topic.id != row.topic_id:
                topic = await self._follow_ephemeral_topic(row, topic)
                row = self._rows.get(row.name, row)
            if topic is None:
                await self._metadata.transact(deletes=[entry.key])
                continue
            self._follow(row, entry.revision)
            await self._finish_tasks()
        if self._is_shared:
            self._schedule_reports()
        else:
            await self._remove_logs()

    async def _load_shared(self, row: QueueRow, revision: int) -> None:
        """Follow a queue, or delete its row if its topic was deleted."""
        if await self._topics.is_deleted(row.name, row.topic_id):
            key = queue_key(row.topic_id)
            await self._metadata.transact(compares=[Compare(key, revision)], deletes=[key])
            return
        if revision > self._revisions.get(row.name, 0):
            self._follow(row, revision)

    def _follow(self, row: QueueRow, revision: int) -> None:
        """Take note of a queue, and open it whenever this node leads its log."""
        self._rows[row.name] = row
        self._revisions[row.name] = revision
        self._hold(row)
        self._partitions.follow(log_name(row.topic_id), self)

    def _hold(self, row: QueueRow) -> None:
        """Keep the jobs of a queue that another node coordinates from retention."""
        topic = self._topics.find(row.name)
        if topic is None or topic.id != row.topic_id or row.name in self._queues:
            return
        for partition in topic.partitions:
            partition.is_queue = True
            if not self._is_shared:
                partition.retention_hold = HoldEverything()
            elif not isinstance(partition.retention_hold, ReportedHold):
                partition.retention_hold = ReportedHold()

    async def _finish_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _follow_ephemeral_topic(self, row: QueueRow, topic: Topic) -> Topic | None:
        """Bind a queue to its topic of class `ephemeral`, which was created again at this start."""
        if not row.is_ephemeral or topic.config.durability is not Durability.EPHEMERAL:
            return None
        moved = msgspec.structs.replace(row, topic_id=topic.id, secret=self._draw(SECRET_SIZE))
        puts = {queue_key(moved.topic_id): encode_row(moved)}
        await self._metadata.transact(puts=puts, deletes=[queue_key(row.topic_id)])
        self._rows[row.name] = moved
        return topic

    async def _remove_logs(self) -> None:
        kept = {log_name(row.topic_id) for row in self._rows.values()}
        for name in set(self._partitions.names(QUEUE_PREFIX)) - kept:
            await self._partitions.delete(name)

    # Elections.

    def elected(self, partition: InternalPartition, epoch: int) -> None:
        """Open the queue of a log that this node leads now. See `LeadershipListener`."""
        self.deposed(partition)
        self._led[partition.name] = epoch
        if (row := self._row_of(partition.name)) is not None:
            self._start(self._open_if_led(row.name), row.name)

    def deposed(self, partition: InternalPartition) -> None:
        """Close the queue of a log that this node does not lead any more."""
        self._led.pop(partition.name, None)
        row = self._row_of(partition.name)
        if row is not None:
            self._refused.pop(row.name, None)
        queue = None if row is None else self._queues.pop(row.name, None)
        if row is None or queue is None:
            return
        self._reported.pop(row.name, None)
        error = self._not_coordinator(row)
        queue.store.depose(error)
        self._start(self._close_deposed(queue, row, error), row.name)

    async def _close_deposed(self, queue: WorkQueue, row: QueueRow, error: MillstreamError) -> None:
        await queue.close(error)
        self._hold(row)

    def _row_of(self, name: str) -> QueueRow | None:
        return next((row for row in self._rows.values() if log_name(row.topic_id) == name), None)

    async def _open_if_led(self, name: str) -> None:
        row, topic = self._rows.get(name), self._topics.find(name)
        if row is None or topic is None or topic.id != row.topic_id or name in self._queues:
            return
        epoch = self._led.get(log_name(row.topic_id))
        if epoch is None:
            return
        await self._open(topic, row)
        if self._led.get(log_name(row.topic_id)) != epoch:  # It was deposed meanwhile.
            if (queue := self._queues.pop(name, None)) is not None:
                error = self._not_coordinator(row)
                queue.store.depose(error)
                await self._close_deposed(queue, row, error)
            self._refused.pop(name, None)

    def _not_coordinator(self, row: QueueRow) -> NotCoordinator:
        leader = self._partitions.leader_of(InternalPartition(log_name(row.topic_id)))
        known = "no node does now" if leader < 0 else f"node {leader} does"
        return NotCoordinator(
            f"this node does not coordinate queue {row.name}, {known}", coordinator=max(leader, -1)
        )

    async def _open(self, topic: Topic, row: QueueRow) -> None:
        self._refused.pop(row.name, None)
        try:
            self._queues[row.name] = await self._make(topic, row)
            await self._mark(row.name, is_clean=False)
        except MillstreamError as error:
            self._refused[row.name] = error
            if (queue := self._queues.pop(row.name, None)) is not None:
                await queue.close(error)
            self._hold(row)
            logger.error("queue %s cannot be opened: %s", row.name, error)  # noqa: TRY400
            if self._is_shared:
                self._timers.call_later(
                    LOAD_RETRY_SECONDS, lambda: self._start(self._open_if_led(row.name), row.name)
                )

    async def _make(self, topic: Topic, row: QueueRow) -> WorkQueue:
        queue_store = QueueStore(
            topic,
            await self._log(topic),
            secret=row.secret,
            config=row.config,
            clock=self._clock,
            timers=self._timers,
            background=self._background,
            limits=self._limits,
            draw_generation=lambda: int.from_bytes(self._draw(8)) or 1,
            is_clean=row.is_clean or not _is_weak(topic),
            source=self._source,
        )
        queue = WorkQueue(
            queue_store, topics=self._topics, appends=self._appends, timers=self._timers
        )
        await queue.open()
        return queue

    async def _log(self, topic: Topic) -> Log:
        base = self._log_config
        config = replace(
            base,
            durability=topic.config.durability,
            segment_bytes_max=min(SEGMENT_BYTES_MAX, base.segment_bytes_max),
        )
        return await self._partitions.open_log(InternalPartition(log_name(topic.id)), config)

    async def close(self) -> None:
        """Finish changes in progress, and close all queues."""
        if self._watch is not None:
            self._watch.cancel()
        if self._reporting is not None:
            self._reporting.cancel()
        for row in self._rows.values():
            self._partitions.unfollow(log_name(row.topic_id))
        await self._locks.close()
        self._unwatch()
        await self._finish_tasks()
        await asyncio.gather(*map(self._close, self._queues.values()))

    async def _close(self, queue: WorkQueue) -> None:
        await queue.close(Stopping("the node is stopping"))
        if queue.store.log.offline is None:
            await self._mark(queue.name, is_clean=True)

    async def _mark(self, name: str, *, is_clean: bool) -> None:
        """Store whether the next start can trust the state of a queue."""
        row = self._rows[name]
        if row.is_clean == is_clean or not _is_weak(self._queues[name].topic):
            return
        await self._put_row(msgspec.structs.replace(row, is_clean=is_clean))

    async def _put_row(self, row: QueueRow) -> None:
        """Store a changed row; raises `Busy` if another node has changed it meanwhile."""
        key = queue_key(row.topic_id)
        compares = [Compare(key, self._revisions[row.name])] if self._is_shared else []
        revision = await self._metadata.transact(compares=compares, puts={key: encode_row(row)})
        if revision is None:
            raise Busy(f"queue {row.name} was changed concurrently")
        self._rows[row.name], self._revisions[row.name] = row, revision

    # Lookup.

    def get(self, name: str) -> WorkQueue:
        """Return a queue; raises `UnknownQueue`, or the reason why it cannot be used.

        `NotCoordinator` says which node to ask instead.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise again(self._refusal_of(name))
        if queue.store.refusal is not None:
            raise again(queue.store.refusal)
        self._partitions.check_lease()
        return queue

    def _refusal_of(self, name: str) -> MillstreamError:
        if (error := self._refused.get(name)) is not None:
            return error
        row = self._rows.get(name)
        if row is None:
            return UnknownQueue(f"queue {name[:300]!r} does not exist")
        if log_name(row.topic_id) in self._led:
            return CoordinatorLoading(f"queue {name} is being loaded")
        return self._not_coordinator(row)

    def knows(self, name: str) -> bool:
        """Return whether there is a queue of this name, whichever node coordinates it."""
        return name in self._rows

    async def appears(self, name: str) -> bool:
        """Return whether there is a queue of this name, also one that others have just created."""
        if name in self._rows or not self._is_shared:
            return name in self._rows
        topic = self._topics.find(name)
        entry = None if topic is None else await self._metadata.get(queue_key(topic.id))
        if entry is None or entry.revision <= self._revisions.get(name, 0):
            return name in self._rows
        change = MetadataChange(entry.key, entry.value, entry.revision)
        await self._locks.run(name, self._apply(name, change))
        return name in self._rows

    def names(self) -> list[str]:
        """Return the names of all queues, whichever nodes coordinate them, sorted."""
        return sorted(self._rows)

    def coordinators(self) -> dict[str, int]:
        """Return the node that coordinates each queue, by name; -1 if none does now."""
        leader_of = self._partitions.leader_of
        return {
            name: leader_of(InternalPartition(log_name(row.topic_id)))
            for name, row in self._rows.items()
        }

    def all(self) -> list[WorkQueue]:
        """Return all usable queues that this node coordinates, sorted by name."""
        return [
            self._queues[name]
            for name in sorted(self._queues)
            if self._queues[name].store.refusal is None
        ]

    def problems(self) -> list[str]:
        """Describe the queues that cannot be used."""
        refused = dict(self._refused)
        for name, queue in self._queues.items():
            if queue.store.refusal is not None:
                refused[name] = queue.store.refusal
        return [f"queue {name}: {error}" for name, error in sorted(refused.items())]

    # Changes.

    async def put(
        self, name: str, changes: QueueChanges, creator: Caller | None = None
    ) -> tuple[WorkQueue, bool]:
        """Create a queue or change its settings; returns it, and whether it is new.

        Creates the topic of that name if there is none. Records that the topic already has become
        jobs. Durable when this returns.
        """
        return await self._locks.run(name, self._put(name, changes, creator))

    async def _put(
        self, name: str, changes: QueueChanges, creator: Caller | None
    ) -> tuple[WorkQueue, bool]:
        row = self._rows.get(name)
        config = apply_changes(name, row.config if row else None, changes)
        if row is not None:
            queue = self.get(name)
            if config != row.config:
                await self._put_row(msgspec.structs.replace(row, config=config))
                queue.reconfigure(config)
            return queue, False
        if len(self._rows) >= QUEUES_MAX:
            raise InvalidRequest(
                f"a node can have at most {QUEUES_MAX} queues, and has {len(self._rows)}"
            )
        owner = owner_of(creator)
        if creator is not None:
            await self._caps.check(name, owner)  # Before there is a topic for nothing.
        self._creating.add(name)
        try:
            topic = await self._topics.ensure(name, creator=creator)
            self._check(name, topic.config)
            row = self._new_row(topic, config, owner)
            create = self._create_shared if self._is_shared else self._create
            return await create(topic, row, is_capped=creator is not None), True
        finally:
            self._creating.discard(name)

    def _new_row(self, topic: Topic, config: QueueConfig, owner: str | None) -> QueueRow:
        return QueueRow(
            topic_id=topic.id,
            name=topic.name,
            config=config,
            secret=self._draw(SECRET_SIZE),
            is_ephemeral=topic.config.durability is Durability.EPHEMERAL,
            owner=owner,
        )

    async def _put_new(self, row: QueueRow, *, is_capped: bool) -> int | None:
        """Store the row of a new queue; None if there is one already. Raises `CapExceeded`."""
        key = queue_key(row.topic_id)
        compares = [Compare(key, ABSENT)] if self._is_shared else []
        puts = {key: encode_row(row)}
        if not is_capped or not self._caps.concern(row.owner):
            return await self._metadata.transact(compares=compares, puts=puts)
        while True:
            guard = await self._caps.check(row.name, row.owner)
            revision = await self._metadata.transact(
                compares=[*compares, *guard], puts={**puts, QUEUES_GUARD_KEY: b"{}"}
            )
            if revision is not None or await self._metadata.get(key) is not None:
                return revision

    async def _create_shared(self, topic: Topic, row: QueueRow, *, is_capped: bool) -> WorkQueue:
        """Create a queue in a cluster.

        Raises `NotCoordinator` if another node coordinates it, which the same request then finds
        created.
        """
        revision = await self._put_new(row, is_capped=is_capped)
        if revision is None:
            raise Busy(f"queue {topic.name} was created concurrently")
        self._follow(row, revision)
        await self._partitions.create(log_name(topic.id))
        await self._open_if_led(topic.name)
        return self.get(topic.name)

    async def _create(self, topic: Topic, row: QueueRow, *, is_capped: bool) -> WorkQueue:
        queue = await self._make(topic, row)
        try:
            await queue.store.settle()
            if self._topics.find(topic.name) is not topic:
                raise UnknownQueue(f"topic {topic.name} was deleted while its queue was created")
            revision = await self._put_new(row, is_capped=is_capped)
        except BaseException as error:
            await queue.close(Stopping(f"queue {topic.name} was not created: {error}"))
            await self._partitions.delete(log_name(topic.id))
            raise
        self._queues[topic.name] = queue
        self._rows[topic.name], self._revisions[topic.name] = row, revision or 0
        self._led[log_name(topic.id)] = LONE_EPOCH
        if self._topics.find(topic.name) is not topic:
            await self._drop(topic.name, topic.id)
            raise UnknownQueue(f"topic {topic.name} was deleted while its queue was created")
        return queue

    async def delete(self, name: str) -> None:
        """Delete a queue; its topic stays, with all records. Raises `UnknownQueue`."""
        await self._locks.run(name, self._delete(name))

    async def _delete(self, name: str) -> None:
        row = self._rows.get(name)
        if row is None:
            raise UnknownQueue(f"queue {name[:300]!r} does not exist")
        await self._drop(name, row.topic_id)

    async def _drop(self, name: str, topic_id: uuid.UUID) -> None:
        """Delete a queue, durably, if it is still that of this topic."""
        row = self._rows.get(name)
        if row is None or row.topic_id != topic_id:
            return
        await self._metadata.transact(deletes=[queue_key(topic_id)])
        await self._forget(row)
        await self._partitions.delete(log_name(topic_id))

    async def _forget(self, row: QueueRow) -> None:
        """Close a queue whose row was deleted, and release its partitions."""
        name = row.name
        if self._rows.get(name) is not row:
            return
        del self._rows[name], self._revisions[name]
        self._refused.pop(name, None)
        self._reported.pop(name, None)
        log = log_name(row.topic_id)
        self._led.pop(log, None)
        self._partitions.unfollow(log)
        deleted = UnknownQueue(f"queue {name} was deleted")
        if (queue := self._queues.pop(name, None)) is not None:
            await queue.close(deleted)
        elif (topic := self._topics.find(name)) is not None:
            for partition in topic.partitions:
                partition.retention_hold = None
                partition.is_queue = False

    # Changes of other nodes.

    def _on_row_change(self, change: MetadataChange) -> None:
        name = None
        if change.value is not None:
            row = decode_row(change.key, change.value)
            name = row.name
        else:
            known = (row for row in self._rows.values() if queue_key(row.topic_id) == change.key)
            name = next((row.name for row in known), None)
        if name is not None:
            self._locks.start(name, self._apply(name, change))

    async def _apply(self, name: str, change: MetadataChange) -> None:
        """Apply a change of a row, after those of this node that run now."""
        known = self._rows.get(name)
        if known is not None and change.revision <= self._revisions[name]:
            return  # A change that this node made itself.
        if change.value is None:
            if known is not None and queue_key(known.topic_id) == change.key:
                await self._forget(known)
            return
        row = decode_row(change.key, change.value)
        if known is not None and known.topic_id != row.topic_id:
            await self._forget(known)
            known = None
        if known is None:
            self._follow(row, change.revision)
            return
        self._rows[name], self._revisions[name] = row, change.revision
        if (queue := self._queues.get(name)) is not None:
            queue.reconfigure(row.config)

    # Retention of partitions that other nodes lead.

    def report_hold(self, topic_id: uuid.UUID, index: int, needed_offset: int) -> None:
        """Take note of the first job that is not finished: its coordinator has told it."""
        topic = self._topics.by_id(topic_id)
        hold = topic.partition(index).retention_hold
        if isinstance(hold, ReportedHold):
            hold.advance(needed_offset)

    def _schedule_reports(self) -> None:
        def due() -> None:
            self._schedule_reports()
            for queue in self._queues.values():
                self._start(self._report(queue), queue.name)

        if self._hold_reports is not None:
            self._reporting = self._timers.call_later(HOLD_REPORT_SECONDS, due)

    async def _report(self, queue: WorkQueue) -> None:
        """Tell the leaders of a queue's partitions which jobs are finished, if that has changed."""
        store = queue.store
        if self._hold_reports is None or not store.is_usable:
            return
        needed = {index: jobs.needed_offset for index, jobs in store.state.partitions.items()}
        if needed == self._reported.get(queue.name):
            return
        await store.settle()
        if self._queues.get(queue.name) is queue and store.is_usable:
            await self._hold_reports.send(queue.topic, needed)
            self._reported[queue.name] = needed

    # Changes of topics.

    def _veto(self, topic: Topic, config: TopicConfig) -> None:
        if topic.name in self._rows or topic.name in self._creating:
            self._check(topic.name, config)

    def _check(self, name: str, config: TopicConfig) -> None:
        if COMPACT in config.cleanup_policy:
            raise InvalidConfig(
                f"topic {name} cannot be compacted and be a queue: a job would replace an earlier"
                " one of the same key"
            )

    def _on_topic_change(self, change: TopicChange) -> None:
        """Follow a change of a queue's topic."""
        topic = change.topic
        row = self._rows.get(topic.name)
        if row is None or row.topic_id != topic.id:
            return
        queue = self._queues.get(topic.name)
        if queue is None and change.event is not TopicEvent.DELETED:
            self._hold(row)
        match change.event:
            case TopicEvent.CREATED:  # In a cluster, its row may be known before.
                self._start(self._open_if_led(topic.name), topic.name)
            case TopicEvent.DELETED:
                if queue is not None:
                    queue.store.refuse(UnknownQueue(f"queue {topic.name} was deleted"))
                self._start(self._drop(topic.name, topic.id), topic.name)
            case TopicEvent.GROWN if queue is not None:
                queue.store.hold_partitions()
                self._start(queue.store.grow(), topic.name)
            case TopicEvent.ALTERED if queue is not None:
                self._start(self._reclass(queue), topic.name)

    async def _reclass(self, queue: WorkQueue) -> None:
        log, durability = queue.store.log, queue.topic.config.durability
        if log.config.durability is not durability:
            await log.reconfigure(replace(log.config, durability=durability))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def run() -> None:
            try:
                await self._locks.run(name, work)
            except MillstreamError as error:
                logger.warning("queue %s: a change was not applied: %s", name, error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_weak(topic: Topic) -> bool:
    """Return whether a crash may lose what was acknowledged, and leave the topic."""
    return topic.config.durability in (Durability.DISK, Durability.MEMORY)


def log_name(topic_id: uuid.UUID) -> str:
    """Return the name of a queue's log."""
    return QUEUE_PREFIX + topic_id.hex

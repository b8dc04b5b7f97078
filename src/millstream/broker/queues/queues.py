"""The queues of a node.

Metadata has one row for each queue; its events are stored in a log of their own, beside those of
groups and transactions. Rules:

1. Creating a queue creates its log, with the offsets at which it starts, and then its row. The
   queue exists once the row does.
2. Deleting a queue deletes the row and then the log. Its topic stays.
3. A queue belongs to a topic by the topic's id. Deleting the topic, through any server, deletes the
   queue; a topic created later under the same name is not a queue. Except a topic of class
   `ephemeral`, which is created again at each start: its queue is created again with it.
4. If the log of a queue is damaged, the queue is refused with the reason, and the rest of the node
   is not affected.
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

from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.loop_threads import LoopThreads
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.retention_holds import HoldEverything
from millstream.broker.queues.row import QUEUES_PREFIX, QueueRow, decode_row, encode_row, queue_key
from millstream.broker.queues.values import QueueChanges, QueueConfig, QueueLimits, apply_changes
from millstream.broker.state.state_writer import SEGMENT_BYTES_MAX
from millstream.broker.topics.configs.topic_config import COMPACT, TopicConfig
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock, Timers
from millstream.config.schema import Durability
from millstream.errors import (
    InvalidConfig,
    InvalidRequest,
    MillstreamError,
    Stopping,
    UnknownQueue,
)
from millstream.metadata.interface import Metadata
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

QUEUES_MAX = 1_000
"""Each queue has its own log, and keeps its partitions open."""

LOG_PREFIX = "queue-"

SECRET_SIZE = 32


async def hold_queue_topics(metadata: Metadata, topics: Topics) -> None:
    """Keep the jobs of all queues from retention until the queues are open.

    Called before anything opens a partition: the limits of a topic apply from then on, and until
    its queue is open it is not known which jobs are finished.
    """
    for entry in await metadata.list(QUEUES_PREFIX):
        row = decode_row(entry)
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
        store: Store,
        metadata: Metadata,
        appends: RecordAppender,
        clock: Clock,
        timers: Timers,
        background: Executor | None = None,
        limits: QueueLimits | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._topics = topics
        self._store = store
        self._metadata = metadata
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
        self._creating: set[str] = set()
        self._locks = KeyedLocks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] = lambda: None

    # Opening and closing.

    async def open(self) -> None:
        """Open all queues, and delete the logs of queues that were deleted."""
        for entry in await self._metadata.list(QUEUES_PREFIX):
            row = decode_row(entry)
            topic = self._topics.find(row.name)
            if topic is not None and topic.id != row.topic_id:
                topic = await self._follow_ephemeral_topic(row, topic)
                row = self._rows.get(row.name, row)
            if topic is None:
                await self._metadata.transact(deletes=[entry.key])
                continue
            self._rows[row.name] = row
            await self._open(topic, row)
        await self._remove_logs()
        self._unwatch = self._topics.on_change(self._on_topic_change)
        self._topics.vetoes.append(self._veto)

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
        stored = {name.topic for name in self._store.names() if name.topic.startswith(LOG_PREFIX)}
        for name in stored - kept:
            await self._store.delete(name)

    async def _open(self, topic: Topic, row: QueueRow) -> None:
        try:
            self._queues[row.name] = await self._make(topic, row)
            await self._mark(row.name, is_clean=False)
        except MillstreamError as error:
            self._refused[row.name] = error
            if (queue := self._queues.pop(row.name, None)) is not None:
                await queue.close(error)
            for partition in topic.partitions:
                partition.retention_hold = HoldEverything()
                partition.is_queue = True
            logger.error("queue %s cannot be opened: %s", row.name, error)  # noqa: TRY400

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
        )
        queue = WorkQueue(
            queue_store, topics=self._topics, appends=self._appends, timers=self._timers
        )
        await queue.open()
        return queue

    async def _log(self, topic: Topic) -> Log:
        base = self._store.log_config
        config = replace(
            base,
            durability=topic.config.durability,
            segment_bytes_max=min(SEGMENT_BYTES_MAX, base.segment_bytes_max),
        )
        return await self._store.log(log_name(topic.id), config=config)

    async def close(self) -> None:
        """Finish changes in progress, and close all queues."""
        await self._locks.close()
        self._unwatch()
        while self._tasks:
            await asyncio.wait(self._tasks)
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
        row = msgspec.structs.replace(row, is_clean=is_clean)
        await self._metadata.transact(puts={queue_key(row.topic_id): encode_row(row)})
        self._rows[name] = row

    # Lookup.

    def get(self, name: str) -> WorkQueue:
        """Return a queue; raises `UnknownQueue`, or the reason why it cannot be used."""
        queue = self._queues.get(name)
        if queue is None:
            raise self._refused.get(name) or UnknownQueue(f"queue {name[:300]!r} does not exist")
        if queue.store.refusal is not None:
            raise queue.store.refusal
        return queue

    def all(self) -> list[WorkQueue]:
        """Return all usable queues, sorted by name."""
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

    async def put(self, name: str, changes: QueueChanges) -> tuple[WorkQueue, bool]:
        """Create a queue or change its settings; returns it, and whether it is new.

        Creates the topic of that name if there is none. Records that the topic already has become
        jobs. Durable when this returns.
        """
        return await self._locks.run(name, self._put(name, changes))

    async def _put(self, name: str, changes: QueueChanges) -> tuple[WorkQueue, bool]:
        row = self._rows.get(name)
        config = apply_changes(name, row.config if row else None, changes)
        if row is not None:
            queue = self.get(name)
            if config != row.config:
                row = msgspec.structs.replace(row, config=config)
                await self._metadata.transact(puts={queue_key(row.topic_id): encode_row(row)})
                self._rows[name] = row
                queue.reconfigure(config)
            return queue, False
        if len(self._rows) >= QUEUES_MAX:
            raise InvalidRequest(
                f"a node can have at most {QUEUES_MAX} queues, and has {len(self._rows)}"
            )
        self._creating.add(name)
        try:
            topic = await self._topics.ensure(name)
            self._check(name, topic.config)
            return await self._create(topic, config), True
        finally:
            self._creating.discard(name)

    async def _create(self, topic: Topic, config: QueueConfig) -> WorkQueue:
        row = QueueRow(
            topic_id=topic.id,
            name=topic.name,
            config=config,
            secret=self._draw(SECRET_SIZE),
            is_ephemeral=topic.config.durability is Durability.EPHEMERAL,
        )
        queue = await self._make(topic, row)
        try:
            await queue.store.settle()
            if self._topics.find(topic.name) is not topic:
                raise UnknownQueue(f"topic {topic.name} was deleted while its queue was created")
            await self._metadata.transact(puts={queue_key(topic.id): encode_row(row)})
        except BaseException as error:
            await queue.close(Stopping(f"queue {topic.name} was not created: {error}"))
            await self._store.delete(log_name(topic.id))
            raise
        self._rows[topic.name] = row
        self._queues[topic.name] = queue
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
        del self._rows[name]
        self._refused.pop(name, None)
        deleted = UnknownQueue(f"queue {name} was deleted")
        if (queue := self._queues.pop(name, None)) is not None:
            await queue.close(deleted)
        elif (topic := self._topics.find(name)) is not None:
            for partition in topic.partitions:
                partition.retention_hold = None
                partition.is_queue = False
        await self._store.delete(log_name(topic_id))

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
        match change.event:
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
                logger.warning("queue %s: a change of its topic was not applied: %s", name, error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_weak(topic: Topic) -> bool:
    """Return whether a crash may lose what was acknowledged, and leave the topic."""
    return topic.config.durability in (Durability.DISK, Durability.MEMORY)


def log_name(topic_id: uuid.UUID) -> str:
    """Return the name of a queue's log."""
    return LOG_PREFIX + topic_id.hex

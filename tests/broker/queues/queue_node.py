"""The queues of a node over a simulated disk, real topics and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from millstream.broker.partition.partition import Partition
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.queues import WorkQueues
from millstream.broker.queues.values import LeasedJob, QueueChanges, QueueLimits
from millstream.broker.state.internal_partitions import LonePartitions
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.config.schema import BrokerConfig, LogConfig
from millstream.metadata.interface import Condition, MetadataList
from millstream.records.record import Record, StoredRecord
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.store import Store
from millstream.testing import ManualClock, ManualTimers, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.broker.transactions.transaction_fakes import FakeMetadata, turns
from tests.in_loop import in_loop

__all__ = ["Node", "Rows", "in_loop", "receipts_of", "turns"]

LIMITS = QueueLimits()
SEGMENTS = LogConfig(segment_bytes_max=1024)


class Rows(FakeMetadata):
    """Metadata that survives every crash: losing it is not tested here."""

    def copy(self) -> Rows:
        made = Rows()
        made.rows, made.revision = dict(self.rows), self.revision
        return made

    async def list(self, prefix: str) -> MetadataList:
        await asyncio.sleep(0)
        listed = [self.rows[key] for key in sorted(self.rows) if key.startswith(prefix)]
        return MetadataList(listed, self.revision)

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        made = await super().transact(compares=compares, puts=puts)
        if made is not None:
            for key in deletes:
                self.rows.pop(key, None)
        return made


class Node:
    """The queues of one node, and their dependencies. `start` starts a node on the present disk."""

    def __init__(
        self,
        disk: SimulatedFilesystem | None = None,
        metadata: Rows | None = None,
        *,
        seed: int = 0,
        clock: ManualClock | None = None,
        limits: QueueLimits = LIMITS,
        log_config: LogConfig = SEGMENTS,
        wrap: Callable[[Filesystem], Filesystem] = lambda disk: disk,
    ) -> None:
        self.disk = disk or SimulatedFilesystem()
        self.metadata = metadata or Rows()
        self.clock = clock or ManualClock()
        self.timers = ManualTimers(self.clock)
        self.limits = limits
        self._log_config = log_config
        self._seed = seed
        self._wrap = wrap

    async def start(self) -> None:
        # Timers of an earlier run must not fire.
        self.timers = ManualTimers(self.clock)
        self.store = self._store("/data")
        self.state = self._store("/state")
        self.appends = RecordAppender(self.clock)
        self.topics = Topics(
            metadata=self.metadata,  # type: ignore[arg-type]
            store=self.store,
            config=BrokerConfig(),
            make_partition=self._partition,
        )
        await self.topics.open()
        self.queues = WorkQueues(
            topics=self.topics,
            partitions=LonePartitions(self.state, 1),
            log_config=self.state.log_config,
            metadata=self.metadata,  # type: ignore[arg-type]
            appends=self.appends,
            clock=self.clock,
            timers=self.timers,
            background=SeededBackground(self._seed),
            limits=self.limits,
        )
        await self.queues.open()
        self.store.maintenance.opener = self.topics.open_log
        self.store.maintenance.config_of = self.topics.log_config_of

    def _store(self, path: str) -> Store:
        store = Store(
            path,
            log_config=self._log_config,
            filesystem=self._wrap(self.disk),
            clock=self.clock,
            background=SeededBackground(self._seed),
            syncer=SeededSyncer(self._seed),
        )
        store.open()
        return store

    def _partition(self, topic: Topic, index: int) -> Partition:
        return Partition(
            topic.name,
            index,
            topic_id=topic.id,
            store=self.store,
            config=topic.config,
            clock=self.clock,
            background=SeededBackground(self._seed),
        )

    async def stop(self) -> None:
        await self.queues.close()
        await self.topics.close()
        await self.state.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # Common steps of tests.

    async def queue(self, name: str = "q", *, partitions: int = 1, **changes: Any) -> WorkQueue:
        """Create a queue whose topic has `partitions` partitions."""
        configs = changes.pop("configs", {})
        if self.topics.find(name) is None:
            await self.topics.create(name, partitions=partitions, configs=configs)
        return (await self.queues.put(name, QueueChanges(**changes)))[0]

    async def put(self, *values: bytes, name: str = "q", **places: Any) -> list[int]:
        """Add jobs; the part of a value before a colon is its key."""
        records = [
            Record(value, value.partition(b":")[0] if b":" in value else None) for value in values
        ]
        placed = await self.appends.append(self.topics.get(name), records, **places)
        return list(placed.offsets)

    async def advance(self, ms: int) -> None:
        """Advance the clock, and run everything that is due."""
        self.timers.advance(ms / 1000)
        await self.quiet()

    async def quiet(self) -> None:
        """Return when nothing is in flight."""
        await turns(60)

    async def records(self, name: str) -> list[StoredRecord]:
        """Return all records of a topic."""
        topic = self.topics.find(name)
        found: list[StoredRecord] = []
        for partition in topic.partitions if topic else []:
            await partition.open()
            log = self.store.get(name, partition.index)
            found += [one for one in log.records() if isinstance(one, StoredRecord)]
        return found


def receipts_of(jobs: Sequence[LeasedJob]) -> list[str]:
    return [job.receipt for job in jobs]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)

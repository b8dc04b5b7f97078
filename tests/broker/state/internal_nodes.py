"""Internal partitions of several nodes that a test elects and deposes, over one simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from millstream.broker.state.coordinators import CoordinatorContext
from millstream.broker.state.internal_partitions import InternalPartition, LeadershipListener
from millstream.config.schema import LogConfig
from millstream.errors import NotCoordinator, NotLeader, NotLeaderAnymore
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, ManualTimers, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer


class LedLog:
    """A log that only its leader may append to, and whose replicas a test may hold up."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.is_led = True
        self.is_held = False
        self.deleting: asyncio.Event | None = None
        """If set, deletions wait for the event."""
        self._waiting: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def submit(self, batch: Any, **options: Any) -> asyncio.Future[Any]:
        if not self.is_led:
            raise NotLeader(f"{self._log.name} is led by node 2", leader=2)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        written = self._log.submit(batch, **options)
        self._waiting.append((written, future))
        written.add_done_callback(lambda _: self._answer())
        return future

    async def delete_before(self, offset: int) -> None:
        if self.deleting is not None:
            await self.deleting.wait()
        await self._log.delete_before(offset)

    def let_go(self) -> None:
        """Let the replicas have everything."""
        self.is_held = False
        self._answer()

    def depose(self) -> None:
        """Let another node lead: whatever is not on enough replicas is unknown."""
        self.is_led = False
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(NotLeaderAnymore(f"{self._log.name} is led by node 2"))
        self._waiting.clear()

    def _answer(self) -> None:
        while self._waiting and self._waiting[0][0].done() and not self.is_held:
            written, future = self._waiting.pop(0)
            if not future.done():
                future.set_result(written.result())


class ElectedPartitions:
    """The internal partitions as node 1 of a cluster sees them; a test decides who leads."""

    def __init__(self, *, count: int = 4, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.background = SeededBackground(seed)
        self.store = Store(
            "/state",
            filesystem=SimulatedFilesystem(),
            clock=self.clock,
            background=self.background,
            syncer=SeededSyncer(seed),
        )
        self.store.open()
        self.leaders: dict[InternalPartition, int] = {}
        self.logs: dict[InternalPartition, LedLog] = {}
        self.opening: asyncio.Event | None = None
        """If set, logs are opened once the event is: the high watermark is too low before."""
        self.error: Exception | None = None
        """If set, opening a log fails with it."""
        self.has_lease = True
        self._count = count
        self._listeners: dict[str, LeadershipListener] = {}

    def context(self) -> CoordinatorContext:
        """Return what coordinators of these partitions need."""
        return CoordinatorContext(
            partitions=self,
            log_config=self.store.log_config,
            clock=self.clock,
            timers=self.timers,
            background=self.background,
        )

    # The interface.

    def count(self, name: str) -> int:
        return 1 if name.startswith(("queue-", "streams")) else self._count

    def follow(self, name: str, listener: LeadershipListener) -> None:
        self._listeners[name] = listener
        for partition, leader in self.leaders.items():
            if partition.name == name and leader == 1:
                listener.elected(partition, 1)

    def unfollow(self, name: str) -> None:
        self._listeners.pop(name, None)

    def leader_of(self, partition: InternalPartition) -> int:
        return self.leaders.get(partition, -1)

    def check_lease(self) -> None:
        if not self.has_lease:
            raise NotCoordinator("the lease of this node has ended")

    def check_leading(self, partition: InternalPartition) -> None:
        self.check_lease()

    async def open_log(self, partition: InternalPartition, config: LogConfig) -> Any:
        if self.opening is not None:
            await self.opening.wait()
        if self.error is not None:
            raise self.error
        if self.leaders.get(partition) != 1:
            raise NotLeader(f"{partition} is led by another node")
        log = LedLog(await self.store.log(partition.name, partition.number, config=config))
        self.logs[partition] = log
        return log

    async def create(self, name: str) -> None:
        self.elect(InternalPartition(name))

    async def delete(self, name: str) -> None:
        await self.store.delete(name)

    def names(self, prefix: str) -> Collection[str]:
        return {name.topic for name in self.store.names() if name.topic.startswith(prefix)}

    # What a test does.

    def elect(self, partition: InternalPartition, epoch: int = 1) -> None:
        """Let this node lead a partition."""
        if (log := self.logs.pop(partition, None)) is not None:
            log.depose()
        self.leaders[partition] = 1
        if (listener := self._listeners.get(partition.name)) is not None:
            listener.elected(partition, epoch)

    def elect_all(self, name: str, epoch: int = 1) -> None:
        for number in range(self.count(name)):
            self.elect(InternalPartition(name, number), epoch)

    def depose(self, partition: InternalPartition, *, leader: int = 2) -> None:
        """Let another node lead a partition."""
        self.leaders[partition] = leader
        if (log := self.logs.pop(partition, None)) is not None:
            log.depose()
        if (listener := self._listeners.get(partition.name)) is not None:
            listener.deposed(partition)

    async def take(self, partition: InternalPartition, epoch: int = 1) -> None:
        """Let this node lead a partition, and return when it is loaded, or waits for something."""
        self.elect(partition, epoch)
        await turns()

    async def lose(self, partition: InternalPartition, *, leader: int = 2) -> None:
        """Let another node lead a partition, and return when nothing is left to do for that."""
        self.depose(partition, leader=leader)
        await turns()


async def turns(count: int = 60) -> None:
    """Run the event loop until nothing that is ready is left."""
    for _ in range(count):
        await asyncio.sleep(0)

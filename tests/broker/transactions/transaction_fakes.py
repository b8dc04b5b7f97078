"""Fakes around the transaction coordinator: a disk, partitions and groups that a test controls."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from millstream.broker.transactions.coordinator import TransactionCoordinator
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.transaction import TransactionProducer
from millstream.config.schema import BrokerConfig
from millstream.errors import MillstreamError, UnknownTopic
from millstream.metadata.interface import Condition, MetadataEntry
from millstream.testing import ManualClock, ManualTimers

Put = Sequence[tuple[bytes, bytes | None]]


async def turns(count: int = 40) -> None:
    """Run the event loop until no callback is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


class FakeStateLog:
    """A `StateLog` whose disk can be made to wait or to fail."""

    def __init__(self, entries: Mapping[bytes, bytes] | None = None) -> None:
        self.entries = dict(entries or {})
        self.is_held = False
        self.error: MillstreamError | None = None
        self.puts = 0
        self._waiting: list[tuple[Put, asyncio.Future[None]]] = []

    def put(self, entries: Put) -> asyncio.Future[None]:
        self.puts += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, future))
        if not self.is_held:
            self.let_go()
        return future

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def let_go(self, count: int | None = None) -> None:
        """Make waiting puts durable, in order."""
        for _ in range(len(self._waiting) if count is None else count):
            entries, future = self._waiting.pop(0)
            if self.error is not None:
                if not future.done():
                    future.set_exception(self.error)
                continue
            apply(self.entries, entries)
            if not future.done():
                future.set_result(None)

    def crash(self, survivors: int = 0) -> FakeStateLog:
        """Return the log that a restart finds: all durable entries and some of those in flight."""
        found = FakeStateLog(self.entries)
        for entries, _ in self._waiting[:survivors]:
            apply(found.entries, entries)
        return found


def apply(found: dict[bytes, bytes], entries: Put) -> None:
    for key, value in entries:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value


class FakeMetadata:
    """In-memory metadata; `on_transact` is called before a transaction is evaluated."""

    def __init__(self) -> None:
        self.rows: dict[str, MetadataEntry] = {}
        self.revision = 0
        self.on_transact: Callable[[], None] = lambda: None
        self.error: MillstreamError | None = None

    async def get(self, key: str) -> MetadataEntry | None:
        await asyncio.sleep(0)
        return self.rows.get(key)

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.on_transact()
        if not all(compare.holds(self.rows.get(compare.key)) for compare in compares):
            return None
        self.revision += 1
        for key, value in (puts or {}).items():
            created = self.rows[key].created if key in self.rows else self.revision
            self.rows[key] = MetadataEntry(key, value, self.revision, created)
        return self.revision


class Data(NamedTuple):
    producer: TransactionProducer
    tag: int


class Mark(NamedTuple):
    producer: TransactionProducer
    is_commit: bool


@dataclass
class FakePartition:
    """A partition with a list as its log, which can be made to fail or to wait."""

    journal: list[Data | Mark] = field(default_factory=list)
    is_open: bool = False
    error: BaseException | None = None
    held: asyncio.Event | None = None
    attempts: int = 0

    @property
    def appender(self) -> Self:
        return self

    async def open(self) -> None:
        self.is_open = True

    def append(self, producer: TransactionProducer, tag: int = 0) -> None:
        self.journal.append(Data(producer, tag))

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int
    ) -> int:
        assert self.is_open
        assert coordinator_epoch == 0
        self.attempts += 1
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        self.journal.append(Mark(TransactionProducer(producer_id, producer_epoch), is_commit))
        return len(self.journal) - 1

    def marks(self) -> list[Mark]:
        return [entry for entry in self.journal if isinstance(entry, Mark)]


class FakeTopics:
    def __init__(self, *names: tuple[str, int]) -> None:
        self.partitions = {name: FakePartition() for name in names}

    def partition(self, name: str, index: int) -> FakePartition:
        if (name, index) not in self.partitions:
            raise UnknownTopic(f"there is no partition {name}-{index}")
        return self.partitions[name, index]


class FakeGroups:
    """Groups that record staged offsets and the outcome of their transactions."""

    def __init__(self) -> None:
        self.staged: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.ended: list[tuple[int, bool]] = []
        self.finished: list[tuple[TransactionProducer, frozenset[str], bool]] = []
        self.error: BaseException | None = None

    def stage(self, producer: TransactionProducer, group_id: str, tag: int = 0) -> None:
        self.staged[producer.id, group_id].append(tag)

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        who = TransactionProducer(producer_id, producer_epoch)
        self.finished.append((who, frozenset(group_ids), is_commit))
        for group_id in group_ids:
            for tag in self.staged.pop((producer_id, group_id), []):
                self.ended.append((tag, is_commit))


class FakeRetentionClock:
    """The retention clock of a store, driven by a monotonic clock that continues over restarts."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def age_ms(self, date_ms: int) -> int:
        return self.now_ms() - date_ms


class Node:
    """A coordinator and its dependencies; `restart` simulates a crash."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.state_log = FakeStateLog()
        self.metadata = FakeMetadata()
        self.topics = FakeTopics(("t", 0), ("t", 1), ("u", 0))
        self.groups = FakeGroups()
        self.transactions = self._make()

    def _make(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.state_log,  # type: ignore[arg-type]
            self.topics,
            self.groups,
            ProducerIds(self.metadata),  # type: ignore[arg-type]
            clock=self.clock,
            retention_clock=FakeRetentionClock(self.clock),
            timers=self.timers,
            config=self.config,
        )

    async def restart(self, survivors: int = 0) -> None:
        """Crash with requests in flight, and start again."""
        me = asyncio.current_task()
        dying = [task for task in asyncio.all_tasks() if task is not me]
        for task in dying:
            task.cancel()
        await asyncio.gather(*dying, return_exceptions=True)
        self.timers = ManualTimers(self.clock)
        self.state_log = self.state_log.crash(survivors)
        for partition in self.topics.partitions.values():
            partition.is_open = False
        self.transactions = self._make()
        await self.transactions.start()
        await turns()

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock second by second, and run everything that is due."""
        await turns()
        while seconds > 0:
            self.timers.advance(min(seconds, 1.0))
            await turns()
            seconds -= 1.0

    def journal(self, topic: str = "t", index: int = 0) -> list[Data | Mark]:
        return self.topics.partitions[topic, index].journal

"""After any power cut, transactions over real partitions, groups and logs are atomic.

Each transaction of the client writes to two partitions and commits offsets of a group, as a
consume-process-produce loop does. The power is cut at any moment, and everything is opened again
from the contents of the disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.groups.values import OffsetAndMetadata
from millstream.broker.partition.partition import Partition
from millstream.broker.state.state_log import StateLog
from millstream.broker.transactions.coordinator import TransactionCoordinator
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.transaction import TransactionProducer, TransactionState
from millstream.config.schema import BrokerConfig, LogConfig
from millstream.errors import MillstreamError, ProducerFenced, UnknownTopic
from millstream.records.topic_partition import TopicPartition
from millstream.storage.store import Store
from millstream.testing import ManualClock, ManualTimers, SimulatedFilesystem, sample_crash_states
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.broker.partitions import TOPIC_ID, Config, append, batch, values
from tests.in_loop import in_loop

from .transaction_fakes import FakeMetadata, turns

STATES = 5_000 if os.environ.get("MILLSTREAM_LONG") else 150
SEGMENTS = Config(log=LogConfig(segment_bytes_max=1024))
WHERE = [("t", 0), ("t", 1)]
READ = TopicPartition("source", 0)
TIMEOUT_MS = 60_000
COUNT = 6
"""Transactions of the workload: even ones commit, odd ones abort."""


@dataclass(frozen=True)
class FakeTopic:
    name: str
    id: uuid.UUID = TOPIC_ID


class RealTopics:
    """One topic with real partitions."""

    def __init__(self, make: Callable[[str, int], Partition]) -> None:
        self.partitions = {where: make(*where) for where in WHERE}

    def partition(self, name: str, index: int) -> Partition:
        if (name, index) not in self.partitions:
            raise UnknownTopic(f"there is no partition {name}-{index}")
        return self.partitions[name, index]

    def find(self, name: str) -> Any:
        return FakeTopic(name)

    def all(self) -> list[Any]:
        return []

    def on_change(self, callback: Any) -> Callable[[], None]:
        return lambda: None


class RealNode:
    """A coordinator on a simulated disk; only the topic metadata is fake."""

    def __init__(self, disk: SimulatedFilesystem, metadata: FakeMetadata, seed: int = 1) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.metadata = metadata
        self._seed = seed
        self.store = self._store("/data")
        self.state = self._store("/state")
        self.topics = RealTopics(self._partition)
        self.transactions: TransactionCoordinator
        self.groups: GroupCoordinator

    def _store(self, path: str) -> Store:
        store = Store(
            path,
            log_config=SEGMENTS.log,
            filesystem=self.disk,
            clock=self.clock,
            background=SeededBackground(self._seed),
            syncer=SeededSyncer(self._seed),
        )
        store.open()
        return store

    def _partition(self, topic: str, index: int) -> Partition:
        return Partition(
            topic,
            index,
            topic_id=TOPIC_ID,
            store=self.store,
            config=SEGMENTS,
            clock=self.clock,
        )

    async def start(self) -> None:
        config = BrokerConfig()
        group_log = await StateLog.open(self.state, "groups", clock=self.clock)
        self.groups = GroupCoordinator(
            group_log, self.topics, config=config, clock=self.clock, timers=self.timers
        )
        await self.groups.load()
        log = await StateLog.open(self.state, "transactions", clock=self.clock)
        self.transactions = TransactionCoordinator(
            log,
            self.topics,
            self.groups,
            ProducerIds(self.metadata),  # type: ignore[arg-type]
            clock=self.clock,
            retention_clock=self.state,
            timers=self.timers,
            config=config,
        )
        await self.transactions.start()

    async def stop(self) -> None:
        await self.transactions.close()
        await self.groups.close()
        for partition in self.topics.partitions.values():
            if partition.is_open:
                await partition.close()
        await self.state.close()
        await self.store.close()

    async def settled(self) -> None:
        """Return when all transactions left by a crash have ended."""
        while any(found.is_ending for found in self.transactions.all()):
            await turns(1)

    def committed(self, where: tuple[str, int]) -> list[bytes]:
        return values(self.topics.partition(*where), is_committed_only=True)

    def committed_offset(self) -> int:
        found = self.groups.fetch("g", [READ])[READ]
        assert not isinstance(found, MillstreamError)
        return -1 if found is None else found.offset


class Client:
    """Consumes, processes and produces, in one transaction each time."""

    def __init__(self, node: RealNode, *, is_bumping: bool) -> None:
        self.node = node
        self.is_bumping = is_bumping
        self.producer = TransactionProducer(-1, -1)
        self.sequence = 0

    async def start(self) -> None:
        self.producer = await self.node.transactions.init_producer("id", TIMEOUT_MS)
        self.sequence = 0

    async def write(self, number: int) -> None:
        transactions = self.node.transactions
        if not self.is_bumping:
            await transactions.add_partitions("id", *self.producer, WHERE)
            await transactions.add_offsets("id", *self.producer, "g")
        await transactions.ensure_partitions("id", *self.producer, WHERE, may_add=self.is_bumping)
        for where in WHERE:
            partition = self.node.topics.partition(*where)
            await partition.open()
            assert transactions.is_ongoing(*self.producer, *where)
            data = batch(
                b"%d" % number,
                producer_id=self.producer.id,
                epoch=self.producer.epoch,
                sequence=self.sequence,
                is_transactional=True,
            )
            await append(partition, data)
        self.sequence += 1
        await transactions.stage_offsets(
            "id", *self.producer, "g", lambda: self.stage(number), may_add=self.is_bumping
        )

    async def stage(self, number: int) -> None:
        await self.node.groups.stage_offsets(
            "g",
            member_id="",
            generation=-1,
            instance_id=None,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            offsets={READ: OffsetAndMetadata(offset=number)},
        )

    async def end(self, *, is_commit: bool) -> None:
        self.producer = await self.node.transactions.end(
            "id", *self.producer, is_commit=is_commit, is_bumping=self.is_bumping
        )
        if self.is_bumping:
            self.sequence = 0


async def workload(node: RealNode, *, is_bumping: bool) -> None:
    client = Client(node, is_bumping=is_bumping)
    await client.start()
    for number in range(COUNT):
        await client.write(number)
        node.disk.note(("asked", number))
        await client.end(is_commit=number % 2 == 0)
        node.disk.note(("answered", number))


def numbers(notes: Any, kind: str) -> set[int]:
    return {number for what, number in notes if what == kind}


@pytest.mark.parametrize("is_bumping", [False, True])
@in_loop
async def test_every_power_cut_leaves_transactions_whole(is_bumping: bool) -> None:
    disk, metadata = SimulatedFilesystem(), FakeMetadata()
    node = RealNode(disk, metadata)
    await node.start()
    await workload(node, is_bumping=is_bumping)
    await node.stop()
    found_states = set()
    for number, state in enumerate(sample_crash_states(disk.trace, STATES, seed=3)):
        after = RealNode(state.filesystem(), metadata, seed=number)
        await after.start()
        found_states.update(found.state for found in after.transactions.all())
        await after.settled()
        client = Client(after, is_bumping=is_bumping)
        await client.start()  # Aborts the open transaction, and fences its producer.
        for where in WHERE:
            await after.topics.partition(*where).open()
        check(after, numbers(state.notes, "asked"), numbers(state.notes, "answered"))
        await client.write(COUNT)
        await client.end(is_commit=True)
        for where in WHERE:
            assert after.committed(where)[-1] == b"%d" % COUNT
        assert after.committed_offset() == COUNT
        await after.stop()
    assert {
        TransactionState.ONGOING,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    } <= found_states
    assert found_states & {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}, (
        "some were half-way"
    )


def check(node: RealNode, asked: set[int], answered: set[int]) -> None:
    one, other = (node.committed(where) for where in WHERE)
    assert one == other, "all partitions show the same transactions"
    shown = [int(value) for value in one]
    assert shown == sorted(shown)
    assert {n for n in answered if n % 2 == 0} <= set(shown) <= {n for n in asked if n % 2 == 0}
    assert node.committed_offset() == (shown[-1] if shown else -1), "and the group with them"
    for where in WHERE:
        partition = node.topics.partition(*where)
        assert partition.last_stable_offset == partition.high_watermark, "nothing hangs"


@in_loop
async def test_an_overtaken_producer_is_refused_by_partitions_and_coordinator_alike() -> None:
    node = RealNode(SimulatedFilesystem(), FakeMetadata())
    await node.start()
    zombie, successor = Client(node, is_bumping=True), Client(node, is_bumping=True)
    await zombie.start()
    await zombie.write(0)
    await successor.start()
    for is_commit in (False, True):
        with pytest.raises(ProducerFenced):
            await zombie.end(is_commit=is_commit)
    with pytest.raises(MillstreamError):
        await zombie.write(1)
    partition = node.topics.partition("t", 0)
    late = batch(
        b"late",
        producer_id=zombie.producer.id,
        epoch=zombie.producer.epoch,
        sequence=1,
        is_transactional=True,
    )
    with pytest.raises(MillstreamError):
        await append(partition, late)
    await successor.write(2)
    await successor.end(is_commit=True)
    assert node.committed(("t", 0)) == node.committed(("t", 1)) == [b"2"]
    await node.stop()


@in_loop
async def test_a_transaction_that_times_out_lets_readers_go_on() -> None:
    node = RealNode(SimulatedFilesystem(), FakeMetadata())
    await node.start()
    client = Client(node, is_bumping=True)
    await client.start()
    await client.write(0)
    partition = node.topics.partition("t", 0)
    assert partition.last_stable_offset == 0
    node.timers.advance(TIMEOUT_MS / 1000)
    await turns(200)
    await node.settled()
    assert partition.last_stable_offset == partition.high_watermark == 2
    assert node.committed(("t", 0)) == []
    assert node.committed_offset() == -1
    await node.stop()

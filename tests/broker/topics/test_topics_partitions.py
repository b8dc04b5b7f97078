"""Topics with the partitions of a node: changes to a topic are applied to its records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topics import Topics
from millstream.config.schema import BrokerConfig
from millstream.errors import BatchTooLarge, InvalidRecord, UnknownTopic
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.broker.partitions import append
from tests.broker.topic_nodes import make_store
from tests.in_loop import in_loop
from tests.metadata.memory import MemoryMetadata

pytestmark = pytest.mark.timeout(60)

CLOCK = ManualClock()


@asynccontextmanager
async def node(disk: SimulatedFilesystem, metadata: MemoryMetadata) -> AsyncIterator[Topics]:
    store = make_store(disk)
    store.open()
    topics = Topics(
        metadata=metadata,
        store=store,
        config=BrokerConfig(),
        make_partition=lambda topic, index: Partition(
            topic.name,
            index,
            topic_id=topic.id,
            store=store,
            config=topic.config,
            clock=CLOCK,
            background=SeededBackground(5),
        ),
    )
    await topics.open()
    yield topics
    await topics.close()
    await store.close()


def batch(size: int = 10) -> bytes:
    return build_batch([Record(b"x" * size)], now_ms=CLOCK.wall_ms())


@in_loop
async def test_records_survive_a_restart_and_not_their_topic():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with node(disk, metadata) as topics:
        topic = await topics.create("a")
        await topic.partition(0).open()
        await append(topic.partition(0), batch())
    async with node(disk, metadata) as topics:
        partition = topics.partition("a", 0)
        await partition.open()
        assert partition.high_watermark == 1
        await topics.delete("a")
        with pytest.raises(UnknownTopic):
            await append(partition, batch())
        with pytest.raises(UnknownTopic):
            await partition.open()
        again = await topics.create("a")
        await again.partition(0).open()
        assert again.partition(0).high_watermark == 0


@in_loop
async def test_configs_hold_for_open_and_for_unopened_partitions_at_once():
    async with node(SimulatedFilesystem(), MemoryMetadata()) as topics:
        topic = await topics.create("a", partitions=2)
        await topic.partition(0).open()
        await topics.alter("a", {"max.message.bytes": "500", "cleanup.policy": "compact"})
        await topic.partition(1).open()
        await topics.add_partitions("a", 3)
        await topic.partition(2).open()
        for partition in topic.partitions:
            with pytest.raises(BatchTooLarge):
                await append(partition, batch(1000))
            with pytest.raises(InvalidRecord):
                await append(partition, batch())

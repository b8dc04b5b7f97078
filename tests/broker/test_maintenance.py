"""The broker maintains its logs according to the topic configs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.broker.broker import Broker
from millstream.broker.groups.values import OffsetAndMetadata, OffsetCommitter
from millstream.broker.partition.partition import Partition
from millstream.config.schema import LogConfig, StoreConfig
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition
from millstream.storage.files.names import LogName
from millstream.storage.store import Store
from millstream.testing import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.broker.partitions import append, batch, values

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
INTERVAL = StoreConfig().upkeep_interval_ms / 1000


class Node:
    """A broker that can be restarted, with a manual clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.broker: Broker

    async def start(self) -> None:
        self.timers = ManualTimers(self.clock)
        self.broker = await Broker.open(str(self.path), clock=self.clock, timers=self.timers)

    async def restart(self) -> None:
        await self.broker.close()
        await self.start()

    async def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.broker.topics.partition(topic, index)
        await found.open()
        return found

    async def wait(self, ms: int, *, is_forced: bool = False) -> None:
        """Advance the clock and run log maintenance."""
        self.clock.advance(ms / 1000)
        await self.broker.store.maintenance.run_once(is_forced=is_forced)

    def is_open(self, topic: str) -> bool:
        return self.broker.store.find(LogName(topic, 0)) is not None


def with_node(work: Callable[[Node], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @functools.wraps(work)
    def test(tmp_path: Path) -> None:
        async def live() -> None:
            node = Node(tmp_path)
            await node.start()
            try:
                await asyncio.wait_for(work(node), 60)
            finally:
                await node.broker.close()

        asyncio.run(live())

    del test.__wrapped__
    return test


async def fill(node: Node, topic: str, count: int = 5, **fields: Any) -> None:
    found = await node.partition(topic)
    for number in range(count):
        await append(found, batch(b"%d" % number, **fields))


@with_node
async def test_what_is_older_than_its_topic_allows_goes(node):
    for name, retention_ms in (("short", MINUTE_MS), ("long", HOUR_MS), ("ever", -1)):
        await node.broker.topics.create(name, configs={"retention.ms": str(retention_ms)})
        await fill(node, name)
    await node.wait(2 * MINUTE_MS)
    await node.wait(2 * MINUTE_MS)
    starts = [(await node.partition(name)).log_start_offset for name in ("short", "long", "ever")]
    assert starts == [5, 0, 0]


@with_node
async def test_it_happens_by_itself(node):
    await node.broker.topics.create("a", configs={"retention.ms": "1"})
    await fill(node, "a")
    partition = await node.partition("a")
    for runs in range(1, 4):
        node.timers.advance(INTERVAL)
        while node.broker.store.maintenance.counters.runs < runs:  # noqa: ASYNC110 - Nobody tells.
            await asyncio.sleep(0)
    assert partition.log_start_offset == 5


@with_node
async def test_a_partition_is_opened_only_if_something_has_to_go(node):
    for name, retention_ms in (("short", MINUTE_MS), ("long", HOUR_MS)):
        await node.broker.topics.create(name, configs={"retention.ms": str(retention_ms)})
        await fill(node, name)
    await node.restart()
    await node.wait(2 * MINUTE_MS)
    assert (node.is_open("short"), node.is_open("long")) == (True, False)
    assert node.broker.topics.partition("short", 0).is_open
    assert (await node.partition("short")).log_start_offset == 5


@with_node
async def test_a_change_of_settings_holds_for_open_and_unopened_partitions(node):
    for name in ("open", "unopened"):
        await node.broker.topics.create(name)
        await fill(node, name)
    await node.restart()
    await node.partition("open")
    for name in ("open", "unopened"):
        await node.broker.topics.alter(name, {"retention.ms": str(MINUTE_MS)})
    await node.wait(2 * MINUTE_MS)
    await node.wait(2 * MINUTE_MS)
    for name in ("open", "unopened"):
        assert (await node.partition(name)).log_start_offset == 5


@with_node
async def test_a_compacted_topic_keeps_the_latest_of_each_key_and_nothing_goes_by_age(node):
    configs = {"cleanup.policy": "compact", "retention.ms": "1", "segment.ms": "1"}
    await node.broker.topics.create("a", configs=configs)
    await fill(node, "a", key=b"k")
    for _ in range(3):
        await node.wait(MINUTE_MS)
    partition = await node.partition("a")
    assert values(partition) == [b"4"]
    found = partition.reader.describe()
    assert (found.start_offset, found.cleaned_offset, found.gaps) == (0, 5, ())


@with_node
async def test_what_was_never_to_go_stays(node):
    await node.broker.topics.create("a", configs={"cleanup.policy": "", "retention.bytes": "1"})
    await fill(node, "a", key=b"k")
    await node.wait(365 * 24 * HOUR_MS)
    await node.wait(365 * 24 * HOUR_MS, is_forced=True)
    assert values(await node.partition("a")) == [b"0", b"1", b"2", b"3", b"4"]


@with_node
async def test_what_an_embedded_store_made_stays_and_is_guarded(node):
    await node.broker.close()
    async with Store(str(node.path), clock=node.clock, log_config=LogConfig()) as store:
        log = await store.log("a")
        await log.append_records([Record(b"embedded")])
    await node.start()
    assert node.broker.topics.get("a").config.overrides == {"retention.ms": "-1"}
    await node.wait(365 * 24 * HOUR_MS, is_forced=True)
    assert node.broker.topics.partition("a", 0).is_open
    assert node.broker.store.get("a").removal_hooks is not None
    assert values(await node.partition("a")) == [b"embedded"]


@with_node
async def test_the_offsets_of_groups_are_nobodys_business(node):
    await node.broker.topics.create("a", configs={"retention.ms": "1"})
    await fill(node, "a")
    where = TopicPartition("a", 0)
    await node.broker.groups.of("g").commit(
        "g", OffsetCommitter(), {where: OffsetAndMetadata(offset=3)}
    )
    await node.wait(HOUR_MS, is_forced=True)
    await node.wait(HOUR_MS, is_forced=True)
    assert (await node.partition("a")).log_start_offset == 5
    await node.restart()
    assert node.broker.groups.committed("g")[where].offset.offset == 3


@with_node
async def test_a_topic_that_is_deleted_meanwhile_does_no_harm(node):
    await node.broker.topics.create("a", configs={"retention.ms": "1"})
    await node.broker.topics.create("b", configs={"retention.ms": "1"})
    for name in ("a", "b"):
        await fill(node, name)
    node.clock.advance(1)
    await asyncio.gather(
        node.broker.store.maintenance.run_once(is_forced=True), node.broker.topics.delete("a")
    )
    await node.wait(1000)
    assert (await node.partition("b")).log_start_offset == 5


@with_node
async def test_a_broker_that_closes_stops_it(node):
    await node.broker.topics.create("a", configs={"retention.ms": "1"})
    await fill(node, "a")
    node.timers.advance(INTERVAL)
    await node.broker.close()
    assert node.timers.pending == 0

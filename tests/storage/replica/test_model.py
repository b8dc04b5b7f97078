"""Any order of what a leader and its replica do ends with equal logs.

A model of two logs that lead in turn: the one that leads appends, rolls and begins epochs, the
other follows, is cut where they part, crashes and is opened again.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.testing import SimulatedFilesystem
from tests.storage.logs import turns
from tests.storage.replica.replicas import append, open_log, segment_files, values

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 40

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 300)),
        st.tuples(st.just("follow"), st.integers(1, 1000), st.integers(1, 4)),
        st.tuples(st.sampled_from(["roll", "crash", "close", "switch", "empty"])),
    ),
    max_size=20,
)


class Pair:
    """Two logs, of which one leads."""

    def __init__(self) -> None:
        self.disks = [SimulatedFilesystem(), SimulatedFilesystem()]
        self.logs: list[Log] = []
        self.stores: list[Any] = []
        self.leader = 0
        self.epoch = 1
        self.high_watermark = 0
        self.written = 0

    async def open(self) -> None:
        for disk in self.disks:
            store, log = await open_log(disk)
            self.stores.append(store)
            self.logs.append(log)
        await self.logs[0].begin_epoch(1)
        await self.logs[1].replication.become_replica()
        for log in self.logs:
            log.replication.set_high_watermark(0)

    @property
    def leading(self) -> Log:
        return self.logs[self.leader]

    @property
    def following(self) -> Log:
        return self.logs[1 - self.leader]

    async def append(self, count: int, size: int) -> None:
        self.written += 1
        records = [Record(b"%d.%d:" % (self.written, n) + b"x" * size) for n in range(count)]
        await append(self.leading, records)

    async def follow(self, size_max: int, slices: int) -> None:
        replica = self.following.replication
        await self.cut()
        for _ in range(slices):
            source = self.leading.replication.read(replica.position.offset, size_max=size_max)
            await replica.append(source)
        self.high_watermark = max(self.high_watermark, replica.durable_offset)
        assert self.high_watermark <= self.leading.replication.durable_offset
        for log in self.logs:
            log.replication.set_high_watermark(self.high_watermark)
            assert log.end_offset <= self.high_watermark
        assert values(self.following) == values(self.leading)

    async def cut(self) -> None:
        """Cut the replica where the leader says that their logs part (KIP-101, KIP-279)."""
        replica = self.following.replication
        while (epoch := replica.last_epoch) is not None:
            found = self.leading.replication.epoch_end(epoch)
            assert found is not None
            own = replica.epoch_end(found[0])
            assert own is not None
            end = min(found[1], own[1], replica.durable_offset)
            if end == replica.durable_offset:
                return
            await replica.truncate(end)

    async def roll(self) -> None:
        await self.leading.roll()

    async def reopen(self) -> None:
        follower = 1 - self.leader
        self.stores[follower], log = await open_log(self.disks[follower])
        self.logs[follower] = log
        await log.replication.become_replica()
        log.replication.set_high_watermark(self.high_watermark)

    async def crash(self) -> None:
        follower = 1 - self.leader
        self.disks[follower] = self.disks[follower].crash()
        await self.reopen()
        assert self.following.replication.durable_offset >= self.high_watermark

    async def close(self) -> None:
        await self.stores[1 - self.leader].close()
        await self.reopen()

    async def empty(self) -> None:
        """Empty the replica, as if its disk were new, and fetch again what it had confirmed."""
        replica = self.following.replication
        await replica.restart_at(0)
        assert (self.following.start_offset, self.following.end_offset) == (0, 0)
        while replica.durable_offset < self.high_watermark:
            await replica.append(self.leading.replication.read(replica.position.offset))

    async def switch(self) -> None:
        """Let the other lead. It has everything up to the high watermark."""
        await self.cut()
        await self.leading.replication.become_replica()
        self.leader = 1 - self.leader
        self.epoch += 1
        await self.leading.begin_epoch(self.epoch)

    async def end(self) -> None:
        await self.append(1, 10)
        while self.following.replication.durable_offset < self.leading.replication.durable_offset:
            await self.follow(400, 3)
        await self.follow(400, 3)
        await turns()
        assert segment_files(self.following) == segment_files(self.leading)
        assert self.following.partition.epochs == self.leading.partition.epochs
        for store in self.stores:
            await store.close()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(STEPS)
def test_two_logs_that_lead_in_turn_end_equal(steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        pair = Pair()
        await pair.open()
        for name, *arguments in steps:
            await getattr(pair, name)(*arguments)
        await pair.end()

    asyncio.run(run())

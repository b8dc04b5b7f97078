"""The next events of one connection over several partitions, and its cursor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.config.schema import HttpConfig
from millstream.errors import StorageFailed
from millstream.records.cursor import CursorPosition, encode_cursor
from millstream.records.record import Record
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.live.start_position import StartPosition
from millstream.servers.http.live.subscriber import LiveEvent, LiveSubscriber

from .usages import usage_of


class Bench:
    """A topic of two partitions, and a subscriber at its tail."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.live = LiveDelivery(broker, HttpConfig(live_bytes_max=1024))
        self.subscriber: LiveSubscriber

    async def append(self, partition: int, *values: bytes) -> None:
        topic = self.broker.topics.get("t")
        records = [Record(value) for value in values]
        places = [partition] * len(values)
        await self.broker.appends.append(topic, records, partitions=places)

    async def settle(self) -> None:
        """Let the feeds finish their work."""
        feeds = [subscription.feed for subscription in self.subscriber.subscriptions]
        for _ in range(20):
            await asyncio.sleep(0)
        assert all(feed and feed.next_offset == self.end(feed.partition) for feed in feeds)

    def cursor(self, *offsets: int) -> bytes:
        """Return the cursor of offsets by partition."""
        topic_id = self.broker.topics.get("t").id
        positions = {("t", n): CursorPosition(at, topic_id) for n, at in enumerate(offsets)}
        return encode_cursor(positions).encode()

    def end(self, partition: Partition) -> int:
        return partition.last_stable_offset

    async def next(self) -> LiveEvent:
        event = await self.subscriber.next_event()
        assert event is not None
        return event


def with_bench(path: Path, work: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = await Broker.open(str(path))
        try:
            await broker.topics.create("t", partitions=2)
            bench = Bench(broker)
            bench.subscriber = bench.live.enter(is_lasting=True, usage=usage_of(broker))
            await bench.live.follow(bench.subscriber, ["t"], StartPosition("latest"), None)
            await asyncio.wait_for(work(bench), 30)
            bench.live.leave(bench.subscriber)
            assert len(bench.live.feeds) == 0
        finally:
            await broker.close()

    asyncio.run(run())


def test_a_cursor_says_nothing_of_what_still_waits(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.append(0, b"1")
        await bench.append(1, b"2")
        await bench.settle()
        cursors = [(await bench.next()).cursor for _ in range(2)]
        assert cursors == [bench.cursor(1, 0), bench.cursor(1, 1)]

    with_bench(tmp_path, work)


def test_a_busy_partition_does_not_starve_another(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        for _ in range(200):
            await bench.append(0, b"x" * 2_000)
        await bench.append(1, b"1")
        kinds = []
        while (event := await bench.next()).kind != "records" or b'"partition":1' not in event.data:
            kinds.append(event.kind)
        assert len(kinds) < 5

    with_bench(tmp_path, work)


def test_a_burst_larger_than_all_room_gets_through(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.append(0, b"x" * 5_000)
        await bench.settle()
        event = await bench.next()
        assert (event.kind, event.cursor) == ("records", bench.cursor(1, 0))
        assert bench.live.counters.catch_ups == 0

    with_bench(tmp_path, work)


def test_a_burst_without_room_is_told_once_and_read_again(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        for number in range(20):
            await bench.append(0, b'"%d%s"' % (number, b"x" * 100))
            await bench.settle()
        assert bench.subscriber.queued_bytes <= 1024
        lagged = await bench.next()
        assert lagged.kind == "lagged"
        assert lagged.cursor is None
        told = json.loads(lagged.data)
        assert (told["topic"], told["partition"], told["from"]) == ("t", 0, 0)
        offsets: list[int] = []
        while len(offsets) < 20:
            event = await bench.next()
            assert event.kind == "records"
            offsets += [record["offset"] for record in json.loads(event.data)["records"]]
        assert offsets == list(range(20))
        assert bench.live.counters.lags == 1

    with_bench(tmp_path, work)


def test_a_partition_that_cannot_be_read_ends_its_topic(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        subscription = bench.subscriber.subscriptions[0]
        subscription.end(StorageFailed("the disk is gone"))
        event = await bench.next()
        assert json.loads(event.data) == {"topic": "t", "reason": "failed"}
        assert not bench.subscriber.topics

    with_bench(tmp_path, work)

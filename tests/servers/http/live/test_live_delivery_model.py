"""Whatever happens to a topic and to its watcher, every live record comes once, and in order.

A real topic with real feeds and subscribers, and no sockets: the events are those that a client
would get by SSE or by WebSocket, and a client that reconnects does so with its last cursor. In
between, a plain read may continue from the same cursor.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.broker.broker import Broker
from millstream.broker.partition.record_page import read_page
from millstream.config.schema import HttpConfig
from millstream.protocols.http.cursors import decode_cursor
from millstream.records.record import Record
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.live.sse import frame as sse_frame
from millstream.servers.http.live.start_position import StartPosition
from millstream.servers.http.live.subscriber import LiveEvent, LiveSubscriber
from millstream.servers.http.live.websocket import frame as socket_frame

from .usages import usage_of

WEB = HttpConfig(live_bytes_max=1024)
NUMBERS = itertools.count()

APPENDS = st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 12))
TURNS = st.tuples(st.just("turns"), st.integers(3, 6))
READS = st.tuples(st.just("read"), st.integers(1, 3))
STEPS = st.lists(
    st.one_of(
        *[APPENDS] * 3,
        *[TURNS] * 2,
        *[READS] * 2,
        *[st.tuples(st.just("come_again"), st.sampled_from(["sse", "websocket"]))] * 2,
        st.tuples(st.just("evict"), st.integers(0, 1), st.integers(1, 30)),
        st.tuples(st.just("delete_before"), st.integers(0, 1), st.integers(1, 30)),
        st.tuples(st.just("delete_key"), st.integers(0, 3)),
        st.tuples(st.just("difference"), st.integers(0, 1), st.integers(1, 10)),
        st.tuples(st.just("grow")),
    ),
    min_size=10,
    max_size=40,
)
"""Frequent steps are listed several times, so that the others find something to disturb."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def broker(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path: Path = tmp_path_factory.mktemp("node")
    found = loop.run(Broker.open(str(path)))
    yield found
    loop.run(found.close())


class Session:
    """One client that comes back again and again, and all that it was told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.live = LiveDelivery(broker, WEB)
        self.name = f"t{next(NUMBERS)}"
        self.deleted: set[tuple[int, int]] = set()
        self.appended: dict[tuple[int, int], int] = {}
        """The key of each record, by its partition and offset."""
        self.seen: dict[int, list[int]] = {}
        self.missed: set[tuple[int, int]] = set()
        self.cursor = f"{self.name}:0:0,{self.name}:1:0"
        self.frame = sse_frame
        self.subscriber: LiveSubscriber

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        configs = {"millstream.durability": "ephemeral"}
        await self.broker.topics.create(self.name, partitions=2, configs=configs)
        await self.enter()
        for step, *numbers in steps:
            await getattr(self, step)(*numbers)
        await self.catch_up()
        self.live.leave(self.subscriber)
        assert len(self.live.feeds) == 0
        await self.broker.topics.delete(self.name)

    async def enter(self) -> None:
        self.subscriber = self.live.enter(is_lasting=True, usage=usage_of(self.broker))
        await self.live.follow(self.subscriber, [self.name], StartPosition(self.cursor), None)

    # What happens to the topic.

    async def append(self, partition: int, count: int) -> None:
        keys = [number % 4 for number in range(count)]
        records = [Record(b"%d" % key * 20, key=b"%d" % key) for key in keys]
        topic = self.broker.topics.get(self.name)
        placed = await self.broker.appends.append(topic, records, partitions=[partition] * count)
        for key, offset in zip(keys, placed.offsets, strict=True):
            self.appended[partition, offset] = key

    async def evict(self, partition: int, offset: int) -> None:
        log = self.broker.store.get(self.name, partition)
        await log.evict_before(max(log.start_offset, min(offset, log.end_offset)))

    async def delete_before(self, partition: int, offset: int) -> None:
        found = self.broker.topics.partition(self.name, partition)
        offset = min(offset, found.high_watermark)
        await found.delete_before(offset)
        self.deleted |= {(partition, before) for before in range(offset)}

    async def delete_key(self, key: int) -> None:
        for partition in self.broker.topics.get(self.name).partitions:
            if partition.is_open:
                await partition.delete_keys(key=b"%d" % key)
                self.deleted |= {
                    progress
                    for progress, own in self.appended.items()
                    if own == key and progress[0] == partition.index
                }

    async def grow(self) -> None:
        count = self.broker.topics.get(self.name).partition_count
        if count < 4:
            await self.broker.topics.add_partitions(self.name, count + 1)
            await self.append(count, 3)

    # What the client does.

    async def turns(self, count: int) -> None:
        """Let feeds work while the client reads nothing."""
        for _ in range(count):
            await asyncio.sleep(0)

    async def read(self, count: int) -> None:
        for _ in range(count):
            self.subscriber.beat()  # So that there is something, also where nothing is new.
            event = await self.subscriber.next_event()
            assert event is not None
            self.take(event)

    def take(self, event: LiveEvent) -> None:
        kind, data, cursor = self.parsed(event)
        if kind == "records":
            offsets = [record["offset"] for record in data["records"]]
            assert data["next"] > offsets[-1]
            self.see(data["partition"], offsets)
        elif kind == "gap":
            partition = data["partition"]
            self.missed |= {(partition, at) for at in range(data["from"], data["to"] + 1)}
        elif kind == "lagged":
            assert cursor is None
            own = decode_cursor(self.cursor)
            assert own.get((self.name, data["partition"]), 0) <= data["from"] <= data["to"]
        else:
            assert kind == "heartbeat"
        if cursor is not None:
            self.cursor = cursor
        self.check_cursor()

    def parsed(self, event: LiveEvent) -> tuple[str, Any, str | None]:
        if self.frame is sse_frame:
            lines = sse_frame(event).decode().removesuffix("\n\n").split("\n")
            fields = dict(line.split(": ", 1) for line in lines)
            return fields["event"], json.loads(fields["data"]), fields.get("id")
        message = json.loads(socket_frame(event))
        return message.pop("type"), message, message.pop("cursor", None)

    def see(self, partition: int, offsets: list[int]) -> None:
        seen = self.seen.setdefault(partition, [])
        assert offsets == sorted(set(offsets))
        assert not seen or offsets[0] > seen[-1], "nothing twice, and rising"
        seen += offsets

    async def come_again(self, kind: str) -> None:
        self.live.leave(self.subscriber)
        self.frame = sse_frame if kind == "sse" else socket_frame
        await self.enter()

    async def difference(self, index: int, limit: int) -> None:
        """Read from the cursor on with a plain read, as a client without a connection."""
        self.live.leave(self.subscriber)
        places = decode_cursor(self.cursor)
        partition = self.broker.topics.partition(self.name, index)
        progress = (self.name, index)
        found = await read_page(partition, places[progress], limit=limit, size_max=500)
        if found.gap is not None:
            self.missed |= {
                (index, at) for at in range(found.gap.from_offset, found.gap.to_offset + 1)
            }
        if found.records:
            self.see(index, [record.offset for record in found.records])
        places[progress] = found.next_offset
        self.cursor = ",".join(f"{topic}:{at}:{to}" for (topic, at), to in places.items())
        await self.enter()

    # What holds.

    async def catch_up(self) -> None:
        heads = {
            (self.name, one.index): one.high_watermark
            for one in self.broker.topics.get(self.name).partitions
            if one.is_open
        }
        for _ in range(1_000):
            await self.turns(2)
            await self.read(1)
            if decode_cursor(self.cursor) == heads:
                break
        assert decode_cursor(self.cursor) == heads
        self.check_cursor()

    def check_cursor(self) -> None:
        """Check that everything before the cursor was seen, reported as a gap, or deleted."""
        places = decode_cursor(self.cursor)
        for progress in self.appended.keys() - self.deleted - self.missed:
            partition, offset = progress
            if offset < places.get((self.name, partition), 0):
                assert offset in self.seen.get(partition, ()), progress


@settings(max_examples=100)
@given(steps=STEPS)
def test_every_live_record_comes_once_in_order_or_its_range_is_told(
    loop: asyncio.Runner, broker: Broker, steps: list[tuple[Any, ...]]
) -> None:
    loop.run(Session(broker).run(steps))

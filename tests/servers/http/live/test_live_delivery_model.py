"""Whatever happens to a topic and to its watcher, every live record comes once, and in order.

A real topic with real feeds and subscribers, and no sockets: the events are those that a client
would get by SSE or by WebSocket, and a client that reconnects does so with its last cursor. In
between, a plain read may continue from the same cursor.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.broker.broker import Broker
from millstream.broker.partition.record_page import read_page
from millstream.config.schema import HttpConfig
from millstream.records.cursor import (
    CursorPosition,
    decode_cursor,
    encode_cursor,
)
from millstream.records.record import Record
from millstream.servers.http.handlers.records import start_of
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
        st.tuples(st.just("recreate"), st.integers(1, 3)),
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
        self.cursor = ""
        self.untold: set[int] = set()
        """Partitions of a topic that was created again, of which the client was not told yet."""
        self.frame = sse_frame
        self.subscriber: LiveSubscriber

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        await self.create()
        self.cursor = encode_cursor({(self.name, n): CursorPosition(0, self.id) for n in (0, 1)})
        await self.enter()
        for step, *numbers in steps:
            await getattr(self, step)(*numbers)
        await self.catch_up()
        assert not self.untold
        self.live.leave(self.subscriber)
        assert len(self.live.feeds) == 0
        await self.broker.topics.delete(self.name)

    async def create(self) -> None:
        configs = {"millstream.durability": "ephemeral"}
        await self.broker.topics.create(self.name, partitions=2, configs=configs)

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

    async def recreate(self, count: int) -> None:
        """Delete the topic and create it again; the client returns with its old cursor."""
        self.live.leave(self.subscriber)
        await self.broker.topics.delete(self.name)
        await self.create()
        self.deleted, self.missed, self.appended = set(), set(), {}
        self.untold = {0, 1}
        self.seen = {partition: self.seen.get(partition, []) for partition in self.untold}
        for partition in self.untold:
            await self.append(partition, count)
        await self.enter()

    @property
    def id(self) -> uuid.UUID:
        return self.broker.topics.get(self.name).id

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
            if data["reason"] == "recreated":
                self.start_over(partition)
            else:
                assert partition not in self.untold
                self.missed |= {(partition, at) for at in range(data["from"], data["to"] + 1)}
        elif kind == "lagged":
            assert cursor is None
            own = decode_cursor(self.cursor).get((self.name, data["partition"]))
            assert own is None or own.offset <= data["from"] <= data["to"]
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
        assert partition not in self.untold, "another topic's records under an old cursor"
        seen = self.seen.setdefault(partition, [])
        assert offsets == sorted(set(offsets))
        assert not seen or offsets[0] > seen[-1], "nothing twice, and rising"
        seen += offsets

    def start_over(self, partition: int) -> None:
        # A partition that was added since may be in it too, if no cursor has it yet.
        assert partition in self.untold or partition > 1
        self.untold.discard(partition)
        self.seen[partition] = []

    async def come_again(self, kind: str) -> None:
        self.live.leave(self.subscriber)
        self.frame = sse_frame if kind == "sse" else socket_frame
        await self.enter()

    async def difference(self, index: int, limit: int) -> None:
        """Read from the cursor on with a plain read, as a client without a connection."""
        self.live.leave(self.subscriber)
        places = decode_cursor(self.cursor)
        start = start_of(self.broker.topics.get(self.name), index, self.cursor)
        if start.gap is not None:
            self.start_over(index)
        found = await read_page(start.partition, start.offset, limit=limit, size_max=500)
        if found.gap is not None:
            self.missed |= {
                (index, at) for at in range(found.gap.from_offset, found.gap.to_offset + 1)
            }
        if found.records:
            self.see(index, [record.offset for record in found.records])
        places[self.name, index] = CursorPosition(found.next_offset, self.id)
        self.cursor = encode_cursor(places)
        await self.enter()

    # What holds.

    async def catch_up(self) -> None:
        heads = {
            (self.name, one.index): CursorPosition(one.high_watermark, one.topic_id)
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
            position = places.get((self.name, partition))
            if position and position.topic_id == self.id and offset < position.offset:
                assert offset in self.seen.get(partition, ()), progress


@settings(max_examples=100)
@given(steps=STEPS)
def test_every_live_record_comes_once_in_order_or_its_range_is_told(
    loop: asyncio.Runner, broker: Broker, steps: list[tuple[Any, ...]]
) -> None:
    loop.run(Session(broker).run(steps))

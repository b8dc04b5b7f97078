"""The coordinator of streams: elected, loaded, deposed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from millstream.broker.state.internal_partitions import InternalPartition
from millstream.broker.streams.create_stream import CreateStream
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.stream_coordinators import StreamCoordinators
from millstream.broker.streams.writers import NO_MARK, WriteMark
from millstream.config.schema import MIB
from millstream.errors import (
    CoordinatorLoading,
    NotCoordinator,
    NotCoordinatorAnymore,
    UnknownStream,
)
from tests.broker.state.internal_nodes import ElectedPartitions, turns
from tests.broker.streams.node import TEXT, Node
from tests.in_loop import in_loop

STREAMS = InternalPartition("streams")


class ClusterNode(Node):
    """A node whose topics are its own and whose streams are those of a cluster."""

    async def begin(self) -> None:
        await self.start()
        await self.streams.close()
        self.internal = ElectedPartitions()
        await self._open_coordinator()

    async def _open_coordinator(self) -> None:
        self.all = StreamCoordinators(
            replace(self.internal.context(), clock=self.clock, timers=self.timers),
            self.topics,
            retention_clock=None,
        )
        await self.all.open()

    async def restart_coordinator(self) -> None:
        await self.all.close()
        await self._open_coordinator()

    async def make(self, path: str, request: CreateStream = TEXT) -> DurableStream:
        made, _ = await self.all.of(path).create(path, request, [], message_bytes_max=MIB)
        return made

    def get(self, path: str) -> DurableStream:
        return self.all.of(path).get(path)

    async def pass_time(self, seconds: float) -> None:
        self.timers.advance(seconds)
        await turns()


@asynccontextmanager
async def a_node() -> AsyncIterator[ClusterNode]:
    """A node that coordinates the streams."""
    node = ClusterNode()
    await node.begin()
    await node.internal.take(STREAMS)
    try:
        yield node
    finally:
        await node.all.close()
        await node.topics.close()
        await node.state.close()
        await node.store.close()
        await node.state_store.close()
        await node.internal.store.close()


async def move(node: ClusterNode) -> None:
    """Let another node coordinate the streams for a while."""
    await node.internal.lose(STREAMS)
    await node.internal.take(STREAMS, epoch=3)


@in_loop
async def test_streams_are_refused_by_other_nodes_and_while_they_are_loaded() -> None:
    async with a_node() as node:
        await node.make("a")
        await node.internal.lose(STREAMS, leader=2)
        with pytest.raises(NotCoordinator) as refused:
            node.get("a")
        assert refused.value.coordinator == 2
        node.internal.opening = asyncio.Event()
        await node.internal.take(STREAMS, epoch=2)
        with pytest.raises(CoordinatorLoading):
            node.get("a")
        node.internal.opening.set()
        await turns()
        assert node.get("a").path == "a"
        with pytest.raises(UnknownStream):
            node.get("b")


@in_loop
async def test_the_next_coordinator_knows_what_producers_wrote() -> None:
    async with a_node() as node:
        stream = await node.make("a")
        await stream.append([b"x"], WriteMark("p", 0, 0))
        await move(node)
        stream = node.get("a")
        assert (await stream.append([b"x"], WriteMark("p", 0, 0))).is_duplicate
        assert not (await stream.append([b"y"], WriteMark("p", 0, 1))).is_duplicate
        await stream.close(NO_MARK._replace(is_closing=True))
        await move(node)
        await node.get("a").open()
        assert node.get("a").closure is not None


@in_loop
async def test_a_deposed_coordinator_creates_appends_closes_and_deletes_nothing() -> None:
    async with a_node() as node:
        stream = await node.make("a")
        late = node.all.of("a")
        log = node.internal.logs.pop(STREAMS)
        end = log.end_offset
        node.internal.depose(STREAMS)
        for attempt in (
            lambda: late.create("b", TEXT, [], message_bytes_max=MIB),
            lambda: late.delete("a"),
            lambda: stream.append([b"x"], NO_MARK),
            lambda: stream.close(NO_MARK),
        ):
            with pytest.raises(NotCoordinator):
                await attempt()
        with pytest.raises(NotCoordinator):
            late.get("a")
        late.use(stream)
        await turns()
        assert log.end_offset == end
        assert stream.partition.before_removal is None
        assert node.topics.find("a") is not None


@in_loop
async def test_a_creation_in_flight_is_no_success_when_the_coordinator_is_deposed() -> None:
    async with a_node() as node:
        log = node.internal.logs.pop(STREAMS)
        log.is_held = True
        creating = asyncio.create_task(node.make("a"))
        await turns()
        node.internal.depose(STREAMS)
        log.let_go()
        with pytest.raises((NotCoordinator, NotCoordinatorAnymore)):
            await creating


@in_loop
async def test_readers_that_wait_are_woken_when_the_coordinator_is_deposed() -> None:
    async with a_node() as node:
        stream, streams = await node.make("a"), node.all.of("a")
        woken = asyncio.Event()
        with streams.reading(stream, woken.set):
            assert node.all.waiting_count == 1
            node.internal.depose(STREAMS)
            assert woken.is_set()
            assert streams.is_stopping


@in_loop
async def test_streams_expire_at_their_coordinator_only_and_never_early() -> None:
    async with a_node() as node:
        await node.make("a", CreateStream(content_type="text/plain", ttl_seconds=100))
        await node.pass_time(50)
        node.internal.depose(STREAMS)
        await node.pass_time(1_000)
        assert node.topics.find("a") is not None
        await node.internal.take(STREAMS, epoch=2)
        await node.pass_time(90)
        assert node.get("a").path == "a", "time without a coordinator does not count"
        await node.pass_time(30)
        await node.pass_time(1)
        with pytest.raises(UnknownStream):
            node.get("a")


@in_loop
async def test_a_stream_that_nobody_uses_expires_however_often_its_coordinator_changes() -> None:
    async with a_node() as node:
        await node.make("a", CreateStream(content_type="text/plain", ttl_seconds=3_600))
        for _ in range(5):
            for _ in range(10):
                await node.pass_time(60)
            await move(node)
            assert node.get("a").path == "a", "it was not used for at most 3,000 seconds"
        for _ in range(20):
            await node.pass_time(60)
        with pytest.raises(UnknownStream):
            node.get("a")


@in_loop
async def test_a_coordinator_that_stops_stores_how_long_streams_were_not_used() -> None:
    async with a_node() as node:
        await node.make("a", CreateStream(content_type="text/plain", ttl_seconds=100))
        await node.pass_time(50)
        await node.restart_coordinator()
        await node.pass_time(49)
        assert node.get("a").path == "a"
        await node.pass_time(11)
        await node.pass_time(1)
        with pytest.raises(UnknownStream):
            node.get("a")

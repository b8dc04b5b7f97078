"""The streams of a node over a simulated disk, metadata in memory and a manual clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millstream.broker.partition.partition import Partition
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.create_stream import CreateStream, ForkSource
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.streams import DurableStreams
from millstream.broker.streams.writers import NO_MARK, WriteMark
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.config.schema import MIB, BrokerConfig
from millstream.metadata.interface import MetadataEntry
from millstream.records.iterate import read_all
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.store import Store
from millstream.testing import ManualClock, ManualTimers, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.metadata.memory import MemoryMetadata, MetadataServer

TEXT = CreateStream(content_type="text/plain")
JSON = CreateStream(content_type="application/json")


@dataclass(frozen=True)
class Rows:
    """The contents of metadata from a moment on."""

    entries: tuple[MetadataEntry, ...]
    revision: int


def traced_metadata(disk: SimulatedFilesystem) -> MemoryMetadata:
    """Return metadata that writes its changes into the trace of the disk: a crash has both."""
    server = MetadataServer()
    server.on_change = lambda: disk.note(Rows(tuple(server.entries.values()), server.revision))
    return server.connect()


class Node:
    """The dependencies of streams. `restart` and `crash` start a new node on the same disk."""

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        metadata: MemoryMetadata | None = None,
        *,
        clock: ManualClock | None = None,
        seed: int = 0,
    ) -> None:
        self.disk = SimulatedFilesystem()
        self.filesystem = filesystem or self.disk
        if metadata is None:
            metadata = traced_metadata(self.disk) if filesystem is None else MemoryMetadata()
        self.metadata = metadata
        self.clock = clock or ManualClock()
        self.timers = ManualTimers(self.clock)
        self.streams: DurableStreams
        self.topics: Topics
        self._seed = seed

    def _store(self, path: str) -> Store:
        return Store(
            path,
            filesystem=self.filesystem,
            clock=self.clock,
            background=SeededBackground(self._seed),
            syncer=SeededSyncer(self._seed),
        )

    async def start(self) -> Node:
        self.store, self.state_store = self._store("/data"), self._store("/state")
        self.store.open()
        self.state_store.open()
        self.topics = Topics(
            metadata=self.metadata,
            store=self.store,
            config=BrokerConfig(),
            make_partition=self._partition,
        )
        await self.topics.open()
        self.state = await StateLog.open(self.state_store, "streams", clock=self.clock)
        self.streams = DurableStreams(
            self.state,
            self.topics,
            clock=self.clock,
            timers=self.timers,
            retention_clock=self.store,
        )
        await self.streams.start()
        return self

    def _partition(self, topic: Topic, index: int) -> Partition:
        return Partition(
            topic.name,
            index,
            topic_id=topic.id,
            store=self.store,
            config=topic.config,
            clock=self.clock,
            background=SeededBackground(self._seed),
        )

    async def stop(self) -> None:
        await self.streams.close()
        await self.state.close()
        await self.topics.close()
        await self.store.close()
        await self.state_store.close()

    async def restart(self) -> None:
        """Stop cleanly, and start again."""
        await self.stop()
        await self.start()

    async def crash(self, seed: int | None = None) -> None:
        """Cut the power, and start again."""
        self.streams.end_waits()
        self.disk = self.disk.crash(seed)
        self.filesystem = self.disk
        self.metadata = self.metadata.reopened()
        await turns()
        await self.start()

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and run what is due."""
        self.timers.advance(seconds)
        await turns(200)

    # Clients.

    async def create(
        self, path: str, asked: CreateStream = TEXT, *values: bytes
    ) -> tuple[DurableStream, bool]:
        return await self.streams.create(path, asked, values, message_bytes_max=20 * MIB)

    async def fork(
        self, path: str, source: str, offset: int | None = None, sub_offset: int = 0
    ) -> DurableStream:
        asked = CreateStream(fork=ForkSource(source, offset, sub_offset))
        return (await self.create(path, asked))[0]

    async def append(self, path: str, *values: bytes, mark: WriteMark = NO_MARK) -> int:
        return (await self.streams.get(path).append(values, mark)).next_offset

    async def values(self, path: str) -> list[bytes | None]:
        """Return all values in the topic of a stream, as a consumer of the topic sees them."""
        stream = self.streams.get(path)
        await stream.open()
        partition = stream.partition
        found: list[bytes | None] = []
        cursor = partition.log_start_offset
        while cursor < partition.high_watermark:
            fetched = partition.reader.read(cursor, size_max=MIB)
            found += [one.value for part in fetched.parts for one in read_all(part)]
            cursor = fetched.next_offset
        return found


async def turns(count: int = 60) -> None:
    """Run the event loop until nothing that is ready is left."""
    for _ in range(count):
        await asyncio.sleep(0)

"""A node that consists of its topics only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

from millstream.broker.topics.configs.topic_config import TopicConfig
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.config.schema import BrokerConfig, LogConfig
from millstream.metadata.interface import Metadata
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.metadata.memory import MemoryMetadata


class PlainPartition:
    """The part of a partition that topics use: it opens its log and records the calls."""

    offsets = SimpleNamespace(leader_epoch=0)

    def __init__(self, topic: Topic, index: int, store: Store) -> None:
        self.topic = topic.name
        self.topic_id = topic.id
        self.index = index
        self.config: TopicConfig = topic.config
        self.is_deleted = False
        self.is_closed = False
        self.log: Log | None = None
        self._store = store

    @property
    def is_open(self) -> bool:
        return self.log is not None

    async def open(self) -> None:
        self.log = await self._store.log(
            self.topic, self.index, config=self.config.log_config(), topic_id=self.topic_id
        )

    async def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        if self.log is not None:
            await self.log.reconfigure(config.log_config())

    def delete(self) -> None:
        self.is_deleted = True

    async def close(self) -> None:
        self.is_closed = True


def make_store(filesystem: Filesystem, *, log_config: LogConfig | None = None) -> Store:
    return Store(
        "/data",
        log_config=log_config,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(3),
    )


def make_topics(
    metadata: Metadata, store: Store, config: BrokerConfig | None = None, **rest: object
) -> Topics:
    return Topics(
        metadata=metadata,
        store=store,
        config=config or BrokerConfig(),
        make_partition=lambda topic, index: PlainPartition(topic, index, store),
        **rest,
    )


@asynccontextmanager
async def running(
    metadata: Metadata | None = None,
    filesystem: Filesystem | None = None,
    config: BrokerConfig | None = None,
    log_config: LogConfig | None = None,
    **rest: object,
) -> AsyncIterator[Topics]:
    """Yield the topics of a node, and stop the node cleanly at the end."""
    store = make_store(filesystem or SimulatedFilesystem(), log_config=log_config)
    store.open()
    topics = make_topics(metadata or MemoryMetadata(), store, config, **rest)
    await topics.open()
    try:
        yield topics
    finally:
        await topics.close()
        await store.close()

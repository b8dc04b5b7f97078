"""A short life of a store, with every acknowledgement and every read noted in the trace."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.records.iterate import read_all
from millstream.records.record import Record, StoredRecord
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.inspect.catalog import Finding
from millstream.storage.inspect.verify_store import verify_store
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer

TOPICS = ("a", "b")
SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=128)


@dataclass(frozen=True)
class Acked:
    """An append was acknowledged: these values are at this offset and after it."""

    topic: str
    offset: int
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Seen:
    """A reader was shown this value."""

    topic: str
    offset: int
    value: bytes


@dataclass(frozen=True)
class Closed:
    """The store was closed cleanly."""


def make_store(filesystem: SimulatedFilesystem, seed: int = 0, config: LogConfig = SMALL) -> Store:
    return Store(
        "/data",
        config=StoreConfig(writers_open_max=1),
        log_config=config,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(seed),
        syncer=SeededSyncer(seed),
    )


async def live(
    filesystem: SimulatedFilesystem,
    seed: int,
    *,
    lives: int = 2,
    appends: int = 3,
    durability: Durability = Durability.FSYNC,
) -> None:
    """Open, append from several sides, follow, begin epochs and close, `lives` times over."""
    chance = random.Random(seed)
    config = LogConfig(segment_bytes_max=1024, index_interval_bytes=128, durability=durability)
    for life in range(lives):
        store = make_store(filesystem, seed + life, config)
        store.open()
        logs = {topic: await store.log(topic) for topic in TOPICS}
        followers = [
            asyncio.create_task(_follow(filesystem, topic, log)) for topic, log in logs.items()
        ]
        await asyncio.gather(
            *(
                _append(filesystem, topic, log, chance, f"{life}.{topic}.{side}", appends)
                for topic, log in logs.items()
                for side in range(2)
            ),
            *([logs["a"].begin_epoch(life)] if life % 2 == 1 else []),
        )
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        if life < lives - 1 or chance.random() < 0.5:
            await store.close()
            filesystem.note(Closed())


async def _append(
    filesystem: SimulatedFilesystem,
    topic: str,
    log: Log,
    chance: random.Random,
    name: str,
    count: int,
) -> None:
    for number in range(count):
        values = tuple(
            f"{name}.{number}.{index}:".encode() + b"x" * chance.choice((0, 5, 300, 600))
            for index in range(chance.choice((1, 1, 3)))
        )
        appended = await log.append_records(
            [Record(value, timestamp_ms=chance.randrange(10_000)) for value in values]
        )
        filesystem.note(Acked(topic, appended.offset, values))


async def _follow(filesystem: SimulatedFilesystem, topic: str, log: Log) -> None:
    async for found in log.follow(log.end_offset):
        for record in read_all(found.data):
            filesystem.note(_seen(topic, record))


def _seen(topic: str, record: StoredRecord) -> Seen:
    assert record.value is not None
    return Seen(topic, record.offset, record.value)


def damage_found(filesystem: Filesystem, path: str = "/data") -> list[Finding]:
    """What `millstream segments verify` calls damaged; it wants a directory that is one."""
    if not filesystem.list(path):
        return []
    found = verify_store(filesystem, path, processes=1)
    return [finding for finding in found if finding.is_damage]

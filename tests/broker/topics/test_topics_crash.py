"""A crash while a topic is created, filled, grown or deleted leaves it complete or absent.

The workload runs on SQLite and a simulated disk. It is stopped at each transaction, before and
after the transaction is durable, and at each disk call. Then the power is cut and the node starts
again. Every acknowledged change must be present, and no change may be partly applied.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.broker.topics.topic import decode_row
from millstream.broker.topics.topics import Topics
from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.metadata.interface import Metadata
from millstream.metadata.sqlite import SqliteMetadata
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.testing import FaultyFilesystem, SimulatedFilesystem, sweep
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.broker.topic_nodes import make_store, make_topics, running
from tests.metadata.memory import DyingMetadata

pytestmark = pytest.mark.timeout(120)

SEEDS: Sequence[int | None] = (None, 1, 2, 3)
STEPS_MAX = 50


@dataclass
class Told:
    """Changes that were acknowledged to a client, and the request that was not yet answered."""

    topics: dict[str, int] = field(default_factory=dict)
    """Partition count by topic."""
    records: dict[str, int] = field(default_factory=dict)
    """Record count of partition 0 by topic."""
    gone: set[str] = field(default_factory=set)
    asked: str = ""
    """The request in flight."""


async def work(topics: Topics, told: Told) -> None:
    """Create, fill, grow and delete topics; record each step once it is acknowledged."""
    for name in ("a", "b"):
        told.asked = f"create {name}"
        topic = await topics.create(name, partitions=2)
        told.topics[name] = 2
        told.records[name] = 0
        told.asked = ""
        partition = topic.partitions[0]
        await partition.open()
        for _ in range(2):
            told.asked = f"append {name}"
            await partition.log.append_records([Record(b"value")])
            told.records[name] += 1
            told.asked = ""
    told.asked = "grow b"
    await topics.add_partitions("b", 3)
    told.topics["b"] = 3
    told.asked = "delete a"
    await topics.delete("a")
    del told.topics["a"], told.records["a"]
    told.gone.add("a")
    told.asked = "create a"
    topic = await topics.create("a", partitions=1)
    told.topics["a"] = 1
    told.records["a"] = 0
    told.gone.remove("a")
    told.asked = ""
    await topic.partitions[0].open()
    told.asked = "append a"
    await topic.partitions[0].log.append_records([Record(b"new value")])
    told.records["a"] = 1
    told.asked = ""


async def die(metadata: Metadata, filesystem: Filesystem, told: Told) -> bool:
    """Run the workload until it crashes; return whether it completed instead."""
    store = make_store(filesystem, log_config=LogConfig(segment_bytes_max=1024))
    try:
        store.open()
        topics = make_topics(metadata, store)
        await topics.open()
        await work(topics, told)
    except (MillstreamError, OSError):
        return False
    return True


async def check(metadata: Metadata, disk: SimulatedFilesystem, told: Told) -> None:
    """Start again and compare; then check that every topic can be used."""
    async with running(metadata, disk, log_config=LogConfig(segment_bytes_max=1024)) as topics:
        found = {topic.name: topic for topic in topics.all()}
        action, _, name = told.asked.partition(" ")
        for topic, partitions in told.topics.items():
            if topic not in found:
                assert told.asked == f"delete {topic}", f"{topic} was lost ({told.asked!r})"
                continue
            allowed = {partitions} | ({3} if told.asked == f"grow {topic}" else set())
            assert found[topic].partition_count in allowed
            assert len(found[topic].partitions) == found[topic].partition_count
            await found[topic].partitions[0].open()
            log = found[topic].partitions[0].log
            least = told.records[topic]
            assert least <= log.end_offset <= least + (told.asked == f"append {topic}")
            assert len(list(log.records())) == log.end_offset
        for topic in found.keys() - told.topics.keys():
            assert (action, name) == ("create", topic), f"{topic} came from nowhere"
            await found[topic].partitions[0].open()
            assert found[topic].partitions[0].log.end_offset == 0, f"{topic} has records of another"
        rows = [decode_row(entry.key, entry.value) for entry in await metadata.list("topics/")]
        assert {name for name, _ in rows} == found.keys()
        assert {row.state for _, row in rows} <= {"live"}
        assert set(disk.list("/data/topics")) <= found.keys()
        assert list(disk.list("/data/trash")) == []
        for topic in list(found):
            await topics.delete(topic)
            await topics.create(topic)


def metadata_at(path: Path) -> SqliteMetadata:
    return SqliteMetadata(str(path), background=SeededBackground(1, width=1))


@pytest.mark.parametrize("is_made", [False, True], ids=["before", "after"])
def test_a_topic_is_whole_or_gone_wherever_a_transaction_was_the_last(tmp_path, is_made):
    async def run(step: int, seed: int | None) -> bool:
        path, disk, told = tmp_path / f"{step}-{seed}.db", SimulatedFilesystem(), Told()
        async with metadata_at(path) as metadata:
            dying = DyingMetadata(metadata, step, is_made=is_made)
            is_whole = await die(dying, disk, told)
            assert is_whole or dying.is_dead
        async with metadata_at(path) as metadata:
            await check(metadata, disk.crash(seed), told)
        return is_whole

    for step in itertools.count(1):
        assert step < STEPS_MAX
        ends = [asyncio.run(run(step, seed)) for seed in SEEDS]
        if all(ends):
            assert step > 5
            return


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_topic_is_whole_or_gone_wherever_the_disk_died(tmp_path, error):
    numbers = itertools.count()

    async def run(fault, seed: int | None) -> bool:
        path, disk, told = tmp_path / f"{next(numbers)}.db", SimulatedFilesystem(), Told()
        async with metadata_at(path) as metadata:
            is_whole = await die(metadata, FaultyFilesystem(disk, fault), told)
        async with metadata_at(path) as metadata:
            await check(metadata, disk.crash(seed), told)
        path.unlink()
        return is_whole

    runs = 0
    for fault in sweep(error=error, forever=True):
        asyncio.run(run(fault, SEEDS[runs % len(SEEDS)]))
        runs += 1
    assert runs > 50

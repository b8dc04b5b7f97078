"""Topics after a start: stored topics, topics of an embedded store, and leftovers of a crash."""

from __future__ import annotations

import asyncio
import logging
import uuid

import msgspec
import pytest

from millstream.broker.topics.configs.topic_settings import DURABILITY
from millstream.broker.topics.topic import Topic, TopicRow, encode_row, topic_key
from millstream.broker.topics.topics import Topics
from millstream.config.schema import BrokerConfig, Durability, LogConfig
from millstream.errors import CorruptFile, InvalidConfig, StorageFailed, UnknownFormat
from millstream.metadata.sqlite import SqliteMetadata
from millstream.records.record import Record
from millstream.storage.files.names import LogName
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.testing import SimulatedFilesystem
from tests.broker.topic_nodes import make_store, make_topics, running
from tests.in_loop import in_loop
from tests.metadata.memory import DyingMetadata, MemoryMetadata

from .test_topics import FailingStore

pytestmark = pytest.mark.timeout(60)


@in_loop
async def test_topics_survive_a_restart(tmp_path):
    disk, path = SimulatedFilesystem(), str(tmp_path / "meta.db")
    async with SqliteMetadata(path) as metadata, running(metadata, disk) as topics:
        first = await topics.create("a", partitions=2, configs={"cleanup.policy": "compact"})
        await topics.create("b")
        await topics.add_partitions("a", 3)
        await topics.alter("b", {"retention.ms": "1"})
        await topics.create("c")
        await topics.delete("c")
    async with SqliteMetadata(path) as metadata, running(metadata, disk) as topics:
        assert [topic.name for topic in topics.all()] == ["a", "b"]
        topic = topics.get("a")
        assert (topic.id, topic.partition_count) == (first.id, 3)
        assert topic.config.is_compacted
        assert topics.by_id(first.id) is topic
        assert topics.get("b").config.overrides == {"retention.ms": "1"}
        assert topics.partition_count == 4
        await topics.add_partitions("a", 4)
        await topics.delete("b")


@in_loop
async def test_a_deletion_that_was_cut_short_is_finished():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    store = make_store(disk)
    store.open()
    topics = make_topics(metadata, FailingStore(store, 1))
    await topics.open()
    topic = await topics.create("a")
    await topic.partitions[0].open()
    await topic.partitions[0].log.append_records([Record(b"1")])
    with pytest.raises(StorageFailed):
        await topics.delete("a")
    await store.close()
    assert disk.list("/data/topics") == ["a"]
    async with running(metadata, disk) as topics:
        assert topics.all() == []
        assert metadata.entries == {}
        assert disk.list("/data/topics") == []


@in_loop
async def test_a_deletion_that_cannot_be_finished_does_not_keep_the_node_down(caplog):
    metadata = MemoryMetadata()
    row = TopicRow(id=uuid.uuid4(), partitions=1, configs={}, state="deleting")
    await metadata.transact(puts={topic_key("a"): encode_row(row)})
    store = make_store(SimulatedFilesystem())
    store.open()
    await store.log("a")
    topics = make_topics(metadata, FailingStore(store, 1))
    with caplog.at_level(logging.ERROR):
        await topics.open()
    assert "topic a was deleted, but some of its data is left: on purpose" in caplog.text
    assert topics.all() == []
    assert (await topics.create("a")).is_created
    await topics.close()
    await store.close()


# Ephemeral topics.


@in_loop
async def test_an_ephemeral_topic_is_another_one_after_a_restart():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        before = await topics.create("a", partitions=2, configs={DURABILITY: "ephemeral"})
        await before.partitions[0].open()
        await before.partitions[0].log.append_records([Record(b"1")])
    ids = {before.id}
    for _ in range(2):
        async with running(metadata, disk) as topics:
            after = topics.get("a")
            assert after.id not in ids
            ids.add(after.id)
            assert after.partition_count == 2
            await after.partitions[0].open()
            assert after.partitions[0].log.end_offset == 0
            await topics.alter("a", {DURABILITY: "ephemeral", "retention.ms": "1"})


# Topics created by an embedded store.


async def embed(disk: SimulatedFilesystem, *logs: tuple[str, int], config: LogConfig) -> None:
    async with make_store(disk) as store:
        for topic, partition in logs:
            log = await store.log(topic, partition, config=config)
            await log.append_records([Record(b"embedded")])


@in_loop
async def test_logs_of_an_embedded_store_become_topics():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 0), ("a", 2), ("b", 0), config=LogConfig())
    async with running(metadata, disk) as topics:
        found = {topic.name: topic for topic in topics.all()}
        assert {name: topic.partition_count for name, topic in found.items()} == {"a": 3, "b": 1}
        assert found["a"].config.overrides == {"retention.ms": "-1"}
        await found["a"].partitions[2].open()
        assert found["a"].partitions[2].log.end_offset == 1
    async with running(metadata, disk) as topics:
        assert topics.get("a").id == found["a"].id


@in_loop
async def test_adopted_logs_keep_their_durability_and_take_the_settings_of_topics():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 0), config=LogConfig(durability=Durability.MEMORY))
    async with running(metadata, disk) as topics:
        topic = topics.get("a")
        assert topic.config.overrides == {DURABILITY: "memory", "retention.ms": "-1"}
        await topic.partitions[0].open()
        assert topic.partitions[0].log.config == topic.config.log_config()


@in_loop
async def test_a_log_beyond_the_partitions_of_its_topic_is_adopted_too():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        before = await topics.create("a", partitions=2)
    await embed(disk, ("a", 4), config=LogConfig())
    async with running(metadata, disk) as topics:
        topic = topics.get("a")
        assert (topic.id, topic.partition_count, len(topic.partitions)) == (before.id, 5, 5)


@in_loop
async def test_a_damaged_log_is_adopted_as_it_is():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 0), ("a", 1), config=LogConfig(durability=Durability.DISK))
    disk.replace_content("/data/topics/a/0/partition.json", b"damaged")
    async with running(metadata, disk) as topics:
        topic = topics.get("a")
        assert topic.partition_count == 2
        assert topic.config.durability is Durability.DISK
        await topic.partitions[0].open()
        assert topic.partitions[0].log.recovered.damage


@in_loop
async def test_logs_with_too_many_partitions_are_left_alone(caplog):
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 2**31 - 1), ("b", 0), config=LogConfig())
    with caplog.at_level(logging.ERROR):
        async with running(metadata, disk, BrokerConfig(partitions_max=5)) as topics:
            assert [topic.name for topic in topics.all()] == ["b"]
    assert "cannot adopt the logs of a: 2147483648 more partitions" in caplog.text
    assert disk.list("/data/topics") == ["a", "b"]


@in_loop
async def test_adopting_that_was_cut_short_is_done_the_next_time():
    disk, kept = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 0), ("b", 0), config=LogConfig())
    for is_made in (False, True):
        store = make_store(disk)
        store.open()
        with pytest.raises(StorageFailed):
            await make_topics(DyingMetadata(kept, 1, is_made=is_made), store).open()
        await store.close()
    async with running(kept, disk) as topics:
        assert [topic.name for topic in topics.all()] == ["a", "b"]


# Logs whose topic the metadata has lost.


async def create_with_records(topics: Topics, name: str) -> Topic:
    topic = await topics.create(name)
    await topic.partitions[0].open()
    await topic.partitions[0].log.append_records([Record(b"kept")])
    return topic


@in_loop
async def test_a_log_whose_topic_the_metadata_has_lost_is_reported_and_left_alone(caplog):
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        lost = await create_with_records(topics, "a")
        await create_with_records(topics, "b")
    await metadata.transact(deletes=[topic_key("a")])
    before = {path: disk.content(path) for path in disk.paths() if "/topics/a/" in path}
    with caplog.at_level(logging.ERROR):
        async with running(metadata, disk) as topics:
            assert [topic.name for topic in topics.all()] == ["b"]
            assert list(topics.unknown) == ["a"]
            message = topics.unknown["a"]
            assert f"/data/topics/a belongs to the topic with id {lost.id}" in message
            assert "topics.adopt = true" in message
            for creating in (topics.create("a"), topics.ensure("a"), topics.put("a")):
                with pytest.raises(CorruptFile, match="belongs to the topic with id"):
                    await creating
            assert topics.log_config_of(LogName("a", 0)) is None, "retention leaves it alone"
    assert message in caplog.text
    assert {path: disk.content(path) for path in before} == before


@in_loop
async def test_lost_topics_are_adopted_under_their_ids_if_the_operator_says_so():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        lost = await create_with_records(topics, "a")
    async with running(MemoryMetadata(), disk, BrokerConfig(adopt_topics=True)) as topics:
        found = topics.get("a")
        assert found.id == lost.id
        assert not topics.unknown
        await found.partitions[0].open()
        assert found.partitions[0].log.end_offset == 1


@in_loop
async def test_a_row_from_before_the_topic_was_created_again_is_reported():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        await create_with_records(topics, "a")
        old = await metadata.get(topic_key("a"))
        await topics.delete("a")
        new = await create_with_records(topics, "a")
    assert old is not None
    await metadata.transact(puts={old.key: old.value})
    async with running(metadata, disk) as topics:
        assert f"id {new.id}, but the metadata has id" in topics.unknown["a"]
        with pytest.raises(CorruptFile, match=f"belongs to the topic with id {new.id}"):
            await topics.get("a").partitions[0].open()
    async with running(metadata, disk, BrokerConfig(adopt_topics=True)) as topics:
        assert topics.get("a").id == new.id
        await topics.get("a").partitions[0].open()


@in_loop
async def test_a_log_of_an_older_release_gets_the_id_of_its_topic_when_it_is_opened():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    await embed(disk, ("a", 0), config=LogConfig())
    async with running(metadata, disk) as topics:
        await topics.get("a").partitions[0].open()
        expected = topics.get("a").id
    assert read_partition_metadata(disk, "/data/topics/a/0").topic_id == expected


# Invalid rows.


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"", CorruptFile, "topics/a is not a valid topic"),
        (b"{}", CorruptFile, "topics/a is not a valid topic"),
        (b'{"version":1}', CorruptFile, "topics/a is not a valid topic"),
        (b'{"version":2,"anything":1}', UnknownFormat, "topics/a has version 2, expected 1"),
    ],
)
def test_a_row_that_cannot_be_read_is_reported(value, error, message):
    async def run() -> None:
        metadata = MemoryMetadata()
        await metadata.transact(puts={topic_key("a"): value})
        async with running(metadata):
            pass

    with pytest.raises(error, match=message):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"partitions": 0}, CorruptFile, "topics/a: partitions must be at least 1, got 0"),
        ({"configs": {"x": "1"}}, InvalidConfig, "topic a: 'x' is not a topic config"),
    ],
)
def test_a_row_that_makes_no_sense_is_reported(change, error, message):
    async def run() -> None:
        metadata = MemoryMetadata()
        row = TopicRow(id=uuid.uuid4(), partitions=1, configs={})
        value = encode_row(msgspec.structs.replace(row, **change))
        await metadata.transact(puts={topic_key("a"): value})
        async with running(metadata):
            pass

    with pytest.raises(error, match=message):
        asyncio.run(run())

"""Topics: create, find, add partitions, alter and delete, one change at a time."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.broker.topics.configs.topic_settings import DURABILITY
from millstream.broker.topics.topic import NO_ID, TopicChange, TopicEvent, decode_row, topic_key
from millstream.config.schema import BrokerConfig, Durability, LogConfig
from millstream.errors import (
    InvalidConfig,
    InvalidName,
    InvalidPartitions,
    Stopping,
    StorageFailed,
    TopicExists,
    Unavailable,
    UnknownTopic,
    UnknownTopicId,
)
from millstream.records.record import Record
from millstream.testing import SimulatedFilesystem
from tests.broker.topic_nodes import make_store, make_topics, running
from tests.in_loop import in_loop
from tests.metadata.memory import DyingMetadata, MemoryMetadata

pytestmark = pytest.mark.timeout(60)


# Create and find.


@in_loop
async def test_a_topic_that_was_created_is_found_by_name_id_and_partition():
    async with running() as topics:
        topic = await topics.create("a", partitions=3, configs={"retention.ms": "5"})
        assert (topic.name, topic.partition_count, len(topic.partitions)) == ("a", 3, 3)
        assert topic.config.overrides == {"retention.ms": "5"}
        assert topic.is_created
        assert not topic.is_internal
        assert topics.get("a") is topics.find("a") is topics.by_id(topic.id) is topic
        assert topics.all() == [topic]
        assert [partition.index for partition in topic.partitions] == [0, 1, 2]
        assert topics.partition("a", 2) is topic.partition(2) is topic.partitions[2]


@in_loop
async def test_what_is_not_there_is_unknown():
    async with running() as topics:
        await topics.create("a", partitions=2)
        with pytest.raises(UnknownTopic, match="topic 'b' does not exist"):
            topics.get("b")
        assert topics.find("b") is None
        with pytest.raises(UnknownTopic, match="topic 'b' does not exist"):
            topics.partition("b", 0)
        for index in (2, -1, 2**31 - 1):
            with pytest.raises(
                UnknownTopic, match=f"partition of a must be between 0 and 1, got {index}"
            ):
                topics.partition("a", index)
        for topic_id in (NO_ID, uuid.UUID(int=1), uuid.uuid4()):
            with pytest.raises(UnknownTopicId, match=str(topic_id)):
                topics.by_id(topic_id)


@in_loop
async def test_all_topics_come_sorted():
    async with running() as topics:
        for name in ("b", "a", "C", "a.b"):
            await topics.create(name)
        assert [topic.name for topic in topics.all()] == ["C", "a", "a.b", "b"]


@in_loop
async def test_a_topic_without_a_number_has_that_of_the_node():
    async with running(config=BrokerConfig(num_partitions=5)) as topics:
        assert (await topics.create("a")).partition_count == 5
        assert (await topics.ensure("b")).partition_count == 5


@in_loop
async def test_creating_makes_no_log():
    disk = SimulatedFilesystem()
    async with running(filesystem=disk) as topics:
        await topics.create("a")
        assert disk.list("/data/topics") == []


@in_loop
async def test_a_topic_exists_once():
    async with running() as topics:
        await topics.create("a")
        with pytest.raises(TopicExists, match="topic 'a' already exists"):
            await topics.create("a", partitions=2)
        assert topics.get("a").partition_count == 1


@in_loop
async def test_of_many_who_create_the_same_topic_at_once_one_does():
    async with running() as topics:
        results = await asyncio.gather(
            *(topics.create("a", partitions=number + 1) for number in range(5)),
            return_exceptions=True,
        )
        assert [type(result) for result in results[1:]] == [TopicExists] * 4
        assert results[0] is topics.get("a")
        assert topics.partition_count == 1


@in_loop
async def test_who_needs_a_topic_gets_it_whoever_makes_it():
    async with running() as topics:
        first, *others = await asyncio.gather(*(topics.ensure("a") for _ in range(5)))
        assert all(topic is first for topic in others)
        assert await topics.ensure("a") is first


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250, "a:b", "\0"])
def test_a_name_that_cannot_be_is_refused(name):
    @in_loop
    async def run() -> None:
        async with running() as topics:
            with pytest.raises(InvalidName, match="topic name"):
                await topics.create(name)
            assert topics.all() == []

    run()


@in_loop
async def test_a_name_may_have_all_that_is_allowed():
    async with running() as topics:
        for name in ("x" * 249, "...", "a.B-c_9", "__my_offsets"):
            await topics.create(name)


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_differ_in_dots_and_underscores_only_collide(first, second):
    @in_loop
    async def run() -> None:
        async with running() as topics:
            results = await asyncio.gather(
                topics.create(first), topics.create(second), return_exceptions=True
            )
            assert isinstance(results[1], InvalidName)
            with pytest.raises(InvalidName, match=r"differs from .* only in dots and underscores"):
                await topics.create(second)
            await topics.delete(first)
            await topics.create(second)

    run()


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_a_topic_needs_a_partition(count):
    @in_loop
    async def run() -> None:
        async with running() as topics:
            with pytest.raises(InvalidPartitions, match=f"must be at least 1, got {count}"):
                await topics.create("a", partitions=count)

    run()


@in_loop
async def test_all_topics_together_have_no_more_partitions_than_the_node_allows():
    async with running(config=BrokerConfig(partitions_max=10)) as topics:
        with pytest.raises(InvalidPartitions, match="make 11 on this node, limit is 10"):
            await topics.create("a", partitions=11)
        await topics.create("a", partitions=6)
        results = await asyncio.gather(
            topics.create("b", partitions=4),
            topics.create("c", partitions=1),
            topics.add_partitions("a", 7),
            return_exceptions=True,
        )
        assert [type(result).__name__ for result in results] == [
            "Topic",
            "InvalidPartitions",
            "InvalidPartitions",
        ]
        assert topics.partition_count == 10
        await topics.delete("b")
        await topics.add_partitions("a", 10)
        assert topics.partition_count == 10


@in_loop
async def test_a_number_of_partitions_beyond_all_bounds_costs_nothing():
    async with running() as topics:
        with pytest.raises(InvalidPartitions, match="limit is 100000"):
            await topics.create("a", partitions=2**31 - 1)


@in_loop
async def test_a_bad_config_is_refused():
    async with running() as topics:
        with pytest.raises(InvalidConfig, match=r"retention\.ms must be .*, got 'x'"):
            await topics.create("a", configs={"retention.ms": "x"})
        with pytest.raises(InvalidConfig, match=r"retention\.ms has no value"):
            await topics.create("a", configs={"retention.ms": None})
        assert topics.all() == []


@in_loop
async def test_only_checking_creates_nothing_and_says_what_would_be():
    metadata = MemoryMetadata()
    async with running(metadata) as topics:
        topic = await topics.create(
            "a", partitions=2, configs={"retention.ms": "1"}, is_validate_only=True
        )
        assert (topic.id, topic.partition_count, topic.partitions) == (NO_ID, 2, [])
        assert not topic.is_created
        assert topic.config.retention_ms == 1
        assert topics.all() == []
        assert metadata.entries == {}
        await topics.create("a")
        with pytest.raises(TopicExists):
            await topics.create("a", is_validate_only=True)
        with pytest.raises(InvalidPartitions):
            await topics.create("b", partitions=2**30, is_validate_only=True)
        assert topics.partition_count == 1


# Topic ids.


@in_loop
async def test_a_topic_that_is_made_again_has_another_id():
    async with running() as topics:
        first = await topics.create("a")
        await topics.delete("a")
        second = await topics.create("a")
        assert first.id != second.id
        with pytest.raises(UnknownTopicId):
            topics.by_id(first.id)


@in_loop
async def test_no_id_is_reserved_taken_or_looks_like_an_option():
    taken = uuid.UUID(int=2)
    like_an_option = uuid.UUID(bytes=bytes([0b111110_11]) + taken.bytes[1:])
    drawn = [taken, NO_ID, uuid.UUID(int=1), like_an_option, taken, other := uuid.UUID(int=3)]
    async with running(draw_id=iter(drawn).__next__) as topics:
        assert (await topics.create("a")).id == taken
        assert (await topics.create("b")).id == other


# Add partitions.


@in_loop
async def test_a_topic_grows_in_place():
    async with running() as topics:
        topic = await topics.create("a", partitions=2)
        first = topic.partitions[0]
        assert await topics.add_partitions("a", 4) is topic
        assert topic.partition_count == len(topic.partitions) == 4
        assert topic.partitions[0] is first
        assert topics.partition("a", 3).index == 3


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_a_topic_only_grows(count):
    @in_loop
    async def run() -> None:
        async with running() as topics:
            await topics.create("a", partitions=2)
            with pytest.raises(InvalidPartitions, match=f"has 2 partitions, got {count}"):
                await topics.add_partitions("a", count)

    run()


@in_loop
async def test_growth_can_be_only_checked():
    async with running(config=BrokerConfig(partitions_max=5)) as topics:
        await topics.create("a", partitions=2)
        await topics.add_partitions("a", 5, is_validate_only=True)
        assert topics.get("a").partition_count == 2
        with pytest.raises(InvalidPartitions):
            await topics.add_partitions("a", 6, is_validate_only=True)
        with pytest.raises(UnknownTopic):
            await topics.add_partitions("b", 6)


# Alter configs.


@in_loop
async def test_setting_replaces_all_configs_and_reaches_open_logs():
    async with running() as topics:
        topic = await topics.create("a", partitions=2, configs={"retention.ms": "1"})
        await topic.partitions[0].open()
        await topics.alter("a", {"segment.bytes": "4096", DURABILITY: "disk"})
        assert topic.config.overrides == {"segment.bytes": "4096", DURABILITY: "disk"}
        assert [partition.config for partition in topic.partitions] == [topic.config] * 2
        log = topic.partitions[0].log
        assert log.config.segment_bytes_max == 4096
        assert log.config.durability is Durability.DISK


@in_loop
async def test_changing_leaves_what_is_not_named():
    async with running() as topics:
        topic = await topics.create("a", configs={"retention.ms": "1"})
        await topics.change_configs(
            "a", [ConfigChange("cleanup.policy", AlterConfigOperation.APPEND, "compact")]
        )
        assert topic.config.overrides == {
            "cleanup.policy": "delete,compact",
            "retention.ms": "1",
        }


@in_loop
async def test_what_cannot_be_set_changes_nothing():
    async with running() as topics:
        topic = await topics.create("a")
        before = topic.config
        for configs in ({"retention.ms": "x"}, {"x": "1"}, {DURABILITY: "ephemeral"}):
            with pytest.raises(InvalidConfig):
                await topics.alter("a", configs)
        with pytest.raises(InvalidConfig):
            await topics.change_configs("a", [ConfigChange("x", AlterConfigOperation.DELETE)])
        await topics.alter("a", {"retention.ms": "5"}, is_validate_only=True)
        assert topic.config is before
        for change in (topics.alter("b", {}), topics.change_configs("b", [])):
            with pytest.raises(UnknownTopic):
                await change


@in_loop
async def test_setting_the_same_again_writes_nothing():
    metadata = MemoryMetadata()
    async with running(metadata) as topics:
        await topics.create("a", configs={"retention.ms": "1"})
        revision = metadata.revision
        await topics.alter("a", {"retention.ms": " 1 "})
        assert metadata.revision == revision


@in_loop
async def test_changes_of_one_topic_at_once_all_happen():
    async with running() as topics:
        await topics.create("a")
        await asyncio.gather(
            topics.change_configs(
                "a", [ConfigChange("retention.ms", AlterConfigOperation.SET, "1")]
            ),
            topics.change_configs("a", [ConfigChange("segment.ms", AlterConfigOperation.SET, "2")]),
            topics.add_partitions("a", 3),
            topics.change_configs("a", [ConfigChange("flush.ms", AlterConfigOperation.SET, "3")]),
        )
        topic = topics.get("a")
        assert topic.config.overrides == {
            "flush.ms": "3",
            "retention.ms": "1",
            "segment.ms": "2",
        }
        assert topic.partition_count == 3
        assert topics.partition("a", 2).config == topic.config


# Delete.


@in_loop
async def test_a_deleted_topic_is_gone_with_its_records():
    disk, metadata = SimulatedFilesystem(), MemoryMetadata()
    async with running(metadata, disk) as topics:
        topic = await topics.create("a", partitions=2)
        await topic.partitions[0].open()
        await topic.partitions[0].log.append_records([Record(b"1")])
        assert await topics.delete("a") is topic
        assert [partition.is_deleted for partition in topic.partitions] == [True, True]
        assert topics.all() == []
        assert disk.list("/data/topics") == []
        assert metadata.entries == {}
        with pytest.raises(UnknownTopic):
            await topics.delete("a")
        again = await topics.create("a")
        await again.partitions[0].open()
        assert again.partitions[0].log.end_offset == 0


@in_loop
async def test_a_topic_is_deleted_by_id_only_if_it_is_that_one():
    async with running() as topics:
        first = await topics.create("a")
        await topics.delete("a", topic_id=first.id)
        second = await topics.create("a")
        with pytest.raises(UnknownTopicId, match=f"has id {second.id}, got {first.id}"):
            await topics.delete("a", topic_id=first.id)
        assert topics.get("a") is second


@in_loop
async def test_deleting_and_creating_at_once_happen_one_after_the_other():
    async with running() as topics:
        old = await topics.create("a")
        _, new, again = await asyncio.gather(
            topics.delete("a"), topics.create("a"), topics.create("a"), return_exceptions=True
        )
        assert isinstance(again, TopicExists)
        assert topics.get("a") is new is not old


@in_loop
async def test_a_partition_that_is_being_opened_when_its_topic_goes_leaves_nothing_behind():
    disk = SimulatedFilesystem()
    async with running(filesystem=disk) as topics:
        topic = await topics.create("a")
        opening = []

        def open_last_moment(change: TopicChange) -> None:
            opening.append(asyncio.ensure_future(topic.partitions[0].open()))

        topics.on_change(open_last_moment)
        await topics.delete("a")
        await asyncio.gather(*opening, return_exceptions=True)
        assert disk.list("/data/topics") == []


class FailingStore:
    """A store whose deletes fail a given number of times."""

    def __init__(self, store, failures: int) -> None:
        self._store = store
        self.failures = failures

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def delete(self, topic: str) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageFailed("on purpose")
        await self._store.delete(topic)


@in_loop
async def test_a_topic_whose_data_stays_is_gone_all_the_same_and_its_name_is_usable():
    metadata = MemoryMetadata()
    store = make_store(SimulatedFilesystem())
    store.open()
    topics = make_topics(metadata, FailingStore(store, 2))
    await topics.open()
    topic = await topics.create("a")
    await topic.partitions[0].open()
    await topic.partitions[0].log.append_records([Record(b"old")])
    with pytest.raises(StorageFailed):
        await topics.delete("a")
    assert topics.all() == []
    assert decode_row(topic_key("a"), metadata.entries[topic_key("a")].value)[1].state == "deleting"
    with pytest.raises(StorageFailed):
        await topics.create("a")
    assert topics.partition_count == 0
    again = await topics.create("a")
    await again.partitions[0].open()
    assert again.partitions[0].log.end_offset == 0
    await topics.close()
    await store.close()


# Change listeners.


@in_loop
async def test_changes_are_told_once_they_are_made():
    async with running() as topics:
        heard: list[tuple[str, str, bool]] = []

        def hear(change: TopicChange) -> None:
            name = change.topic.name
            heard.append((name, change.event.value, topics.find(name) is change.topic))

        stop = topics.on_change(hear)
        await topics.create("a")
        await topics.create("b", is_validate_only=True)
        await topics.add_partitions("a", 2)
        await topics.alter("a", {"retention.ms": "1"})
        await topics.alter("a", {"retention.ms": "1"})
        await topics.delete("a")
        assert heard == [
            ("a", "created", True),
            ("a", "grown", True),
            ("a", "altered", True),
            ("a", "deleted", False),
        ]
        stop()
        await topics.create("c")
        assert len(heard) == 4
        assert len(TopicEvent) == 4


# Cancelled callers.


@in_loop
async def test_a_change_comes_to_its_end_even_if_who_asked_for_it_goes_away():
    async with running() as topics:
        asking = asyncio.ensure_future(topics.create("a"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await topics.ensure("a")).is_created
        asking = asyncio.ensure_future(topics.delete("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await topics.create("a")


@in_loop
async def test_closing_waits_for_changes_and_takes_no_more():
    metadata = MemoryMetadata()
    async with running(metadata) as topics:
        opened = await topics.create("b", partitions=2)
        await opened.partitions[1].open()
        creating = asyncio.ensure_future(topics.create("a"))
        await asyncio.sleep(0)
        await topics.close()
        assert creating.done()
        assert topic_key("a") in metadata.entries
        assert [partition.is_closed for partition in opened.partitions] == [False, True]
        for change in (topics.create("c"), topics.delete("a"), topics.add_partitions("a", 9)):
            with pytest.raises(Stopping):
                await change


@in_loop
async def test_a_row_that_another_changed_is_not_overwritten():
    metadata = MemoryMetadata()
    async with running(metadata) as topics:
        await topics.create("a")
        entry = metadata.entries[topic_key("a")]
        await metadata.transact(puts={entry.key: entry.value})
        for change in (
            topics.add_partitions("a", 2),
            topics.delete("a"),
            topics.alter("a", {"flush.ms": "1"}),
        ):
            with pytest.raises(Unavailable, match="topic a was changed concurrently"):
                await change
        assert topics.get("a").partition_count == 1
        assert topics.get("a").config.overrides == {}


@in_loop
async def test_a_failing_disk_leaves_all_as_it_was():
    metadata = DyingMetadata(MemoryMetadata(), 2, is_made=False)
    async with running(metadata) as topics:
        await topics.create("a")
        for change in (
            topics.create("b"),
            topics.add_partitions("a", 2),
            topics.alter("a", {"flush.ms": "1"}),
            topics.delete("a"),
        ):
            with pytest.raises(StorageFailed):
                await change
        topic = topics.get("a")
        assert (topic.partition_count, len(topic.partitions)) == (1, 1)
        assert topic.config.overrides == {}
        assert not topic.partitions[0].is_deleted
        assert [topic.name for topic in topics.all()] == ["a"]
        assert topics.partition_count == 1


@in_loop
async def test_the_node_gives_its_logs_what_it_is_set_to():
    async with running(log_config=LogConfig(durability=Durability.MEMORY)) as topics:
        topic = await topics.create("a")
        assert topic.config.durability is Durability.MEMORY
        assert topics.log_config.durability is Durability.MEMORY

"""aiokafka writes, reads, shares partitions, writes in transactions and administers."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from .conftest import TIMEOUT_S

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def awaited(test):
    """Run a coroutine as a test, with a deadline."""

    @functools.wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(asyncio.wait_for(test(*arguments, **fixtures), 2 * TIMEOUT_S))

    return run


@contextlib.asynccontextmanager
async def producer(bootstrap, **settings):
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, retry_backoff_ms=20, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@contextlib.asynccontextmanager
async def consumer(bootstrap, *topics, **settings):
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    if "group_id" in settings:
        defaults |= {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
    client = AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, retry_backoff_ms=20, **(defaults | settings)
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def read(client, count):
    return [await asyncio.wait_for(client.getone(), TIMEOUT_S) for _ in range(count)]


async def until(is_done):
    """Let the tasks of the clients run until `is_done` returns true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_done():  # noqa: ASYNC110 - No client tells of what is waited for.
            await asyncio.sleep(0.01)


async def until_owned(counts):
    """Wait until each consumer owns the given number of partitions."""

    async def is_done():
        return all(len(client.assignment()) == count for client, count in counts.items())

    await until(is_done)


def values(records):
    return [record.value for record in records]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
@awaited
async def test_records_are_read_as_they_were_written(bootstrap, new_topic, codec, acks):
    topic = new_topic()
    sent = [b"value %d" % number * 30 for number in range(50)]
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    async with producer(bootstrap, acks=acks, compression_type=codec, linger_ms=20) as writer:
        waiting = [
            await writer.send(topic, value, b"key", timestamp_ms=1234, headers=headers)
            for value in sent
        ]
        reports = await asyncio.gather(*waiting)
    if acks != 0:
        assert [report.offset for report in reports] == list(range(50))
    async with consumer(bootstrap, topic) as reader:
        records = await read(reader, 50)
    assert values(records) == sent
    assert {record.key for record in records} == {b"key"}
    assert {record.timestamp for record in records} == {1234}
    assert list(records[0].headers) == headers


@pytest.mark.parametrize("acks", [1, "all"])
@awaited
async def test_what_was_acknowledged_is_there_for_everyone_at_once(bootstrap, new_topic, acks):
    place = TopicPartition(new_topic(), 0)
    async with (
        producer(bootstrap, acks=acks) as writer,
        consumer(bootstrap) as reader,
        consumer(bootstrap, isolation_level="read_committed") as committed_reader,
    ):
        for number in range(30):
            report = await writer.send_and_wait(place.topic, b"value", partition=0)
            assert report.offset == number
            assert await reader.end_offsets([place]) == {place: number + 1}
            assert await committed_reader.end_offsets([place]) == {place: number + 1}


@awaited
async def test_append_time_is_told_to_the_producer(bootstrap, new_topic):
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    async with producer(bootstrap) as writer:
        report = await writer.send_and_wait(topic, b"value", timestamp_ms=5)
    assert report.timestamp_type == 1
    assert report.timestamp > 1_000_000_000_000
    async with consumer(bootstrap, topic) as reader:
        (record,) = await read(reader, 1)
    assert (record.timestamp, record.timestamp_type) == (report.timestamp, 1)


@awaited
async def test_an_idempotent_producer_keeps_its_order(bootstrap, new_topic):
    topic = new_topic()
    async with producer(bootstrap, enable_idempotence=True, max_batch_size=200) as writer:
        waiting = [await writer.send(topic, b"%d" % number, partition=0) for number in range(300)]
        reports = await asyncio.gather(*waiting)
    assert [report.offset for report in reports] == list(range(300))


@awaited
async def test_a_seek_by_time_goes_to_the_first_record_that_is_not_older(bootstrap, new_topic):
    topic = new_topic()
    async with producer(bootstrap) as writer:
        for number in range(10):
            await writer.send_and_wait(topic, b"%d" % number, timestamp_ms=1000 + 10 * number)
    place = TopicPartition(topic, 0)
    async with consumer(bootstrap) as reader:
        reader.assign([place])
        assert await reader.beginning_offsets([place]) == {place: 0}
        assert await reader.end_offsets([place]) == {place: 10}
        found = (await reader.offsets_for_times({place: 1055}))[place]
        assert (found.offset, found.timestamp) == (6, 1060)
        assert await reader.offsets_for_times({place: 2000}) == {place: None}
        reader.seek(place, found.offset)
        assert values(await read(reader, 4)) == [b"6", b"7", b"8", b"9"]
        await reader.seek_to_beginning(place)
        assert values(await read(reader, 1)) == [b"0"]
        await reader.seek_to_end(place)
        assert await reader.position(place) == 10
        assert reader.highwater(place) == 10


@awaited
async def test_a_place_that_is_gone_is_an_error_for_who_wants_to_know(bootstrap, new_topic):
    place = TopicPartition(new_topic(), 0)
    async with consumer(bootstrap, auto_offset_reset="none") as reader:
        reader.assign([place])
        reader.seek(place, 5)
        with pytest.raises(kafka_errors.OffsetOutOfRangeError):
            await asyncio.wait_for(reader.getone(), TIMEOUT_S)


@awaited
async def test_members_share_and_the_last_takes_all(bootstrap, new_topic, name):
    topic = new_topic(4)
    settings = {"group_id": name}
    async with consumer(bootstrap, topic, **settings) as first:
        async with consumer(bootstrap, topic, **settings) as second:
            await until_owned({first: 2, second: 2})
            assert first.assignment() | second.assignment() == {
                TopicPartition(topic, number) for number in range(4)
            }
        await until_owned({first: 4})


@awaited
async def test_a_member_goes_on_where_the_one_before_committed(bootstrap, new_topic, name):
    topic = new_topic()
    place = TopicPartition(topic, 0)
    async with producer(bootstrap) as writer:
        for number in range(4):
            await writer.send_and_wait(topic, b"%d" % number)
    async with consumer(bootstrap, topic, group_id=name) as first:
        assert values(await read(first, 2)) == [b"0", b"1"]
        await first.commit({place: (2, "half")})
    async with consumer(bootstrap, topic, group_id=name) as second:
        assert await second.committed(place) == 2
        assert values(await read(second, 2)) == [b"2", b"3"]


@awaited
async def test_a_transaction_is_seen_whole_or_not_at_all(bootstrap, new_topic, name):
    topic = new_topic(2)
    async with producer(bootstrap, transactional_id=name) as writer:
        for number in range(4):
            with contextlib.suppress(ZeroDivisionError):
                async with writer.transaction():
                    for partition in (0, 1):
                        await writer.send(topic, b"%d" % number, partition=partition)
                    if number == 1:
                        raise ZeroDivisionError  # It is aborted.
    for partition in (0, 1):
        place = TopicPartition(topic, partition)
        for level, seen in (
            ("read_committed", [b"0", b"2", b"3"]),
            ("read_uncommitted", [b"0", b"1", b"2", b"3"]),
        ):
            async with consumer(bootstrap, isolation_level=level) as reader:
                reader.assign([place])
                assert values(await read(reader, len(seen))) == seen


@awaited
async def test_a_producer_is_fenced_by_the_next_of_its_name(bootstrap, new_topic, name):
    topic = new_topic()
    async with producer(bootstrap, transactional_id=name) as zombie:
        await zombie.begin_transaction()
        await zombie.send_and_wait(topic, b"of the zombie")
        async with producer(bootstrap, transactional_id=name) as successor:
            async with successor.transaction():
                await successor.send_and_wait(topic, b"of the successor")
            with pytest.raises(kafka_errors.ProducerFenced):
                await zombie.commit_transaction()
    async with consumer(bootstrap, topic, isolation_level="read_committed") as reader:
        assert values(await read(reader, 1)) == [b"of the successor"]


@awaited
async def test_results_and_the_place_of_the_input_are_committed_together(
    bootstrap, new_topic, name
):
    source, target = new_topic(), new_topic()
    place = TopicPartition(source, 0)
    async with (
        producer(bootstrap, transactional_id=name) as writer,
        consumer(bootstrap, source, group_id=name) as reader,
    ):
        async with writer.transaction():
            for number in range(3):
                await writer.send(source, b"%d" % number, partition=0)
        for is_commit in (False, True):
            await writer.begin_transaction()
            for record in await read(reader, 2):
                await writer.send(target, record.value, partition=0)
            await writer.send_offsets_to_transaction({place: 2}, name)
            if is_commit:
                await writer.commit_transaction()
            else:
                await writer.abort_transaction()
                reader.seek(place, 0)
        assert await reader.committed(place) == 2
    async with consumer(bootstrap, target, isolation_level="read_committed") as results:
        assert values(await read(results, 2)) == [b"0", b"1"]
        assert [record.offset for record in await read_from(results, target)] == [3, 4]


async def read_from(reader, topic):
    """Read the two records again with their offsets; aborted records took 0 to 2."""
    await reader.seek_to_beginning(TopicPartition(topic, 0))
    return await read(reader, 2)


@awaited
async def test_an_operator_makes_changes_and_deletes_topics(bootstrap, name):
    operator = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await operator.start()

    async def partition_count():
        if name not in await operator.list_topics():
            return 0
        (found,) = await operator.describe_topics([name])
        return len(found["partitions"])

    async def has(count):
        return await partition_count() == count

    try:
        await operator.create_topics([NewTopic(name, 2, 1)])
        await until(functools.partial(has, 2))
        await operator.create_partitions({name: NewPartitions(3)})
        await until(functools.partial(has, 3))
        await operator.delete_topics([name])
        await until(functools.partial(has, 0))
        found = await operator.describe_cluster()
        assert [f"{each['host']}:{each['port']}" for each in found["brokers"]] == [bootstrap]
    finally:
        await operator.close()

"""A topic that is deleted and created again is lost data for a query, never read silently."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable

import millstream
from millstream import Durability, LogConfig
from millstream.errors import DataLost, UnknownTopicId
from millstream.records.topic_partition import TopicPartition
from millstream.spark.columns import TABLE
from millstream.spark.options import parse_read_options
from millstream.spark.read.batch_reader import BatchReader
from millstream.spark.read.data_directory import DataDirectory
from millstream.spark.read.stream_reader import StreamReader, decode_position
from millstream.spark.topic_values import TopicValues
from tests.spark.read.directories import ALL as UNCOMMITTED
from tests.spark.topics import create, produce

ALL = ReadAllAvailable()


def recreate(node, topic, values, *, partitions=1):
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.delete_topics([topic])[topic].result()
    create(node, topic, partitions=partitions)
    produce(node, topic, values)


def options(node, topic, *, is_stream=True, **more):
    settings = {"bootstrap.servers": node.bootstrap, "topic": topic, **more}
    return parse_read_options(settings, is_stream=is_stream)


@pytest.fixture
def stream(node, topic):
    create(node, topic)

    def stream(**more):
        found = options(node, topic, startingOffsets="earliest", **more)
        return StreamReader(found, TopicValues(found.value), TABLE)

    return stream


def rows(reader, tasks):
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_query_that_continues_in_a_new_topic_fails(node, topic, stream, count):
    produce(node, topic, [b"old"] * 3)
    start = stream().latestOffset(stream().initialOffset(), ALL)
    recreate(node, topic, [b"new"] * count)
    with pytest.raises(DataLost, match=f"topic {topic} was deleted and created again"):
        stream().latestOffset(start, ALL)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_or_reads_the_new_one_from_its_start_and_says_so(node, topic, stream, caplog, count):
    produce(node, topic, [b"old"] * 3)
    careless = stream(failOnDataLoss="false")
    start = careless.latestOffset(careless.initialOffset(), ALL)
    recreate(node, topic, [b"new"] * count)
    with caplog.at_level(logging.WARNING):
        end = careless.latestOffset(start, ALL)
    assert f"topic {topic} was deleted and created again" in caplog.text
    assert rows(careless, careless.partitions(start, end)) == [b"new"] * count
    assert careless.latestOffset(end, ALL) == end


def test_a_batch_that_was_bounded_before_reads_nothing_of_the_new_topic(node, topic, stream):
    produce(node, topic, [b"old"] * 3)
    careful, careless = stream(), stream(failOnDataLoss="false")
    start = careful.initialOffset()
    end = careful.latestOffset(start, ALL)
    recreate(node, topic, [b"new"] * 9)
    with pytest.raises(DataLost, match=r"cannot read offsets 0 to 2: .* created again"):
        rows(careful, careful.partitions(start, end))
    assert rows(careless, careless.partitions(start, end)) == []


def test_a_task_reads_nothing_of_a_topic_that_was_created_after_it_was_planned(node, topic):
    create(node, topic)
    produce(node, topic, [b"old"] * 3)
    for more in ({}, {"failOnDataLoss": "false"}):
        found = options(node, topic, is_stream=False, **more)
        reader = BatchReader(found, TopicValues(found.value), TABLE)
        tasks = reader.partitions()
        recreate(node, topic, [b"new"] * 9)
        if more:
            assert rows(reader, tasks) == []
        else:
            with pytest.raises(DataLost, match="created again"):
                rows(reader, tasks)


def test_a_process_that_knew_the_old_topic_reads_the_new_one(node, topic, stream):
    produce(node, topic, [b"old"])
    reader = stream()
    start = reader.initialOffset()
    assert rows(reader, reader.partitions(start, reader.latestOffset(start, ALL))) == [b"old"]
    recreate(node, topic, [b"new"])
    start = reader.initialOffset()
    assert rows(reader, reader.partitions(start, reader.latestOffset(start, ALL))) == [b"new"]


def test_a_position_of_an_earlier_release_is_one_of_the_present_topic(node, topic, stream):
    produce(node, topic, [b"a", b"b"])
    end = stream().latestOffset({topic: {"0": 1}}, ALL)
    assert rows(stream(), stream().partitions({topic: {"0": 1}}, end)) == [b"b"]
    assert decode_position(end)[2] == {topic: node.server.broker.topics.get(topic).id}


# Files in place.


def test_a_data_directory_knows_its_topics_too(tmp_path):
    where = TopicPartition("t", 0)
    config = LogConfig(durability=Durability.DISK)
    with millstream.open(tmp_path, config=config) as store:
        store.log("t").append(b"old")
        store.log("t", 1).append(b"old")
        directory = DataDirectory(str(tmp_path))
        topic = directory.topics(["t"])["t"]
        assert topic.id == store.log("t").inner.topic_id == store.log("t", 1).inner.topic_id
        (chunk,) = directory.chunks(where, 0, 1, isolation=UNCOMMITTED, topic_id=topic.id)
        assert chunk.next_offset == 1
        store.delete("t")
        store.log("t").append(b"new")
        assert directory.topics(["t"])["t"].id != topic.id
        with pytest.raises(UnknownTopicId, match="t-0: the topic was deleted and created again"):
            list(directory.chunks(where, 0, 1, isolation=UNCOMMITTED, topic_id=topic.id))

"""The stream reader without Spark: offsets of micro-batches."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from millstream.errors import DataLost
from millstream.records.cursor import encode_topic_id
from millstream.records.topic_partition import TopicPartition
from millstream.spark.columns import TABLE
from millstream.spark.options import SourceOptions, parse_read_options
from millstream.spark.read.ranges import OffsetRange, ReadTask
from millstream.spark.read.stream_reader import StreamReader, decode_position, encode_position, lag
from millstream.spark.source_cache import SOURCES_MAX, open_source
from millstream.spark.topic_values import TopicValues
from tests.spark.topics import create, evict, produce, transaction
from tests.spark.transactions import an_open_transaction

ALL = ReadAllAvailable()


@pytest.fixture
def reader(node, topic):
    """Return a reader of the test's topic with these options."""
    create(node, topic)

    def reader(**options):
        given = {"bootstrap.servers": node.bootstrap, "topic": topic, **options}
        settings = {name: value for name, value in given.items() if value is not None}
        found = parse_read_options(settings, is_stream=True)
        return StreamReader(found, TopicValues(found.value), TABLE)

    return reader


def at(node, topic, offsets, *, lost=None):
    """Return a position in the present topic."""
    topic_id = node.server.broker.topics.get(topic).id
    counts = {} if lost is None else {"(lost)": lost}
    return {topic: offsets, **counts, "(topics)": {topic: encode_topic_id(topic_id)}}


def values_between(reader, start, end):
    batches = [batch for one in reader.partitions(start, end) for batch in reader.read(one)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(node, topic, reader):
    produce(node, topic, [b"x"] * 5)
    assert reader().initialOffset() == at(node, topic, {"0": 5})
    assert reader(startingOffsets="earliest").initialOffset() == at(node, topic, {"0": 0})


def test_what_is_new_is_read_once(node, topic, reader):
    stream = reader()
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    assert stream.partitions(start, start) == []
    produce(node, topic, [b"a", b"b"])
    end = stream.latestOffset(start, ALL)
    assert values_between(stream, start, end) == [b"a", b"b"]
    assert stream.latestOffset(end, ALL) == end


def test_an_open_transaction_is_not_read_past(node, topic, reader):
    stream = reader(startingOffsets="earliest")
    produce(node, topic, [b"a"])
    transaction(node, topic, [b"void"], is_committed=False, transactional_id=f"{topic}-v")
    transaction(node, topic, [b"b"], is_committed=True, transactional_id=f"{topic}-c")
    start = stream.initialOffset()
    assert values_between(stream, start, stream.latestOffset(start, ALL)) == [b"a", b"b"]


def test_limits_are_those_of_the_options_unless_spark_says_otherwise(node, topic, reader):
    produce(node, topic, [b"x" * 1_000] * 50)
    stream = reader(startingOffsets="earliest", maxRecordsPerTrigger="20")
    start = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMaxRows(20)
    assert stream.latestOffset(start, ReadMaxRows(20)) == at(node, topic, {"0": 20})
    assert stream.latestOffset(start, ALL) == at(node, topic, {"0": 50})
    stream = reader(startingOffsets="earliest", maxBytesPerTrigger="10500")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(10_500)
    assert 8 <= stream.latestOffset(start, ReadMaxBytes(10_500))[topic]["0"] <= 10
    both = reader(startingOffsets="earliest", maxRecordsPerTrigger="20", maxBytesPerTrigger="5250")
    assert 3 <= both.latestOffset(start, ReadMaxRows(20))[topic]["0"] <= 5


def test_what_comes_later_is_not_read_where_only_what_is_there_was_asked_for(node, topic, reader):
    produce(node, topic, [b"x"] * 3)
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    produce(node, topic, [b"late"] * 2)
    end = stream.latestOffset(start, ALL)
    assert end == at(node, topic, {"0": 3})
    assert stream.latestOffset(end, ALL) == end


def test_what_retention_took_fails_or_is_counted(node, topic, reader):
    produce(node, topic, [b"x"] * 4)
    evict(node, topic)
    produce(node, topic, [b"y"] * 2)
    start = {topic: {"0": 1}}
    with pytest.raises(DataLost, match=f"offsets 1 to 3 of {topic}-0 were deleted by retention"):
        reader().latestOffset(start, ALL)
    stream = reader(failOnDataLoss="false")
    end = stream.latestOffset(start, ALL)
    assert end == at(node, topic, {"0": 6}, lost={f"{topic}-0": 3})
    assert values_between(stream, start, end) == [b"y", b"y"]
    produce(node, topic, [b"z"])
    assert stream.latestOffset(end, ALL) == at(node, topic, {"0": 7}, lost={f"{topic}-0": 3})


def test_what_retention_takes_while_a_task_reads_fails_or_is_passed_over(node, topic, reader):
    produce(node, topic, [b"x"] * 4)
    careful = reader(startingOffsets="earliest")
    careless = reader(startingOffsets="earliest", failOnDataLoss="false")
    (planned,) = careful.partitions({topic: {"0": 0}}, {topic: {"0": 4}})
    evict(node, topic)
    with pytest.raises(DataLost, match=f"cannot read offsets 0 to 3 of {topic}-0"):
        list(careful.read(planned))
    assert list(careless.read(planned)) == []


def test_a_log_that_got_shorter_while_a_task_reads_fails_or_is_read_to_its_end(node, topic, reader):
    produce(node, topic, [b"x"] * 4)
    planned = ReadTask((OffsetRange(TopicPartition(topic, 0), 2, 1_000_000),))
    with pytest.raises(DataLost, match=r"offsets 2 to 999999 .* which has offsets 0 to 3"):
        list(reader().read(planned))
    (rest,) = reader(failOnDataLoss="false").read(planned)
    assert rest.column("offset").to_pylist() == [2, 3]


def test_columns_that_are_the_same_in_all_rows_need_no_record_decoded(node, topic, reader):
    produce(node, topic, [b"x"] * 3)
    found = parse_read_options(
        {"bootstrap.servers": node.bootstrap, "topic": topic}, is_stream=True
    )
    columns = StructType([TABLE["topic"]])
    stream = StreamReader(found, TopicValues(found.value), columns)
    (batch,) = stream.read(ReadTask((OffsetRange(TopicPartition(topic, 0), 1, 3),)))
    assert batch.to_pydict() == {"topic": [topic, topic]}


def test_new_partitions_are_read_from_their_beginning(node, topic, reader):
    produce(node, topic, [b"a"] * 3)
    stream = reader(startingOffsets="earliest")
    start = stream.latestOffset(stream.initialOffset(), ALL)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    produce(node, topic, [b"b"] * 4, partition=1)
    end = stream.latestOffset(start, ALL)
    assert end == at(node, topic, {"0": 3, "1": 4})
    assert values_between(stream, start, end) == [b"b"] * 4


def test_what_was_deleted_on_purpose_is_no_loss(node, topic, reader):
    produce(node, topic, [b"x"] * 8)
    partition = node.server.broker.topics.partition(topic, 0)
    node.run(partition.delete_before(6))
    stream = reader()
    start = {topic: {"0": 3}}
    end = stream.latestOffset(start, ALL)
    assert end == at(node, topic, {"0": 8})
    assert values_between(stream, start, end) == [b"x"] * 2


def test_a_topic_that_was_made_anew_fails_the_query(node, topic, reader):
    produce(node, topic, [b"x"] * 3)
    position = {topic: {"0": 3}}
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.delete_topics([topic])[topic].result()
    create(node, topic)
    with pytest.raises(DataLost, match="was to be read from offset 3 and ends at 0"):
        reader().latestOffset(position, ALL)


def test_a_topic_that_is_gone_fails_or_is_passed_over(node, reader, topic):
    position = {topic: {"0": 0}, "gone": {"0": 7}}
    with pytest.raises(DataLost, match="do not exist any more: gone-0"):
        reader().latestOffset(position, ALL)
    assert reader(failOnDataLoss="false").latestOffset(position, ALL) == at(node, topic, {"0": 0})


def test_a_process_connects_once_for_all_tasks_with_the_same_options(node):
    options = SourceOptions(bootstrap=node.bootstrap)
    assert open_source(options) is open_source(SourceOptions(bootstrap=node.bootstrap))
    assert open_source(options) is not open_source(
        SourceOptions(bootstrap=node.bootstrap, timeout_ms=5)
    )


def test_a_process_keeps_a_bounded_number_of_places(node):
    first = open_source(SourceOptions(bootstrap=node.bootstrap, timeout_ms=10_000))
    for number in range(SOURCES_MAX):
        open_source(SourceOptions(bootstrap=node.bootstrap, timeout_ms=10_001 + number))
    assert open_source(SourceOptions(bootstrap=node.bootstrap, timeout_ms=10_000)) is not first


def test_a_position_is_what_it_was_after_spark_kept_it():
    position = {
        "a-b": {"0": 1, "10": 2},
        "c": {"0": 3},
        "(lost)": {"a-b-10": 4},
        "(topics)": {"c": "x3Jd0QmnRkK8m2Yv1pTq5w"},
    }
    assert encode_position(*decode_position(position)) == position


def test_lag_is_what_is_left_to_read():
    progress = {"endOffset": '{"a": {"0": 3}}', "latestOffset": {"a": {"0": 10, "1": 4}}}
    assert lag(progress) == {"a-0": 7, "a-1": 4}


def test_a_new_topic_whose_first_records_are_gone_fails_or_is_counted(node, topic, reader):
    new = f"{topic}-new"
    options = {"topic": None, "topicPattern": f"{topic}.*", "startingOffsets": "earliest"}
    stream = reader(**options)
    start = stream.initialOffset()
    create(node, new)
    produce(node, new, [b"x"] * 3)
    evict(node, new)
    produce(node, new, [b"y"])
    with pytest.raises(DataLost, match=f"offsets 0 to 2 of {new}-0 were deleted by retention"):
        stream.latestOffset(start, ALL)
    lenient = reader(**options, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert end["(lost)"] == {f"{new}-0": 3}
    assert values_between(lenient, start, end) == [b"y"]


def test_a_topic_that_is_deleted_while_it_is_read_fails_the_query_or_is_passed_over(
    node, topic, reader
):
    produce(node, topic, [b"x"] * 3)
    stream = reader()
    start = stream.initialOffset()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.delete_topics([topic])[topic].result()
    with pytest.raises(DataLost, match=f"a topic that is read was deleted: topic '{topic}'"):
        stream.latestOffset(start, ALL)
    assert reader(failOnDataLoss="false").latestOffset(start, ALL) == {}


def test_a_reader_of_committed_records_waits_where_one_of_uncommitted_records_was(
    node, topic, reader
):
    produce(node, topic, [b"x"])
    with an_open_transaction(node, topic, [b"open"], f"{topic}-open") as producer:
        position = reader(isolation="read_uncommitted").initialOffset()
        assert position == at(node, topic, {"0": 2})
        stream = reader()
        assert stream.latestOffset(position, ALL) == position, "nothing is lost"
        producer.commit_transaction()
        produce(node, topic, [b"y"])
        end = stream.latestOffset(position, ALL)
        assert values_between(stream, position, end) == [b"y"]


@pytest.mark.parametrize("has_id", [True, False])
def test_a_log_that_got_shorter_is_continued_at_its_end_or_from_its_start_if_it_may_be_another(
    node, topic, reader, has_id
):
    produce(node, topic, [b"x"] * 3)
    position = at(node, topic, {"0": 7}) if has_id else {topic: {"0": 7}}
    end = reader(failOnDataLoss="false").latestOffset(position, ALL)
    tasks = reader(failOnDataLoss="false").partitions(position, end)
    assert decode_position(end)[0] == {TopicPartition(topic, 0): 3}
    assert tasks == []

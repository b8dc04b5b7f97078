"""Streams read every record once, in micro-batches of limited size."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException, StreamingQueryException

from millstream.spark.read.stream_reader import lag
from millstream.spark.session import prepare_streams
from tests.spark.topics import create, evict, produce


class Reading:
    """A query that runs repeatedly with the same checkpoint, and the rows it has read."""

    def __init__(self, spark, node, topic, folder, **options):
        reader = spark.readStream.format("millstream").option("bootstrap.servers", node.bootstrap)
        settings = {"topic": topic, "startingOffsets": "earliest", **options}
        self.spark = spark
        self.frame = reader.options(**settings).load().select("topic", "partition", "offset")
        self.table = str(folder / "table")
        self.checkpoint = str(folder / "checkpoint")

    def run(self):
        """Read the present records; return the progress of each micro-batch that had records."""
        writer = self.frame.writeStream.format("parquet").option("path", self.table)
        writer = writer.option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one for one in query.recentProgress if one.numInputRows]

    def read(self):
        return sorted(tuple(row) for row in self.spark.read.parquet(self.table).collect())


def counted(topic, *counts):
    return [(topic, number, at) for number, count in enumerate(counts) for at in range(count)]


def test_a_restarted_query_goes_on_where_it_was(spark, node, topic, tmp_path):
    create(node, topic, partitions=2)
    reading = Reading(spark, node, topic, tmp_path)
    produce(node, topic, [b"x"] * 30, partition=0)
    produce(node, topic, [b"x"] * 5, partition=1)
    reading.run()
    assert reading.read() == counted(topic, 30, 5)
    produce(node, topic, [b"x"] * 7, partition=1)
    reading.run()
    assert reading.read() == counted(topic, 30, 12)
    assert reading.run() == []
    assert reading.read() == counted(topic, 30, 12)


def test_a_micro_batch_has_no_more_records_than_it_may(spark, node, topic, tmp_path):
    create(node, topic, partitions=2)
    produce(node, topic, [b"x"] * 90, partition=0)
    produce(node, topic, [b"x"] * 10, partition=1)
    reading = Reading(spark, node, topic, tmp_path, maxRecordsPerTrigger="40")
    progress = reading.run()
    assert [one.numInputRows for one in progress] == [40, 40, 20]
    assert reading.read() == counted(topic, 90, 10)


def test_progress_tells_how_far_there_is_to_go(spark, node, topic, tmp_path):
    create(node, topic)
    produce(node, topic, [b"x"] * 100)
    reading = Reading(spark, node, topic, tmp_path, maxRecordsPerTrigger="40")
    sources = [one.sources[0] for one in reading.run()]
    found = [{"endOffset": one.endOffset, "latestOffset": one.latestOffset} for one in sources]
    assert [lag(one) for one in found] == [
        {f"{topic}-0": 60},
        {f"{topic}-0": 20},
        {f"{topic}-0": 0},
    ]


def test_records_that_retention_took_fail_the_query_with_the_gap(spark, node, topic, tmp_path):
    create(node, topic)
    produce(node, topic, [b"x"] * 3)
    reading = Reading(spark, node, topic, tmp_path)
    reading.run()
    produce(node, topic, [b"x"] * 5)
    assert evict(node, topic) == 8
    produce(node, topic, [b"x"] * 2)
    with pytest.raises(
        StreamingQueryException, match=f"offsets 3 to 7 of {topic}-0 were deleted by retention"
    ):
        reading.run()


def test_records_that_retention_took_are_counted_where_that_is_allowed(
    spark, node, topic, tmp_path
):
    create(node, topic)
    produce(node, topic, [b"x"] * 3)
    reading = Reading(spark, node, topic, tmp_path, failOnDataLoss="false")
    reading.run()
    produce(node, topic, [b"x"] * 5)
    evict(node, topic)
    produce(node, topic, [b"x"] * 2)
    progress = reading.run()
    assert reading.read() == [(topic, 0, at) for at in (0, 1, 2, 8, 9)]
    assert f'"(lost)":{{"{topic}-0":5}}' in progress[-1].sources[0].endOffset.replace(" ", "")


def test_a_wrong_option_of_a_stream_fails_with_its_reason(spark, node, topic, tmp_path):
    create(node, topic)
    with pytest.raises(PySparkException, match="endingOffsets is for batches"):
        Reading(spark, node, topic, tmp_path, endingOffsets="latest").run()


def test_a_topic_that_is_deleted_while_a_stream_reads_it_fails_the_query(
    spark, node, topic, tmp_path
):
    create(node, topic)
    produce(node, topic, [b"x"] * 3)
    reading = Reading(spark, node, topic, tmp_path)
    writer = reading.frame.writeStream.format("parquet").option("path", reading.table)
    query = writer.option("checkpointLocation", reading.checkpoint).start()
    try:
        query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.delete_topics([topic])[topic].result()
        with pytest.raises(StreamingQueryException, match="a topic that is read was deleted"):
            query.awaitTermination(120)
    finally:
        query.stop()


def test_streams_that_start_add_nothing_to_the_variables_that_they_share(
    spark, node, topic, tmp_path
):
    create(node, topic)
    produce(node, topic, [b"a"])
    session = spark.newSession()
    manager = session._jsparkSession.sessionState().dataSourceManager()
    source = manager.lookupDataSource("millstream").dataSourceCls()
    # What Spark sets by itself is taken away, as if no stream had run in this process before.
    for name in list(source.envVars()):
        if name.startswith("SPARK_"):
            source.envVars().remove(name)
    prepare_streams(session)
    names = set(source.envVars())
    reader = session.readStream.format("millstream").option("bootstrap.servers", node.bootstrap)
    rows = reader.option("topic", topic).option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress["numInputRows"] == 1
    assert set(source.envVars()) == names

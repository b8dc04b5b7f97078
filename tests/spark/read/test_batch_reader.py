"""The batch reader without Spark: what is planned for wrong offsets."""

from __future__ import annotations

import json

import pytest

from millstream.errors import DataLost
from millstream.spark.columns import TABLE
from millstream.spark.options import parse_read_options
from millstream.spark.read.batch_reader import BatchReader
from millstream.spark.topic_values import TopicValues
from tests.spark.topics import create, produce


def planned(node, topic, **more):
    settings = {"bootstrap.servers": node.bootstrap, "topic": topic, **more}
    options = parse_read_options(settings, is_stream=False)
    tasks = BatchReader(options, TopicValues(options.value), TABLE).partitions()
    return [(range_.start, range_.end) for task in tasks for range_ in task.ranges]


def test_a_start_beyond_the_end_fails_or_reads_nothing(node, topic):
    create(node, topic)
    produce(node, topic, [b"x"] * 3)
    beyond = json.dumps({topic: {"0": 9}})
    with pytest.raises(DataLost, match="was to be read from offset 9 and ends at 3"):
        planned(node, topic, startingOffsets=beyond)
    assert planned(node, topic, startingOffsets=beyond, failOnDataLoss="false") == []
    assert planned(node, topic, startingOffsets=json.dumps({topic: {"0": 3}})) == []
    assert planned(node, topic) == [(0, 3)]

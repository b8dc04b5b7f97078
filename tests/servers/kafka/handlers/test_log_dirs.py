"""DescribeLogDirs, as clients see it."""

from __future__ import annotations

import shutil

import pytest

from millstream.protocols.kafka.messages.log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
)
from millstream.testing.broker import running_broker
from tests.servers.kafka.client import RawClient, batch_of
from tests.servers.kafka.conftest import make_topic

from .test_produce import produce


def log_dir(client, *topics, version=DESCRIBE_LOG_DIRS.last):
    """Return the only directory, with these topics and partitions, or all."""
    requested = tuple(
        DescribeLogDirsRequestTopic(topic=name, partitions=indexes) for name, *indexes in topics
    )
    answer = client.call(DescribeLogDirsRequest(topics=requested or None), version)
    assert answer.error_code == 0
    [found] = answer.results
    assert found.error_code == 0
    return found


def sizes(found):
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in found.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, DESCRIBE_LOG_DIRS.last + 1))
def test_the_data_directory_is_shown_with_the_sizes_of_partitions(broker, client, topic, version):
    batch = batch_of(b"x" * 1000)
    produce(client, topic, batch)
    produce(client, topic, batch)
    found = log_dir(client, (topic, 0, 1), version=version)
    assert found.log_dir == broker.server.config.data
    assert sizes(found) == {(topic, 0): 2 * len(batch), (topic, 1): 0}
    assert [part.offset_lag for part in found.topics[0].partitions] == [0, 0]
    if version >= 4:
        assert found.total_bytes == shutil.disk_usage(found.log_dir).total
        assert 0 < found.usable_bytes <= found.total_bytes


def test_without_topics_all_of_them_are_shown(client, topic):
    others = make_topic(client, partitions=3)
    found = sizes(log_dir(client))
    assert {(topic, 0), (topic, 1), (others, 0), (others, 2)} <= found.keys()


def test_what_does_not_exist_is_left_out(client, topic):
    found = log_dir(client, (topic, 1, 1, 7, -1), ("missing", 0))
    assert list(sizes(found)) == [(topic, 1)]
    assert len(found.topics) == 1


def test_the_size_is_known_before_a_partition_is_used(tmp_path):
    with running_broker(tmp_path) as running, RawClient(running.bootstrap) as client:
        topic = make_topic(client)
        batch = batch_of(b"x" * 1000)
        produce(client, topic, batch)
    with running_broker(tmp_path) as running, RawClient(running.bootstrap) as client:
        assert sizes(log_dir(client)) == {(topic, 0): len(batch)}

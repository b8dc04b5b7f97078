"""Retention that waits for the lake: nothing leaves the log before it is in the table."""

from __future__ import annotations

import pytest

from millstream.broker.problems import ProblemCode
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation
from millstream.errors import InvalidConfig, InvalidRequest, MillstreamError
from millstream.lake.table import LakeTable
from millstream.lake.topic_table import (
    POSITIONS_SIZE_MAX,
    PositionReport,
    disable_lake,
    enable_lake,
)
from millstream.lake.writer import LakeWriter
from millstream.records.topic_partition import TopicPartition
from millstream.testing.broker import running_broker
from tests.spark.topics import create, produce


def values(count: int) -> list[bytes]:
    return [bytes(100)] * count


def maintain(node):
    node.run(node.server.broker.store.maintenance.run_once(is_forced=True))


def start_of(node, topic):
    with KafkaClient(node.bootstrap) as client:
        partition = TopicPartition(topic, 0)
        isolation = Isolation.READ_COMMITTED
        return client.bounds([partition], isolation=isolation)[partition].start


def problems(node, topic):
    """Return the messages of the lake that concern the topic."""
    return [
        problem.message
        for problem in node.server.broker.problems()
        if problem.code is ProblemCode.LAKE_BEHIND and problem.message.startswith(f"{topic}/")
    ]


def test_segments_stay_until_the_table_has_them(node, client, topic, uri):
    create(node, topic, segment_bytes=2000, retention_bytes=1000)
    enable_lake(client, topic, uri, is_required=True)
    produce(node, topic, values(20), **{"batch.num.messages": 1})
    maintain(node)
    assert start_of(node, topic) == 0
    assert problems(node, topic) == [
        f"{topic}/0: retention waits for the lake table, which has the records before offset 0"
    ]
    LakeWriter(client, topic, uri).run()
    maintain(node)
    assert start_of(node, topic) > 0
    assert problems(node, topic) == []
    produce(node, topic, values(40), **{"batch.num.messages": 1})
    maintain(node)
    assert start_of(node, topic) <= 20
    assert problems(node, topic)
    assert LakeWriter(client, topic, uri).run().offsets == 40
    maintain(node)
    assert start_of(node, topic) > 20


def test_caps_of_records_wait_for_readers_too(node, client, topic, uri):
    create(node, topic, millstream_retention_records=5)
    enable_lake(client, topic, uri, is_required=True)
    produce(node, topic, values(12))
    assert start_of(node, topic) == 0
    assert problems(node, topic)
    LakeWriter(client, topic, uri).run()
    assert start_of(node, topic) == 7, "at once, without another append"
    assert not problems(node, topic)


def test_ages_wait_and_a_restart_of_the_node_changes_nothing(tmp_path, topic, uri):
    with running_broker(tmp_path / "node") as node, KafkaClient(node.bootstrap) as client:
        create(node, topic, retention_ms=1, segment_ms=1)
        enable_lake(client, topic, uri, is_required=True)
        produce(node, topic, values(10))
        LakeWriter(client, topic, uri).run()
        produce(node, topic, values(10))
    with running_broker(tmp_path / "node") as node:
        for _ in range(20):
            maintain(node)
        assert start_of(node, topic) <= 10
        with KafkaClient(node.bootstrap) as client:
            assert LakeWriter(client, topic, uri).run().offsets == 10


def test_a_crash_between_commit_and_report_is_made_good_by_the_next_run(
    node, client, topic, uri, monkeypatch
):
    class Killed(BaseException):
        """The process ends here."""

    create(node, topic)
    enable_lake(client, topic, uri, is_required=True)
    produce(node, topic, values(3))
    send = PositionReport.send
    sent = []

    def send_or_die(self, positions):
        sent.append(positions)
        if len(sent) == 2:
            raise Killed
        send(self, positions)

    def reported():
        return client.topic_configs([topic])[topic]["millstream.lake.positions"]

    with monkeypatch.context() as patched:
        patched.setattr(PositionReport, "send", send_or_die)
        with pytest.raises(Killed):
            LakeWriter(client, topic, uri).run()
    assert LakeTable.open(uri).positions(1) == {0: 3}
    assert reported() == ""
    assert LakeWriter(client, topic, uri).run().commits == 0
    assert reported() == "0:3"


def test_only_the_table_of_the_topic_reports(node, client, topic, uri):
    create(node, topic)
    enable_lake(client, topic, uri, is_required=True)
    produce(node, topic, values(3))
    LakeWriter(client, topic, f"{uri}-other").run()
    config = "millstream.lake.positions"
    assert client.topic_configs([topic])[topic][config] == ""
    LakeWriter(client, topic, uri).run()
    assert client.topic_configs([topic])[topic][config] == "0:3"
    disable_lake(client, topic)
    enable_lake(client, topic, f"{uri}-other", is_required=True)
    assert client.topic_configs([topic])[topic][config] == "", "of another table"


def test_a_topic_that_is_compacted_or_has_too_many_partitions_is_refused(node, client, topic, uri):
    create(node, topic, cleanup_policy="compact")
    with pytest.raises(MillstreamError, match=r"millstream\.lake\.required must be false"):
        enable_lake(client, topic, uri, is_required=True)
    create(node, f"{topic}-large")
    enable_lake(client, f"{topic}-large", f"{uri}-large", is_required=True)
    report = PositionReport(client, f"{topic}-large", f"{uri}-large")
    with pytest.raises(InvalidConfig, match=f"limit is {POSITIONS_SIZE_MAX}"):
        report.send(dict.fromkeys(range(5000), 10**9))
    with pytest.raises((InvalidConfig, InvalidRequest), match="a list of partition:offset"):
        client.alter_topic_configs(topic, {"millstream.lake.positions": "x"})

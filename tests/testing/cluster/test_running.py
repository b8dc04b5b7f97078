"""The harness for clusters of processes: it says what went wrong, and how replicas differ."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation
from millstream.records.topic_partition import TopicPartition
from millstream.testing.cluster import NodeFailed, NodeFaults, RunningCluster, running_cluster
from millstream.testing.cluster.network import etcd_name, node_name
from millstream.testing.cluster.node_faults import failing_disk, full_disk
from millstream.testing.cluster.running import HEAL_SECONDS_MAX
from millstream.testing.replica_files import compare_replicas


def replica(folder: Path, segments: Mapping[str, bytes]) -> Path:
    """Write segments of partition 0 of the topic `t` into a data directory."""
    partition = folder / "topics" / "t" / "0"
    partition.mkdir(parents=True)
    for name, content in segments.items():
        (partition / name).write_bytes(content)
    return folder


def test_equal_segments_are_no_difference_and_other_files_do_not_count(tmp_path: Path):
    first = replica(tmp_path / "1", {"0.log": b"abc", "3.log": b"", "0.index": b"x"})
    second = replica(tmp_path / "2", {"0.log": b"abc", "0.index": b"y"})
    assert compare_replicas([first, second], "t", 0) == []


@pytest.mark.parametrize("other", [{}, {"0.log": b"abd"}, {"0.log": b"abc", "3.log": b"d"}])
def test_a_missing_changed_or_further_segment_is_a_difference(
    tmp_path: Path, other: dict[str, bytes]
):
    first = replica(tmp_path / "1", {"0.log": b"abc"})
    second = replica(tmp_path / "2", other)
    [difference] = compare_replicas([first, second], "t", 0)
    assert difference.startswith("t-0: ")
    assert difference.endswith(" in 2")


def test_a_replica_that_is_not_there_is_a_difference(tmp_path: Path):
    first = replica(tmp_path / "1", {"0.log": b"abc"})
    [difference] = compare_replicas([first, tmp_path / "2"], "t", 0)
    assert "there is no" in difference


def test_a_node_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path):
    with running_cluster(tmp_path, nodes=1) as cluster:
        node = cluster.nodes[1]
        cluster.wait_until_in_sync()
        os.kill(node.pid, signal.SIGTERM)  # As if it stopped by itself.
        os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(NodeFailed, match="node 1 had ended by itself"):
            node.kill()
        node.settings["cluster.rack"] = ""
        with pytest.raises(NodeFailed, match="rack"):
            node.start()
        del node.settings["cluster.rack"]
        node.start()
        cluster.wait_until_in_sync()
        node.stop()


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster that everything can be done to, with the topic `t`."""
    folder = tmp_path_factory.mktemp("disturbed")
    with running_cluster(folder, etcd_members=3, has_network=True, has_faults=True) as cluster:
        with KafkaClient(cluster.bootstrap) as client:
            configs = {"message.timestamp.type": "LogAppendTime"}
            client.create_topic("t", partitions=1, configs=configs)
        yield cluster


def produce(cluster: RunningCluster) -> Message:
    """Write one record with `acks=all`, and return what its producer is told."""
    answers: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("t", "x", callback=lambda *answer: answers.append(answer))
    assert producer.flush(HEAL_SECONDS_MAX) == 0
    [(error, message)] = answers
    assert error is None, error
    return message


def wait_for_isr_without(cluster: RunningCluster, node_id: int) -> None:
    deadline = time.monotonic() + HEAL_SECONDS_MAX
    while node_id in cluster.partitions("t")[0].isr_nodes:
        produce(cluster)  # Nobody is late as long as nothing is written.
        assert time.monotonic() < deadline, cluster.partitions("t")


def follower(cluster: RunningCluster) -> tuple[int, int]:
    """Return the leader and one of its followers, when all replicas are in sync."""
    cluster.heal()
    cluster.wait_until_in_sync()
    leader = cluster.leader("t", 0)
    return leader, leader % len(cluster.nodes) + 1


@pytest.mark.parametrize("direction", ["both", "to the leader", "from the leader"])
def test_a_follower_that_is_cut_off_from_its_leader_is_not_in_sync_until_it_heals(
    disturbed: RunningCluster, direction: str
):
    leader, other = (node_name(node) for node in follower(disturbed))
    if direction == "both":
        disturbed.network.cut(leader, other)
    elif direction == "to the leader":
        disturbed.network.cut_one_way(other, leader)
    else:
        disturbed.network.cut_one_way(leader, other)
    wait_for_isr_without(disturbed, int(other.removeprefix("node-")))
    disturbed.heal()
    disturbed.wait_until_in_sync()
    disturbed.check_replicas("t")


@pytest.mark.parametrize("faults", [failing_disk(), full_disk()], ids=["EIO", "ENOSPC"])
def test_a_follower_whose_disk_fails_is_not_in_sync_until_it_heals(
    disturbed: RunningCluster, faults: NodeFaults
):
    _, other = follower(disturbed)
    disturbed.nodes[other].disturb(faults)
    wait_for_isr_without(disturbed, other)
    disturbed.heal()
    disturbed.wait_until_in_sync()
    disturbed.check_replicas("t")


def test_the_clock_of_a_node_that_steps_is_seen_in_the_timestamps_of_its_records(
    disturbed: RunningCluster,
):
    leader, _ = follower(disturbed)
    _, before_ms = produce(disturbed).timestamp()
    disturbed.nodes[leader].disturb(NodeFaults(wall_step_ms=3_600_000))
    _, stepped_ms = produce(disturbed).timestamp()
    assert stepped_ms >= before_ms + 3_600_000


def test_a_leader_that_is_cut_off_from_etcd_is_replaced_and_comes_back(disturbed: RunningCluster):
    leader, other = follower(disturbed)
    for index in range(3):
        disturbed.network.cut(node_name(leader), etcd_name(index))
    deadline = time.monotonic() + HEAL_SECONDS_MAX
    while disturbed.partitions("t", seen_by=other)[0].leader_id in (leader, -1):
        assert time.monotonic() < deadline
    # Who is cut off does not know who was elected, but that it was replaced.
    assert disturbed.partitions("t", seen_by=leader)[0].leader_id == -1
    produce(disturbed)
    # A client that asks the node that is cut off first finds the new leader nevertheless.
    names = f"{disturbed.nodes[leader].bootstrap},{disturbed.nodes[other].bootstrap}"
    with KafkaClient(names, timeout_s=HEAL_SECONDS_MAX) as client:
        assert client.bounds([TopicPartition("t", 0)], isolation=Isolation.READ_COMMITTED)
    disturbed.heal()
    disturbed.wait_until_in_sync()
    disturbed.check_replicas("t")


def test_healing_starts_what_was_killed_and_resumes_what_was_paused(disturbed: RunningCluster):
    disturbed.nodes[1].kill()
    disturbed.nodes[2].pause()
    disturbed.etcd.members[0].kill()
    disturbed.etcd.members[1].pause()
    disturbed.heal()
    disturbed.wait_until_in_sync()
    produce(disturbed)

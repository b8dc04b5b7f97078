"""Apache Kafka's command-line tools administrate a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.cluster import RunningCluster

JARS = Path(__file__).parents[2] / "compat" / "kafka-tools" / "jars"
SECONDS_MAX = 120
OK = 0


class JavaTools:
    """Runs tools by the class in which `bin/kafka-*.sh` starts them."""

    def __init__(self, bootstrap: str) -> None:
        assert JARS.exists(), "run `make clients`"
        self._bootstrap = bootstrap

    def run(self, tool: str, *arguments: str, status: int = OK) -> str:
        """Return what the tool printed."""
        command = [
            # Short runs: optimizing compilation would take longer than it saves.
            *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/*"),
            *(f"org.apache.kafka.tools.{tool}", "--bootstrap-server", self._bootstrap),
            *arguments,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_the_tools_of_kafka_show_and_change_where_replicas_are(
    cluster: RunningCluster, name: str, tmp_path: Path
):
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic(name, partitions=1)
    tools = JavaTools(cluster.bootstrap)
    first, second, third = cluster.partitions(name)[0].replica_nodes

    def described() -> str:
        return tools.run("TopicCommand", "--describe", "--topic", name)

    assert f"Partition: 0\tLeader: {first}\tReplicas: {first},{second},{third}" in described()

    plan = tmp_path / "plan.json"
    moved = {"topic": name, "partition": 0, "replicas": [second, third]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    reassign = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started" in tools.run(*reassign, "--execute")
    for _ in range(10):
        progress = tools.run(*reassign, "--verify")
        if "is completed" in progress:
            break
    assert f"Reassignment of partition {name}-0 is completed" in progress
    assert f"Replicas: {second},{third}\tIsr: {second},{third}" in described()

    shown = tools.run("LogDirsCommand", "--describe", "--topic-list", name)
    brokers = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))
    assert {
        broker["broker"]
        for broker in brokers["brokers"]
        for directory in broker["logDirs"]
        if directory["partitions"]
    } == {second, third}

    cluster.nodes[second].kill()
    assert cluster.leader(name, 0) == third
    cluster.nodes[second].start()
    cluster.wait_until_in_sync()
    preferred = ("--election-type", "preferred", "--topic", name, "--partition", "0")
    elected = tools.run("LeaderElectionCommand", *preferred)
    assert "Successfully completed" in elected or "already" in elected
    assert cluster.leader(name, 0) == second

    refusal = tools.run("MetadataQuorumCommand", "describe", "--status", status=1)
    assert "does not support DESCRIBE_QUORUM" in refusal

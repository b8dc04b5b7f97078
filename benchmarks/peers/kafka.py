"""Apache Kafka with its own defaults: one node that is broker and controller, or three of them."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from measure.peers import PeerMissing

from peers.cluster_processes import PeerCluster, PeerNode, serving_together
from peers.maven import jars
from peers.processes import PeerProcess, found, free_port, serving

VERSION = "4.2.0"
HEAP = "1g"
"""What Kafka's own script gives it."""
CLUSTER_NODES = 3

# As Kafka's own script sets them.
_JVM = (
    "-server",
    *("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    *(f"-Xms{HEAP}", f"-Xmx{HEAP}"),
)


@contextmanager
def running_kafka(folder: Path) -> Iterator[PeerProcess]:
    """Run Kafka with its data in a new folder."""
    java, classes = _java(), _classes()
    folder.mkdir()
    port = free_port()
    settings = folder / "server.properties"
    settings.write_text(_settings(folder / "data", port, free_port()))
    _format(java, classes, settings, _new_id(), "--standalone")
    with serving(
        _command(java, classes, settings),
        folder,
        port,
        version=f"Apache Kafka {VERSION}, heap {HEAP}, else its defaults",
        is_ready=partial(_is_ready, port),
    ) as server:
        yield server


@contextmanager
def running_kafka_cluster(folder: Path) -> Iterator[PeerCluster]:
    """Run three nodes that are brokers and controllers, with their data in a new folder."""
    java, classes = _java(), _classes()
    numbers = range(1, CLUSTER_NODES + 1)
    ports = {number: (free_port(), free_port()) for number in numbers}
    quorum = ",".join(f"127.0.0.1:{controller}" for _, controller in ports.values())
    cluster = _new_id()
    voters = ",".join(
        f"{number}@127.0.0.1:{controller}:{_new_id()}" for number, (_, controller) in ports.items()
    )
    nodes = []
    for number, (port, controller) in ports.items():
        place = folder / str(number)
        place.mkdir(parents=True)
        settings = place / "server.properties"
        settings.write_text(_cluster_settings(place / "data", number, port, controller, quorum))
        _format(java, classes, settings, cluster, "--initial-controllers", voters)
        command = _command(java, classes, settings)
        nodes.append(PeerNode(str(number), command, place, port))
    version = (
        f"{CLUSTER_NODES} nodes of Apache Kafka {VERSION}, each broker and controller with a heap"
        f" of {HEAP}, replicas on all of them, else its defaults"
    )
    with serving_together(nodes, version, is_complete) as server:
        yield server


def is_complete(node: PeerNode) -> bool:
    """Whether a node knows all brokers of its cluster."""
    return _brokers(node.port) == CLUSTER_NODES


def _classes() -> str:
    return ":".join(str(jar) for jar in jars("org.apache.kafka", "kafka_2.13", VERSION))


def _command(java: str, classes: str, settings: Path) -> list[str]:
    return [java, *_JVM, "-cp", classes, "kafka.Kafka", str(settings)]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else found("java", "default-jre-headless")


def _settings(data: Path, port: int, controller: int) -> str:
    return f"""process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
# There is one node, so nothing can have replicas.
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
# Topics that were measured go soon, so that the disk does not fill up.
log.segment.delete.delay.ms=1000
"""


def _cluster_settings(data: Path, number: int, port: int, controller: int, quorum: str) -> str:
    return f"""process.roles=broker,controller
node.id={number}
controller.quorum.bootstrap.servers={quorum}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
# Ours is a majority by default.
min.insync.replicas=2
# Topics that were measured go soon, so that the disk does not fill up.
log.segment.delete.delay.ms=1000
"""


def _new_id() -> str:
    """Return a random id as Kafka writes them; one that begins so would be read as an option."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "A" + made[1:] if made.startswith("-") else made


def _format(java: str, classes: str, settings: Path, cluster: str, *options: str) -> None:
    command = [
        *(java, "-cp", classes, "kafka.tools.StorageTool", "format", *options),
        *("--cluster-id", cluster, "--config", str(settings)),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerMissing(f"Kafka's storage cannot be formatted: {done.stderr.strip()[-300:]}")


def _is_ready(port: int) -> bool:
    """Whether it answers, and knows itself as a broker."""
    return bool(_brokers(port))


def _brokers(port: int) -> int:
    """Return how many brokers a node knows; none if it does not answer."""
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return len(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return 0

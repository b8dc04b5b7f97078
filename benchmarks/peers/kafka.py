"""Apache Kafka: one node that is broker and controller, with Kafka's own defaults."""

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

from peers.maven import jars
from peers.processes import PeerProcess, found, free_port, serving

VERSION = "4.2.0"
HEAP = "1g"
"""What Kafka's own script gives it."""

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
    classes = ":".join(str(jar) for jar in jars("org.apache.kafka", "kafka_2.13", VERSION))
    java = _java()
    folder.mkdir()
    port = free_port()
    settings = folder / "server.properties"
    settings.write_text(_settings(folder / "data", port, free_port()))
    _format(java, classes, settings)
    with serving(
        [java, *_JVM, "-cp", classes, "kafka.Kafka", str(settings)],
        folder,
        port,
        version=f"Apache Kafka {VERSION}, heap {HEAP}, else its defaults",
        is_ready=partial(_is_ready, port),
    ) as server:
        yield server


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


def _format(java: str, classes: str, settings: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    if cluster.startswith("-"):
        cluster = "A" + cluster[1:]  # Else it would be read as an option.
    command = [
        *(java, "-cp", classes, "kafka.tools.StorageTool", "format"),
        *("--standalone", "--cluster-id", cluster, "--config", str(settings)),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerMissing(f"Kafka's storage cannot be formatted: {done.stderr.strip()[-300:]}")


def _is_ready(port: int) -> bool:
    """Whether it answers, and knows itself as a broker."""
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False

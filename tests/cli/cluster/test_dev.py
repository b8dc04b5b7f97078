"""`millstream cluster dev`: a cluster with one command, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from millstream.cli.processes.addresses import check_port
from millstream.errors import InvalidConfig
from tests.cli.nodes import MILLSTREAM, PATIENCE, wait_until

pytestmark = pytest.mark.slow


class Dev:
    """The command in a process of its own, on free ports."""

    def __init__(self, data: Path, *options: str) -> None:
        self._command = [MILLSTREAM, "cluster", "dev", "--free-ports", "--data", str(data)]
        self._command += options
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        while not self.lines or self.lines[-1] != "ready":
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=PATIENCE)[1]
            self.lines.append(line.rstrip("\n"))
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def addresses(self, server: str) -> list[str]:
        """Return the addresses of one kind of server of all nodes."""
        words = (line.split() for line in self.lines if line.startswith("node "))
        return [words[words.index(server) + 1] for words in words]


def produced(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(PATIENCE) == 0


def consumed(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    try:
        messages = consumer.consume(count, PATIENCE)
        return [message.value().decode() for message in messages]
    finally:
        consumer.close()


def wait_until_replicated(bootstrap: str) -> None:
    """Wait until every partition, also of internal topics, has three replicas in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wait_until(
        lambda: all(
            len(partition.isrs) == 3
            for topic in admin.list_topics(timeout=PATIENCE).topics.values()
            for partition in topic.partitions.values()
        )
    )


def test_a_cluster_keeps_its_records_when_it_is_stopped_and_started_again(tmp_path: Path):
    with Dev(tmp_path / "cluster") as dev:
        kafka = dev.addresses("kafka")
        assert len(set(kafka)) == 3
        assert dev.lines[0].startswith("etcd http://127.0.0.1:")
        produced(kafka[0], ["a", "b"])
        metadata = AdminClient({"bootstrap.servers": kafka[1]}).list_topics("orders", PATIENCE)
        assert sorted(metadata.brokers) == [1, 2, 3]
        assert sorted(metadata.topics["orders"].partitions[0].replicas) == [1, 2, 3]
        status, errors = dev.stop()
        assert (status, errors) == (0, "")
    with Dev(tmp_path / "cluster") as dev:
        assert consumed(dev.addresses("kafka")[2], 2) == ["a", "b"]
        assert dev.stop(signal.SIGTERM)[0] == 0


def test_a_killed_node_is_reported_and_the_others_go_on(tmp_path: Path):
    with Dev(tmp_path / "cluster") as dev:
        kafka = dev.addresses("kafka")
        produced(",".join(kafka), ["a"])
        wait_until_replicated(kafka[0])
        victim = next(
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _is_node(entry, tmp_path / "cluster" / "node-2")
        )
        os.kill(victim, signal.SIGKILL)
        assert dev.process.stderr is not None
        assert dev.process.stderr.readline().startswith("node 2 has ended with status -9: see ")
        left = f"{kafka[0]},{kafka[2]}"
        produced(left, ["b"])
        assert consumed(left, 2) == ["a", "b"]
        assert dev.stop()[0] == 0


def _is_node(process: Path, data: Path) -> bool:
    try:
        return f"--data={data}".encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def test_only_etcd_can_be_started(tmp_path: Path):
    with Dev(tmp_path / "cluster", "--etcd-only") as dev:
        assert [line.split()[0] for line in dev.lines] == ["etcd", "ready"]
        assert dev.stop()[0] == 0


def test_without_etcd_the_message_says_how_to_install_it(tmp_path: Path):
    result = subprocess.run(
        [MILLSTREAM, "cluster", "dev", "--free-ports", "--data", str(tmp_path / "cluster")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: etcd is not installed: ")
    assert "etcd-server" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_in_use_is_named_with_the_way_out(tmp_path: Path):
    with Dev(tmp_path / "one", "--etcd-only") as dev:
        port = dev.lines[0].rpartition(":")[2]
        with pytest.raises(InvalidConfig, match=f"port {port}, for the etcd, is not free.*--free"):
            check_port("etcd", int(port))

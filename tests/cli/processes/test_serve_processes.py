"""`millstream serve --processes`: several node processes as one, with real processes and etcd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.storage.disk.cpu_affinity import allowed_cpus
from tests.cli.nodes import MILLSTREAM, PATIENCE, Node, wait_until

pytestmark = pytest.mark.slow

PARTITIONS = 4


class Processes:
    """The command in a process of its own, on free ports."""

    def __init__(self, data: Path, count: int, *options: str) -> None:
        self.data = data
        self._command = command(data, count, *options)
        self.lines: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        assert self.process.stdout is not None
        while not self.lines or self.lines[-1] != "ready":
            line = self.process.stdout.readline()
            assert line, "".join(self.errors[-20:])
            self.lines.append(line.rstrip("\n"))
        return self

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += self.process.stderr

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # The kernel tells the others.
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def addresses(self, server: str) -> list[str]:
        words = (line.split() for line in self.lines if line.startswith("node "))
        return [words[words.index(server) + 1] for words in words]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses("kafka"))

    def get(self, path: str, node: int = 1) -> Any:
        with urllib.request.urlopen(self.addresses("http")[node - 1] + path) as answer:
            return json.load(answer)

    def run(self, *words: str) -> str:
        """Run another command against the second node, and return its output."""
        server = ("--server", self.addresses("http")[1])
        result = subprocess.run(
            [MILLSTREAM, *words, *server],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def pid_of(self, name: str) -> int:
        """Return the process of a node or of etcd, by its command line."""
        mark = f"{self.data}/etcd" if name == "etcd" else f"{self.data}/{name}.toml"
        (found,) = pids_with(mark)
        return found

    def events(self, process: str | None) -> list[dict[str, Any]]:
        """Return the log lines of a process; with None, those of the supervising one."""
        lines = [json.loads(line) for line in self.errors if line.startswith("{")]
        return [line for line in lines if line.get("process") == process]


def command(data: Path, count: int, *options: str) -> list[str]:
    return [
        *(MILLSTREAM, "serve", "--data", str(data), "--processes", str(count)),
        *("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *options),
    ]


def pids_with(mark: str) -> list[int]:
    """Return the processes below a supervising one whose command line has this in it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if any(word.decode(errors="replace").endswith(mark) for word in words):
            found.append(int(entry.name))
    return found


def refused(data: Path, count: int, *options: str, **environment: str) -> str:
    """Return the error of a command that does not start."""
    result = subprocess.run(
        command(data, count, "--log-format", "pretty", "--log-level", "error", *options),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environment},
    )
    assert (result.returncode, result.stdout) == (1, "")
    return result.stderr


def create_topic(bootstrap: str, name: str = "orders") -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS)]).values():
        future.result(PATIENCE)


def produce(bootstrap: str, values: list[str], name: str = "orders") -> None:
    """Produce the values, one after the other to all partitions, and wait for them all."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(name, value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


def consumed(bootstrap: str, count: int, name: str = "orders") -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([name])
    try:
        return sorted(message.value().decode() for message in consumer.consume(count, PATIENCE))
    finally:
        consumer.close()


def holders(processes: Processes, name: str = "orders") -> Counter[tuple[int, ...]]:
    """Return how many partitions of a topic have these replicas, of which the first leads."""
    partitions = processes.get("/v1/cluster/partitions")["partitions"]
    found = [partition for partition in partitions if partition["topic"] == name]
    return Counter(tuple(partition["replicas"]) for partition in found)


def test_partitions_are_split_and_nothing_is_lost_when_a_process_is_killed(tmp_path: Path):
    values = [f"{number:03}" for number in range(40)]
    with Processes(tmp_path, 2) as processes:
        create_topic(processes.bootstrap)
        assert holders(processes) == {(1,): 2, (2,): 2}
        produce(processes.bootstrap, values[:20])
        wait_until(lambda: holders(processes, "__groups") == {(1,): 8, (2,): 8})
        assert holders(processes, "__transactions") == {(1,): 8, (2,): 8}
        victim = processes.pid_of("node-2")
        os.kill(victim, signal.SIGKILL)
        produce(processes.bootstrap, values[20:])  # Waits for the partitions of node 2.
        assert processes.pid_of("node-2") != victim
        assert consumed(processes.addresses("kafka")[1], 40) == values
        assert processes.get("/health/ready", node=2)["status"] == "ready"
        os.kill(processes.pid_of("etcd"), signal.SIGKILL)
        produce(processes.bootstrap, ["after etcd"])
        assert processes.stop() == 0
        events = [event["event"] for event in processes.events(None)]
        assert "node-2 ended with signal SIGKILL; it is started again in 0.5 s" in events
        assert "etcd ended with signal SIGKILL; it is started again in 0.5 s" in events
        assert events[-1] == "stopped"
        assert not pids_with(f"{tmp_path}/etcd")
    with Processes(tmp_path, 2) as processes:
        assert consumed(processes.bootstrap, 41) == [*values, "after etcd"]
        assert processes.stop(signal.SIGHUP) == 0
        for name in ("node-1", "node-2"):
            (opened,) = (e for e in processes.events(name) if e["event"] == "opened topics")
            assert opened["scanned_bytes"] == 0, "the last stop was an orderly one"
            assert opened["logs"] > 0


def test_processes_can_be_added_and_removed_when_they_hold_nothing(tmp_path: Path):
    values = [f"{number:03}" for number in range(20)]
    with Processes(tmp_path, 1) as processes:
        create_topic(processes.bootstrap)
        produce(processes.bootstrap, values)
        assert processes.stop() == 0
    with Processes(tmp_path, 2) as processes:
        (added,) = (
            e for e in processes.events(None) if "millstream cluster rebalance" in e["event"]
        )
        assert added["added"] == [2]
        processes.run("cluster", "rebalance")
        assert holders(processes) == {(1,): 2, (2,): 2}
        assert consumed(processes.addresses("kafka")[0], 20) == values
        wait_until(lambda: holders(processes, "__groups") == {(1,): 8, (2,): 8})
        assert processes.stop() == 0
    message = refused(tmp_path, 1)
    assert "node 2 holds " in message
    assert " partitions (orders/" in message
    assert "start with 2, move them with `millstream cluster remove 2`" in message
    with Processes(tmp_path, 2) as processes:
        processes.run("cluster", "remove", "2")
        assert processes.stop() == 0
    with Processes(tmp_path, 1) as processes:
        assert holders(processes) == {(1,): 4}
        assert consumed(processes.bootstrap, 20) == values
        assert processes.stop() == 0


def test_sigquit_writes_the_stacks_of_all_nodes_and_ends_with_131(tmp_path: Path):
    with Processes(tmp_path, 2) as processes:
        assert processes.stop(signal.SIGQUIT) == 131
    for name in ("node-1", "node-2"):
        assert any(line.startswith(f"{name} | ") and "Thread" in line for line in processes.errors)


def test_nothing_goes_on_when_the_supervising_process_is_killed(tmp_path: Path):
    with Processes(tmp_path, 2) as processes:
        names = ("node-1", "node-2", "etcd")
        pids = [processes.pid_of(name) for name in names]
        create_topic(processes.bootstrap)
        produce(processes.bootstrap, ["kept"])
        processes.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with Processes(tmp_path, 2) as processes:
        assert consumed(processes.bootstrap, 1) == ["kept"]
        assert processes.stop() == 0


def test_each_process_has_its_processors_and_says_so(tmp_path: Path):
    cpus = allowed_cpus()
    options = ("--cpus", str(cpus[-1]), "--set", f"storage.maintenance_cpus={cpus[0]}")
    with Processes(tmp_path, 1, *options) as processes:
        pid = processes.pid_of("node-1")
        assert os.sched_getaffinity(pid) == {cpus[-1]}
        assert processes.get("/v1/node")["machine"]["cpu_list"] == str(cpus[-1])
        assert processes.stop() == 0


# Refusals, which change nothing.


def test_the_directory_of_a_lone_node_is_refused_and_the_other_way_round(tmp_path: Path):
    with Node(tmp_path / "lone") as node:
        assert node.stop() == 0
    before = sorted(path.name for path in (tmp_path / "lone").iterdir())
    message = refused(tmp_path / "lone", 2)
    assert "lone belongs to a node without a cluster" in message
    assert "millstream cluster adopt" in message
    assert sorted(path.name for path in (tmp_path / "lone").iterdir()) == before
    with Processes(tmp_path / "several", 1) as processes:
        message = refused(tmp_path / "several", 1)
        assert message == f"Error: {tmp_path}/several/lock is locked by another process\n"
        assert processes.stop() == 0
    lone = subprocess.run(
        [MILLSTREAM, "serve", "--data", str(tmp_path / "several"), "--kafka", "127.0.0.1:0",
         "--http", "127.0.0.1:0", "--log-format", "pretty", "--log-level", "error"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert lone.returncode == 1
    assert "several has the data directories of several node processes" in lone.stderr


def test_what_is_missing_or_not_allowed_is_named_and_nothing_is_made(tmp_path: Path):
    data = tmp_path / "data"
    message = refused(data, 2, PATH=str(tmp_path))
    assert message.startswith("Error: etcd is not installed: ")
    assert "etcd-server" in message
    allowed = allowed_cpus()
    message = refused(data, 2, "--cpus", "8000")
    assert message.startswith("Error: node.cpus must be processors that this process may run on")
    assert message.endswith(", got 8000\n")
    assert str(allowed[0]) in message
    assert not data.exists()


def test_a_node_that_cannot_start_ends_all_with_its_reason(tmp_path: Path):
    with Node(tmp_path / "other") as other:
        kafka = other.bootstrap.rpartition(":")[2]
        options = ("--kafka", f"127.0.0.1:{kafka}")
        message = refused(tmp_path / "data", 1, *options)
        assert f"cannot listen on 127.0.0.1:{kafka} (kafka)" in message
        assert "node-1 could not be started: it ended with status 1" in message
        assert not pids_with(f"{tmp_path}/data/etcd")


def test_a_lone_node_becomes_the_first_of_several_processes(tmp_path: Path):
    """The steps of docs/operating/processes.md, From one process to several."""
    data = tmp_path / "data"
    data.mkdir()
    with Node(data / "node-1") as node:
        create_topic(node.bootstrap)
        produce(node.bootstrap, ["a", "b"])
        assert node.stop() == 0
    etcd = subprocess.Popen(
        [MILLSTREAM, "cluster", "dev", "--etcd-only", "--free-ports", "--data", str(data)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert etcd.stdout is not None
    url = etcd.stdout.readline().split()[1]
    adopt = [MILLSTREAM, "cluster", "adopt", "--data", f"{data}/node-1", "--node-id", "1"]
    subprocess.run([*adopt, "--etcd", url], check=True, timeout=PATIENCE, capture_output=True)
    etcd.terminate()
    assert etcd.wait(PATIENCE) == 0
    etcd.stdout.close()
    with Processes(data, 2) as processes:
        processes.run("cluster", "rebalance")
        assert holders(processes) == {(1,): 2, (2,): 2}
        assert consumed(processes.addresses("kafka")[1], 2) == ["a", "b"]
        assert processes.stop() == 0

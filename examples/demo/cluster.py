"""Chapter 4: the leader of a cluster is killed while it writes, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Self

from clicks import TIMEOUT_SECONDS, TOPIC, clicks, make_producer, read_all
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic
from output import explain, run, show, show_command

NODES = 3
EVENTS = 20_000
KILL_AT = 10_000
"""Clicks that were sent when the node is killed."""
KILL_AFTER = 5_000
"""Clicks that were acknowledged by then, at least."""
DYING_SECONDS = 0.5
"""Acknowledgements that come later than this after the kill are not those of the dead node."""


class DevCluster:
    """`millstream cluster dev`, stopped at the end of a `with` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._kafka: dict[int, str] = {}
        self.urls: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self._kafka.values())

    def __enter__(self) -> Self:
        started = time.perf_counter()
        options = ("--nodes", NODES, "--data", "cluster", "--free-ports")
        self._process = subprocess.Popen(
            show_command("cluster", "dev", *options),
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the demo, which then stops the cluster.
        )
        try:
            self._read_addresses()
        except BaseException:  # Also after a signal, leave nothing running.
            self.__exit__()
            raise
        show(f"ready after {time.perf_counter() - started:.1f} s")
        return self

    def _read_addresses(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != "ready\n":
            assert line, "the cluster did not start"
            show(line)
            kind, *words = line.split()
            if kind == "node":
                addresses = dict(zip(words[1::2], words[2::2], strict=True))
                self._kafka[int(words[0])] = addresses["kafka"]
                self.urls[int(words[0])] = addresses["http"]

    def kill(self, node_id: int) -> None:
        """Kill the process of one node with SIGKILL, as the kernel or an operator would."""
        os.kill(self._pid(node_id), signal.SIGKILL)
        del self.urls[node_id]

    def _pid(self, node_id: int) -> int:
        assert self._process is not None
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for child in map(int, children):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            if f"--node-id={node_id}" in words:
                return child
        raise AssertionError(f"node {node_id} does not run")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            with self._process as process:
                process.wait(TIMEOUT_SECONDS)


def present(directory: Path) -> None:
    """Fill a replicated topic with clicks, and kill its leader meanwhile."""
    explain(
        f"Start {NODES} nodes that replicate records among each other, and etcd, which decides what"
        " they have to agree on."
    )
    with DevCluster(directory) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(TIMEOUT_SECONDS)
        send_through_a_kill(cluster, admin)
        check(cluster, directory)
        watch_for_loss(cluster, directory)


def leader_of(admin: AdminClient) -> int:
    """Return the id of the node that leads the topic."""
    leader: int = admin.list_topics(TOPIC, TIMEOUT_SECONDS).topics[TOPIC].partitions[0].leader
    return leader


def send_through_a_kill(cluster: DevCluster, admin: AdminClient) -> None:
    """Send all clicks, and kill the node that takes them."""
    explain(
        f"Send {EVENTS:,} clicks, each acknowledged when two nodes have it on disk. Meanwhile, kill"
        " the node that leads the topic with SIGKILL. It stays dead: another node is elected, and"
        " the producer finds it."
    )
    producer = make_producer(cluster.bootstrap)
    acked_at: list[float] = []

    def on_delivery(error: object, _: Message) -> None:
        assert error is None, error
        acked_at.append(time.perf_counter())

    leader, killed_at = leader_of(admin), 0.0
    for sent, event in enumerate(clicks(0, EVENTS), start=1):
        producer.produce(TOPIC, **event, on_delivery=on_delivery)
        producer.poll(0)
        if sent == KILL_AT:
            while len(acked_at) < KILL_AFTER:
                producer.poll(0.001)
            cluster.kill(leader)
            killed_at = time.perf_counter()
            acked, waiting = len(acked_at), len(producer)
            show(f"node {leader} killed: {acked:,} acknowledged, {waiting:,} in flight")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    resumed_at = next(at for at in acked_at if at > killed_at + DYING_SECONDS)
    show(f"node {leader_of(admin)} leads; acknowledged again after {resumed_at - killed_at:.1f} s")
    show(f"all {len(acked_at):,} acknowledged")


def check(cluster: DevCluster, directory: Path) -> None:
    """Check that every click is stored once, on the nodes that are left."""
    explain("Check that every click is stored once, and look at the cluster.")
    counts = Counter(
        json.loads(record.value())["number"] for record in read_all(cluster.bootstrap, TOPIC, 1)
    )
    lost, duplicates = EVENTS - len(counts), counts.total() - len(counts)
    show(f"{counts.total():,} records of {EVENTS:,} clicks: {lost} lost, {duplicates} duplicates")
    assert (lost, duplicates) == (0, 0)
    url = next(iter(cluster.urls.values()))
    run("cluster", "nodes", "--server", url, directory=directory)
    run("cluster", "partitions", TOPIC, "--server", url, directory=directory)


def watch_for_loss(cluster: DevCluster, directory: Path) -> None:
    """Show the command that operators run while they break things."""
    explain(
        "The same check for a cluster of your own: write numbered records, break what you like"
        " meanwhile, and see whether one is lost. Here for three seconds, without another failure."
    )
    urls = ",".join(cluster.urls.values())
    options = ("--duration", 3, "--rate", 200, "--progress", 0, "--server", urls)
    run("chaos", "run", *options, directory=directory)

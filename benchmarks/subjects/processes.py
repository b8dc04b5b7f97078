"""Several node processes on one machine, beside one: the same partitions, split.

The client needs processors too. On a machine with two of them, two nodes and a client that is as
fast as they are cannot all run at once: the rows with the processors that the servers used say how
much of the machine was left for them.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_least
from measure.usage import cpu_seconds

from millstream.protocols.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from subjects.kafka.client import (
    answer_size,
    await_leader,
    call,
    delete_topic,
    make_topic,
    produce_frame,
    send_pipelined,
)
from subjects.kafka.processes import node_command
from subjects.log.common import KIB, MIB, make_batch

GB = 1_000_000_000
PARTITIONS = 4
WINDOW = 32
ALL, LEADER = -1, 1

ONE, LOCAL_1, LOCAL_2 = "one process", "--processes 1", "--processes 2"
METADATA_VERSION = 9


class Servers:
    """The processes of one command, by the port of any of them."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def leader_ports(self, topic: str) -> list[int]:
        """Return the port of the leader of each partition."""
        wanted = MetadataRequestTopic(name=topic)
        answer = call(self.port, MetadataRequest(topics=(wanted,)), METADATA_VERSION)
        assert isinstance(answer, MetadataResponse)
        ports = {broker.node_id: broker.port for broker in answer.brokers}
        partitions = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
        return [ports[partition.leader_id] for partition in partitions]


@contextmanager
def servers(data: Path, *options: str) -> Iterator[Servers]:
    """Run `millstream serve`, as a user would, until the block ends."""
    process = subprocess.Popen(
        node_command(data, *options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        port = 0
        assert process.stdout is not None
        for line in process.stdout:
            words = line.split()
            if "kafka" in words and not port:
                port = int(words[words.index("kafka") + 1].rpartition(":")[2])
            if line == "ready\n":
                break
        else:
            raise RuntimeError("millstream serve ended before it was ready")
        yield Servers(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def _produce(target: Servers, batch: bytes, count: int, *, acks: int, name: str) -> Figures:
    """Produce to all partitions at once, each on a connection to its leader."""
    topic = make_topic(target.port, partitions=PARTITIONS)
    frames = [
        produce_frame(topic, batch, acks=acks, partition=number) for number in range(PARTITIONS)
    ]
    ports = target.leader_ports(topic)
    for port, frame in zip(ports, frames, strict=True):
        await_leader(port, frame)
    answers = [answer_size(port, frame) for port, frame in zip(ports, frames, strict=True)]
    threads = [
        threading.Thread(
            target=send_pipelined,
            args=(port, frame, count),
            kwargs={"answer": answer, "window": WINDOW},
        )
        for port, frame, answer in zip(ports, frames, answers, strict=True)
    ]
    used, client, began = cpu_seconds(target.pid), time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    client = time.process_time() - client
    cpu = cpu_seconds(target.pid) - used
    delete_topic(target.port, topic)
    size = sum(len(frame) for frame in frames) * count
    return {
        f"{name} rate": size / elapsed / 1e6,
        f"{name} CPU": cpu / size * GB,
        f"{name} processors": cpu / elapsed,
        f"{name} client": client / elapsed,
    }


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(16 * KIB)
    total = scale.pick(smoke=MIB, quick=512 * MIB, full=1024 * MIB)
    count = max(2, total // PARTITIONS // len(batch))
    with ExitStack() as stack:
        targets = {
            ONE: stack.enter_context(servers(folder / "one")),
            LOCAL_1: stack.enter_context(servers(folder / "local-1", "--processes", "1")),
            LOCAL_2: stack.enter_context(servers(folder / "local-2", "--processes", "2")),
        }

        def arm(name: str, acks: int) -> Arm:
            title = f"{name} acks={'all' if acks == ALL else acks}"
            return lambda: _produce(targets[name], batch, count, acks=acks, name=title)

        yield [arm(name, acks) for acks in (LEADER, ALL) for name in targets]


def _rows(acks: str, goal: float | None) -> Iterator[Row]:
    for name in (LOCAL_2, LOCAL_1):
        yield Row(
            name=f"produce 16 KB batches, {acks}, {name}",
            unit="MB/s",
            ours=f"{name} {acks} rate",
            limit=f"{ONE} {acks} rate",
            limit_name=ONE,
            goal=None if goal is None or name is LOCAL_1 else ratio_at_least(goal),
        )
        yield Row(
            name=f"produce 16 KB batches, {acks}, {name}, server CPU",
            unit="s/GB",
            ours=f"{name} {acks} CPU",
            limit=f"{ONE} {acks} CPU",
            limit_name=ONE,
        )
        yield Row(
            name=f"produce 16 KB batches, {acks}, {name}, processors of the servers",
            unit="processors",
            ours=f"{name} {acks} processors",
            limit=f"{ONE} {acks} processors",
            limit_name=ONE,
        )
    yield Row(
        name=f"produce 16 KB batches, {acks}, {LOCAL_2}, processors of the client",
        unit="processors",
        ours=f"{LOCAL_2} {acks} client",
        limit=f"{ONE} {acks} client",
        limit_name=ONE,
    )


EXPERIMENTS = (
    Experiment(
        title="two processes",
        note=(
            "Batches of 16 KB, pipelined on four connections, each to the leader of a partition of"
            " its own, into a topic of class `fsync` with one replica. `--processes 2` has two"
            " partitions in each process, `--processes 1` the four in one process of a local"
            " cluster, and one process is a node without a cluster. CPU is that of all processes of"
            " the command, with etcd and the supervising one. The client is one Python process with"
            " four threads on the same processors: with two of them, what the servers can gain is"
            " bounded by what the client leaves."
        ),
        rows=(*_rows("acks=1", 1.3), *_rows("acks=all", None)),
        arms=_arms,
        repetitions_quick=7,
    ),
)

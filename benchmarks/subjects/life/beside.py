"""Production while another topic of the same node is compacted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most

from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
)
from subjects.kafka.client import (
    LONE_SIZE,
    call,
    connect,
    produce_frame,
    receive_frame,
    send_one_by_one,
)
from subjects.life.data import keyed_batches
from subjects.log.common import MB, MIB, make_batch, quantile

NODE = Path(__file__).with_name("node.py")
DEFAULT_RATE = 64 * MIB
ALL = -1


class Node:
    """Run a node whose maintenance runs on request."""

    def __init__(self, data: Path, bytes_per_second: int) -> None:
        command = [sys.executable, str(NODE), str(data), str(bytes_per_second)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._line().rpartition(":")[2])

    def clean(self) -> None:
        """Have the node look after its data, and return when it has."""
        assert self._process.stdin is not None
        self._process.stdin.write("clean\n")
        self._process.stdin.flush()
        assert self._line() == "cleaned\n"

    def close(self) -> None:
        """Stop the node."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=20, quick=2_000, full=5_000)
    size = scale.pick(smoke=MB, quick=64 * MB, full=512 * MB)
    keys = scale.pick(smoke=1_000, quick=250_000, full=1_000_000)
    batches = keyed_batches(keys, keys)
    lone = make_batch(LONE_SIZE, value_size=100)
    with ExitStack() as stack:
        nodes = {}
        for name, rate in (("default", DEFAULT_RATE), ("unlimited", 0)):
            nodes[name] = Node(folder / name, rate)
            stack.callback(nodes[name].close)
            _make_topics(nodes[name].port)

        def alone() -> Figures:
            took = send_one_by_one(
                nodes["default"].port, produce_frame("live", lone, acks=ALL), count
            )
            return _figures("alone", took)

        def beside(name: str) -> Figures:
            node = nodes[name]
            _dirty(node.port, batches, size)
            cleaning = threading.Thread(target=node.clean)
            cleaning.start()
            took: list[float] = []
            frame = produce_frame("live", lone, acks=ALL)
            while cleaning.is_alive():
                took += send_one_by_one(node.port, frame, 20)
            cleaning.join()
            return _figures(name, took)

        beside("default")  # The first run compiles, or loads what was compiled before.
        beside("unlimited")
        yield alone, lambda: beside("default"), lambda: beside("unlimited")


def _figures(name: str, took: list[float]) -> Figures:
    return {f"{name} p50": quantile(took, 0.5) * 1e6, f"{name} p99": quantile(took, 0.99) * 1e6}


def _make_topics(port: int) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 * MIB),
        "min.cleanable.dirty.ratio": "0",
    }
    configs = tuple(CreateTopicsRequestConfig(name=k, value=v) for k, v in compacted.items())
    wanted = (
        CreateTopicsRequestTopic(name="live", num_partitions=1, replication_factor=1),
        CreateTopicsRequestTopic(
            name="state", num_partitions=1, replication_factor=1, configs=configs
        ),
    )
    call(port, CreateTopicsRequest(topics=wanted, timeout_ms=30_000), 5)


def _dirty(port: int, batches: list[bytes], size: int) -> None:
    """Produce `size` bytes that are worth compacting."""
    sent, in_flight = 0, 0
    with connect(port) as connection:
        while sent < size:
            for batch in batches:
                connection.sendall(produce_frame("state", batch, acks=ALL))
                sent += len(batch)
                in_flight += 1
                if in_flight > 64:
                    receive_frame(connection)
                    in_flight -= 1
        for _ in range(in_flight):
            receive_frame(connection)


def _row(name: str, figure: str, *, has_goal: bool) -> Row:
    return Row(
        name=f"produce acks=all while a topic is compacted, {name}",
        unit="µs",
        ours=figure,
        limit=f"alone {figure.rpartition(' ')[2]}",
        limit_name="without compaction",
        goal=ratio_at_most(2) if has_goal else None,
    )


BESIDE = Experiment(
    title="produce beside compaction",
    note=(
        "A lone producer, one record of 100 bytes at a time with acks=all to a topic of class"
        " `fsync`, while another topic of the same node is compacted: at the rate that a node keeps"
        " to by default, and without any limit."
    ),
    rows=(
        _row("p99", "default p99", has_goal=True),
        _row("p50", "default p50", has_goal=False),
        _row("no limit of its rate, p99", "unlimited p99", has_goal=False),
        _row("no limit of its rate, p50", "unlimited p50", has_goal=False),
    ),
    arms=_arms,
    repetitions_quick=3,
    repetitions_full=5,
)

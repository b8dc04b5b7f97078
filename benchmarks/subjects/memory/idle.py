"""Memory of an idle node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.http.load import ask, connect, post
from subjects.kafka.client import answer_size, fetch_all, make_topic, produce_frame
from subjects.kafka.processes import ServerProcess, node_command
from subjects.log.common import KIB, MB, MIB, make_batch
from subjects.memory.processes import NodeProcess, running_node
from subjects.start.processes import IMPORTS, PYTHON, started

BATCH_SIZE = 16 * KIB


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    numbers = itertools.count()
    batches = scale.pick(smoke=4, quick=400, full=2_000)

    def bare() -> Figures:
        with ExitStack() as stack:
            python, imports = (stack.enter_context(started(one)) for one in (PYTHON, IMPORTS))
            return {
                "python": python.resident_bytes / MB,
                "imports": imports.resident_bytes / MB,
            }

    def idle() -> Figures:
        with started(node_command(folder / str(next(numbers)))) as start:
            return {"idle": start.resident_bytes / MB}

    def used() -> Figures:
        with running_node(folder / str(next(numbers))) as node:
            _use(node, batches)
            return {"used": ServerProcess(node.pid, 0).resident_bytes() / MB}

    yield bare, idle, used


def _use(node: NodeProcess, batches: int) -> None:
    """Produce, consume and append by HTTP, so that all that is loaded late is there."""
    batch = make_batch(BATCH_SIZE)
    topic = make_topic(node.kafka)
    frame = produce_frame(topic, batch, acks=-1)
    for _ in range(batches):
        answer_size(node.kafka, frame)
    records = batches * (int.from_bytes(batch[23:27]) + 1)
    fetch_all(node.kafka, topic, records=records, size_max=MIB)
    with connect(node.http) as connection:
        for _ in range(batches):
            ask(connection, post("/v1/topics/used/records", b'{"records":[{"value":1}]}'))


IDLE = Experiment(
    title="idle node",
    note=(
        "Resident memory of `millstream serve` with an empty directory once it is ready; and of one"
        " that took some thousand records through both servers and gave them out again, when all"
        " connections are gone. The limits are Python that imports nothing, and Python with all"
        " modules of a node."
    ),
    rows=(
        Row(
            name="idle node",
            unit="MB",
            ours="idle",
            limit="imports",
            limit_name="Python, same imports",
            goal=at_most(120),
        ),
        Row(
            name="idle node, after some use",
            unit="MB",
            ours="used",
            limit="imports",
            limit_name="Python, same imports",
            goal=at_most(120),
        ),
        Row(
            name="Python with the modules of a node",
            unit="MB",
            ours="imports",
            limit="python",
            limit_name="Python, no imports",
        ),
    ),
    arms=_arms,
    repetitions_full=5,
)

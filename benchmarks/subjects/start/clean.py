"""Start of a node with new data, or data that was closed cleanly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Row, Scale, at_most

from subjects.kafka.processes import node_command
from subjects.start.data import make_partitions, make_segments
from subjects.start.processes import IMPORTS, PYTHON, time_start

GOAL = at_most(1)


@contextmanager
def _empty_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:  # noqa: ARG001
    numbers = itertools.count()
    yield (
        lambda: time_start(PYTHON, "python"),
        lambda: time_start(IMPORTS, "imports"),
        lambda: time_start(node_command(folder / str(next(numbers))), "empty"),
    )


EMPTY = Experiment(
    title="start, empty directory",
    note=(
        "`millstream serve` in a directory that does not exist yet, from before its process is made"
        " to `ready` on its standard output. The limits are Python that imports nothing, and Python"
        " that imports all modules of a node, each until it has printed a line. Files of Python are"
        " compiled and in the page cache."
    ),
    rows=(
        Row(
            name="start, empty directory",
            unit="s",
            ours="empty",
            limit="imports",
            limit_name="Python, same imports",
            goal=GOAL,
        ),
        Row(
            name="start, empty directory, CPU",
            unit="s",
            ours="empty CPU",
            limit="imports CPU",
            limit_name="Python, same imports",
        ),
        Row(
            name="importing the modules of a node",
            unit="s",
            ours="imports",
            limit="python",
            limit_name="Python, no imports",
        ),
    ),
    arms=_empty_arms,
    repetitions_quick=5,
    repetitions_full=9,
)


@contextmanager
def _clean_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    some = scale.pick(smoke=3, quick=1_000, full=1_000)
    many = scale.pick(smoke=5, quick=10_000, full=10_000)
    kinds = {
        "1 partition": partial(make_partitions, count=1),
        "1,000 partitions": partial(make_partitions, count=some),
        "10,000 partitions": partial(make_partitions, count=many),
        "1,000 segments": partial(make_segments, count=some),
        "10,000 segments": partial(make_segments, count=many),
    }
    arms: list[Arm] = [lambda: time_start(IMPORTS, "imports")]
    for name, make in kinds.items():
        make(folder / name)
        arms.append(partial(time_start, node_command(folder / name), name))
    yield arms


_row = partial(Row, unit="s", limit="imports", limit_name="Python, same imports", goal=GOAL)

CLEAN = Experiment(
    title="start, closed cleanly",
    note=(
        "`millstream serve` on data that a node closed cleanly: one topic with so many partitions"
        " of one record, or one partition with so many segments. Files that are the same in all are"
        " hard links of one; all is in the kernel's caches."
    ),
    rows=(
        _row(name="start, 1 partition", ours="1 partition"),
        _row(name="start, 1,000 partitions", ours="1,000 partitions"),
        _row(name="start, 10,000 partitions", ours="10,000 partitions"),
        _row(name="start, 1,000 segments", ours="1,000 segments"),
        _row(name="start, 10,000 segments", ours="10,000 segments"),
        Row(
            name="start, 10,000 partitions, CPU",
            unit="s",
            ours="10,000 partitions CPU",
            limit="imports CPU",
            limit_name="Python, same imports",
        ),
    ),
    arms=_clean_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=7,
)

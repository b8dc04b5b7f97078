"""The smallest subject: copy it to start another. The tests of the framework run it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least, ratio_at_least


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    data = bytes(scale.pick(smoke=1_000, quick=1_000_000, full=10_000_000))
    (folder / "data").write_bytes(data)

    def copy() -> Figures:
        started = time.perf_counter()
        bytearray(data)
        return {"copy": len(data) / (time.perf_counter() - started) / 1e6}

    def read() -> Figures:
        started = time.perf_counter()
        (folder / "data").read_bytes()
        return {"read": len(data) / (time.perf_counter() - started) / 1e6}

    yield copy, read


EXPERIMENTS = (
    Experiment(
        title="read a file",
        note="A file in the page cache is read whole.",
        rows=(
            Row(
                name="read a file",
                unit="MB/s",
                ours="read",
                limit="copy",
                limit_name="copy in memory",
                goal=ratio_at_least(0.1),
            ),
            Row(name="read a file, at all", unit="MB/s", ours="read", goal=at_least(0)),
        ),
        arms=_arms,
    ),
)

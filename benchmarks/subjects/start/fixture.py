"""The pytest fixture: set-up time of a test with a real broker."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

TIMED = Path(__file__).with_name("timed_fixture.py")

WITH = (
    "import pytest\n@pytest.mark.parametrize('n', range({0}))\ndef test(millstream_broker, n): ..."
)
WITHOUT = "import pytest\n@pytest.mark.parametrize('n', range({0}))\ndef test(tmp_path, n): ..."


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=3, quick=10, full=20)

    def run(name: str, text: str) -> Figures:
        place = (folder / name).resolve()
        place.mkdir(exist_ok=True)
        (place / "pytest.ini").write_text("[pytest]\n")  # No settings of a project around it.
        (place / "test_one.py").write_text(text.format(count))
        times = place / "times.json"
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, str(TIMED), str(times), str(place)],
            check=True,
            capture_output=True,
            cwd=place,
        )
        whole = time.perf_counter() - began
        first, *others = json.loads(times.read_text()) or [0, 0]
        return {
            name: whole,
            f"{name} first": first,
            f"{name} later": statistics.median(others) * 1e3,
        }

    yield lambda: run("without", WITHOUT), lambda: run("with", WITH)


FIXTURE = Experiment(
    title="pytest fixture",
    note=(
        "Tests that ask for `millstream_broker` and do nothing with it. The first in a session also"
        " imports what a node needs; each later one makes a directory, opens a node in it with both"
        " servers and stops it after the test. Figures of single tests are those of setting the"
        " fixture up, as pytest sees it. The limit is the same session with `tmp_path` instead."
    ),
    rows=(
        Row(
            name="pytest fixture, first in a session",
            unit="s",
            ours="with first",
            goal=at_most(1),
        ),
        Row(name="pytest fixture, each later one", unit="ms", ours="with later"),
        Row(
            name="pytest, a session of tests with the fixture",
            unit="s",
            ours="with",
            limit="without",
            limit_name="the same without it",
        ),
    ),
    arms=_arms,
    repetitions_smoke=1,
)

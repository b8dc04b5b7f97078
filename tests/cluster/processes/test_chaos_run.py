"""`millstream chaos run` against a cluster whose leader is killed meanwhile."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

from millstream.testing.cluster import RunningCluster
from tests.cli.commands import started
from tests.cli.nodes import PATIENCE

_PROGRESS = re.compile(rb"^[0-9]+ s: ([0-9]+) sent, ([0-9]+) acknowledged, ([0-9]+) read")


def wait_for_reads(process: subprocess.Popen[bytes], count: int) -> int:
    """Return how many records were read, when these are so many."""
    assert process.stderr is not None
    for line in process.stderr:
        match = _PROGRESS.match(line)
        if match and int(match[3]) >= count:
            return int(match[3])
    raise AssertionError("the run ended")


def test_a_run_survives_the_death_of_a_leader_and_shows_the_pause(
    cluster: RunningCluster, tmp_path: Path
):
    with started(
        "chaos", "run", "--duration", 600, "--progress", 0.2, "--json",
        "--server", ",".join(cluster.urls),
        cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline().decode()
        topic = first.split("topic ")[1].split(",")[0]
        wait_for_reads(process, 50)
        leader = cluster.leader(topic, 0)
        cluster.nodes[leader].kill()
        # One more than can be read without the partition of the dead leader.
        read = wait_for_reads(process, 50)
        wait_for_reads(process, read + 300)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=3 * PATIENCE)
    report = json.loads(output)
    assert process.returncode == 0, (report, errors)
    assert report["acknowledged"] > 300
    assert report["lost"] == report["gone"] == report["doubled"] == report["out_of_order"] == 0
    assert report["write_pause_s"] > 0.5, "its lease had to expire"

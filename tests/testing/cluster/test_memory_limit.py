"""Control groups: a process that allocates more than its limit is killed by the kernel."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.cluster import NodeFaults, memory_limit, running_cluster
from millstream.testing.cluster.faults import LEAK_BYTES, FaultTarget
from millstream.testing.cluster.faults import memory_limit as memory_fault
from millstream.testing.cluster.memory_limit import (
    MemoryGroup,
    MemoryLimitFailed,
    why_no_memory_limit,
)
from tests.cli.nodes import wait_until

ALLOCATE = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(int(line)))
    print("allocated", flush=True)
"""
MIB = 1024 * 1024


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    if (reason := why_no_memory_limit()) is not None:
        pytest.skip(reason)
    made = MemoryGroup("test")
    yield made
    made.remove()
    assert not made.path.exists()


def allocate(process: subprocess.Popen[str], size: int) -> str:
    """Return the answer of the process; nothing if it was killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{size}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_the_kernel_kills_a_process_that_exceeds_its_limit(group: MemoryGroup):
    with subprocess.Popen(
        [sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        group.add(process.pid)
        assert allocate(process, 20 * MIB) == "allocated"
        assert group.allocated() > 20 * MIB
        assert group.limit(group.allocated() + 10 * MIB)
        assert allocate(process, 2 * MIB) == "allocated", "it is below its limit"
        group.lift()
        assert allocate(process, 20 * MIB) == "allocated", "it has none any more"
        assert group.limit(group.allocated() + 2 * MIB)
        assert group.kills() == 0
        assert allocate(process, 20 * MIB) == ""
        assert process.wait() == -signal.SIGKILL
    assert group.kills() == 1


def test_a_node_that_leaks_is_killed_by_the_kernel_and_runs_again_after_healing(
    tmp_path: Path, group: MemoryGroup
):
    with running_cluster(tmp_path, nodes=1, has_faults=True, has_memory_limits=True) as cluster:
        node = cluster.nodes[1]
        assert node.memory is not None
        memory_fault(cluster, FaultTarget(node=1, other=1, member=0, sign=-1))
        wait_until(lambda: not node.is_running)
        assert node.memory.kills() == 1
        cluster.heal()
        assert node.is_running
        node.disturb(NodeFaults(leak_bytes=LEAK_BYTES))
        assert node.memory.allocated() > LEAK_BYTES
        assert node.is_running, "its limit was lifted"
        cluster.wait_until_in_sync()


def test_a_node_without_a_group_is_killed_instead(tmp_path: Path):
    with running_cluster(tmp_path, nodes=1) as cluster:
        cluster.nodes[1].starve(1)
        assert not cluster.nodes[1].is_running
        cluster.heal()
        assert cluster.nodes[1].is_running


def test_without_control_groups_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    groups = tmp_path / "cgroup"
    monkeypatch.setattr(memory_limit, "_CGROUPS", groups)
    assert "there are no control groups" in str(why_no_memory_limit())
    groups.write_text("1:cpu:/\n")
    assert "names no group that controls memory" in str(why_no_memory_limit())
    groups.write_text("4:cpu,memory:/below\n")
    monkeypatch.setattr(memory_limit, "_VERSION_1", tmp_path)
    with pytest.raises(MemoryLimitFailed, match="no group can be made below"):
        MemoryGroup("test")
    (tmp_path / "below").mkdir()
    with pytest.raises(MemoryLimitFailed, match="does not control memory"):
        MemoryGroup("test")
    assert list((tmp_path / "below").iterdir()) == []
    (tmp_path / "cgroup.controllers").write_text("memory")
    groups.write_text("0::/below\n")
    monkeypatch.setattr(memory_limit, "_VERSION_2", tmp_path)
    with pytest.raises(MemoryLimitFailed, match="does not control memory"):
        MemoryGroup("test")
    assert (tmp_path / "below" / "cgroup.subtree_control").read_text() == "+memory"

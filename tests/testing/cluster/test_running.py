"""The harness for clusters of processes: it says what went wrong, and how replicas differ."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.testing.cluster import NodeFailed, running_cluster
from millstream.testing.replica_files import compare_replicas


def replica(folder: Path, segments: Mapping[str, bytes]) -> Path:
    """Write segments of partition 0 of the topic `t` into a data directory."""
    partition = folder / "topics" / "t" / "0"
    partition.mkdir(parents=True)
    for name, content in segments.items():
        (partition / name).write_bytes(content)
    return folder


def test_equal_segments_are_no_difference_and_other_files_do_not_count(tmp_path: Path):
    first = replica(tmp_path / "1", {"0.log": b"abc", "3.log": b"", "0.index": b"x"})
    second = replica(tmp_path / "2", {"0.log": b"abc", "0.index": b"y"})
    assert compare_replicas([first, second], "t", 0) == []


@pytest.mark.parametrize("other", [{}, {"0.log": b"abd"}, {"0.log": b"abc", "3.log": b"d"}])
def test_a_missing_changed_or_further_segment_is_a_difference(
    tmp_path: Path, other: dict[str, bytes]
):
    first = replica(tmp_path / "1", {"0.log": b"abc"})
    second = replica(tmp_path / "2", other)
    [difference] = compare_replicas([first, second], "t", 0)
    assert difference.startswith("t-0: ")
    assert difference.endswith(" in 2")


def test_a_replica_that_is_not_there_is_a_difference(tmp_path: Path):
    first = replica(tmp_path / "1", {"0.log": b"abc"})
    [difference] = compare_replicas([first, tmp_path / "2"], "t", 0)
    assert "there is no" in difference


def test_a_node_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path):
    with running_cluster(tmp_path, nodes=1) as cluster:
        node = cluster.nodes[1]
        cluster.wait_until_in_sync()
        os.kill(node.pid, signal.SIGTERM)  # As if it stopped by itself.
        os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(NodeFailed, match="node 1 had ended by itself"):
            node.kill()
        node.settings["cluster.rack"] = ""
        with pytest.raises(NodeFailed, match="rack"):
            node.start()
        del node.settings["cluster.rack"]
        node.start()
        cluster.wait_until_in_sync()
        node.stop()

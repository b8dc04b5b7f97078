"""`millstream cluster adopt`: what it refuses. What it does is in `tests/cluster`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.testing.etcd import running_etcd
from tests.cli.commands import free_port, is_one_line, run
from tests.cluster.adoption import lone_node


def test_without_etcd_there_is_nothing_to_become_part_of(tmp_path: Path) -> None:
    result = run("cluster", "adopt", "--data", lone_node.unpack(tmp_path))
    assert result.exit_code == 2
    assert "--etcd is needed" in result.stderr


def test_an_etcd_that_cannot_be_reached_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    data = lone_node.unpack(tmp_path)
    before = sorted(os.listdir(data))
    url = f"http://127.0.0.1:{free_port()}"
    result = run("cluster", "adopt", "--data", data, "--etcd", url, "--node-id", 1)
    assert result.exit_code == 1
    assert is_one_line(result.stderr)
    assert "etcd cannot be reached" in result.stderr
    assert sorted(os.listdir(data)) == before


def test_a_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    data = tmp_path / "nothing"
    result = run("cluster", "adopt", "--data", data, "--etcd", "http://127.0.0.1:1", "--node-id", 1)
    assert result.exit_code == 1
    assert "is not a data directory" in result.stderr
    assert not data.exists()


def test_a_directory_is_adopted_once_into_a_real_etcd(tmp_path: Path) -> None:
    data = lone_node.unpack(tmp_path)
    with running_etcd(tmp_path) as etcd:
        command = ["cluster", "adopt", "--data", data, "--etcd", ",".join(etcd.endpoints)]
        dry = run(*command, "--node-id", 3, "--dry-run")
        assert dry.stdout.startswith("Would adopt as node 3 of cluster millstream: 3 topics")
        done = run(*command, "--node-id", 3)
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("Adopted as node 3 of cluster millstream: 3 topics")
        assert run("verify", "--data", data).exit_code == 0
        again = run(*command, "--node-id", 3)
        assert (again.exit_code, again.stdout) == (0, f"{data} has been adopted.\n")
        dry = run(*command, "--node-id", 3, "--dry-run")
        assert dry.exit_code == 1
        assert "run the command without --dry-run to finish it" in dry.stderr
        other = run(*command, "--node-id", 4)
        assert other.exit_code == 1
        assert "belongs to node 3, and this node has id 4" in other.stderr
        second = lone_node.unpack(tmp_path / "second")
        command[3] = second
        refused = run(*command, "--node-id", 4)
        assert refused.exit_code == 1
        assert "is a copy of it from before" in refused.stderr


def test_after_an_attempt_with_one_etcd_another_may_be_chosen(tmp_path: Path) -> None:
    data = lone_node.unpack(tmp_path)
    command = ["cluster", "adopt", "--data", data, "--node-id", 1, "--etcd"]
    checkpoint = data / "etcd-checkpoint"
    with running_etcd(tmp_path / "first") as etcd:
        asyncio.run(raise_revision(etcd.endpoints))
        assert run(*command, etcd.endpoints[0], "--dry-run").exit_code == 0
        assert checkpoint.exists()
    with running_etcd(tmp_path / "second") as etcd:
        done = run(*command, etcd.endpoints[0])
        assert done.exit_code == 0, done.output


async def raise_revision(endpoints: Sequence[str]) -> None:
    metadata = await EtcdMetadata.open(endpoints, "another")
    for number in range(50):
        await metadata.transact(puts={"key": str(number).encode()})
    await metadata.close()

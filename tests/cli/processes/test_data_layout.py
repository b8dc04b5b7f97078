"""Data directories that several processes may use, and those that they must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.processes.data_layout import (
    check_layout,
    mark_directory,
    marked_nodes,
    stored_nodes,
)
from millstream.errors import InvalidConfig
from millstream.storage.disk.filesystem import OsFilesystem


def made(directory: Path, *files: str) -> str:
    for name in files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return str(directory)


@pytest.mark.parametrize("has_own_etcd", [True, False])
def test_a_new_or_empty_directory_is_fine(tmp_path: Path, has_own_etcd: bool):
    check_layout(str(tmp_path / "new"), has_own_etcd=has_own_etcd)
    check_layout(str(tmp_path), has_own_etcd=has_own_etcd)


def test_the_directory_of_a_lone_node_is_refused_with_how_to_adopt_it(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"without a cluster.*millstream cluster adopt"):
        check_layout(made(tmp_path, "node.json", "meta.db"), has_own_etcd=True)


def test_the_directory_of_one_node_of_a_cluster_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="belongs to one node of a cluster"):
        check_layout(made(tmp_path, "node.json", "cluster.json"), has_own_etcd=True)


def test_nodes_without_their_metadata_do_not_begin_with_an_empty_etcd(tmp_path: Path):
    data = made(tmp_path, "node-1/cluster.json")
    with pytest.raises(InvalidConfig, match="etcd with their metadata is missing: restore it"):
        check_layout(data, has_own_etcd=True)
    check_layout(data, has_own_etcd=False)
    made(tmp_path, "etcd/member/snap")
    check_layout(data, has_own_etcd=True)
    with pytest.raises(InvalidConfig, match=r"start without cluster\.etcd"):
        check_layout(data, has_own_etcd=False)


def test_nodes_are_found_by_their_directories(tmp_path: Path):
    files = ("node-1/cluster.json", "node-12/cluster.json", "node-3/other", "node-4.toml", "x/y")
    assert stored_nodes(made(tmp_path, *files)) == [1, 12]
    assert stored_nodes(str(tmp_path / "none")) == []


def test_the_mark_names_the_nodes_of_the_last_start(tmp_path: Path):
    filesystem = OsFilesystem()
    assert marked_nodes(filesystem, str(tmp_path)) == []
    mark_directory(filesystem, str(tmp_path), [1, 2])
    mark_directory(filesystem, str(tmp_path), [1, 2, 3])
    assert marked_nodes(filesystem, str(tmp_path)) == [1, 2, 3]

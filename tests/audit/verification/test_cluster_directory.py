"""Verification of the directory of a node in a cluster, whose metadata is in etcd."""

from __future__ import annotations

from pathlib import Path

from millstream.audit.verification.metadata_check import verify_metadata
from millstream.storage.disk.filesystem import OsFilesystem
from tests.cluster.local_cluster import local_cluster, submit
from tests.in_loop import in_loop


@in_loop
async def test_logs_of_a_cluster_are_not_looked_up_in_a_metadata_file(tmp_path: Path):
    async with local_cluster(tmp_path, count=1) as cluster:
        await cluster.create("t")
        await submit(cluster.partition(1, "t"), "a")
    data = str(tmp_path / "1")
    assert list(verify_metadata(OsFilesystem(), data)) == []


@in_loop
async def test_a_damaged_cluster_file_is_found(tmp_path: Path):
    async with local_cluster(tmp_path, count=1):
        pass
    path = tmp_path / "1" / "cluster.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"node_id":1', b'"node_id":2'))
    (finding,) = verify_metadata(OsFilesystem(), str(tmp_path / "1"))
    assert finding.path == str(path)

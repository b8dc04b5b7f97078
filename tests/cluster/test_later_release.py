"""What a later release has written to a data directory is refused, and nothing is changed."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from crc32c import crc32c

from millstream.broker.problems import ProblemCode
from millstream.errors import UnknownFormat
from millstream.metadata.metadata_checkpoint import RECORD_SIZE, RevisionRecord, encode_record
from millstream.node import Node
from millstream.storage.files.document import encode_document
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until, values_of
from tests.cluster.replication.damage import copy_directory
from tests.in_loop import in_loop

LATER = 99
VALUES = ["a", "b", "c"]
LOG = "topics/t/0"


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def raise_document(path: Path) -> None:
    """Give a JSON document a later version; everything else of it stays."""
    document = json.loads(path.read_bytes())
    path.write_bytes(encode_document(document["format"], LATER, document["content"]))


def raise_slots(path: Path, size: int) -> None:
    """Give each slot of a file with two slots a later version, with its checksum."""
    data = bytearray(path.read_bytes())
    for start in range(0, len(data), size):
        end = start + size - 4
        struct.pack_into("<H", data, start + 4, LATER)
        struct.pack_into("<I", data, end, crc32c(bytes(data[start:end])))
    path.write_bytes(data)


def raise_checkpoint(path: Path) -> None:
    raise_slots(path, 32)


def raise_watermark(path: Path) -> None:
    raise_slots(path, 20)


def raise_seal(path: Path) -> None:
    raise_slots(path, path.stat().st_size)


def raise_snapshot(path: Path) -> None:
    """A snapshot of producers is big-endian, with the version after eight bytes of magic."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">H", data, 8, LATER)
    struct.pack_into(">I", data, len(data) - 4, crc32c(bytes(data[:-4])))
    path.write_bytes(data)


def write_etcd_checkpoint(path: Path) -> None:
    """A node with metadata in memory has none; this is what one with etcd has, but later."""
    record = bytearray(encode_record(RevisionRecord(1, 5, None)))
    struct.pack_into("<H", record, 4, LATER)
    struct.pack_into("<I", record, RECORD_SIZE - 4, crc32c(bytes(record[:-4])))
    path.write_bytes(record)


class Later(NamedTuple):
    """A file of a later release."""

    name: str
    change: Callable[[Path], None]
    message: str
    """What the error says, as a pattern: the file, what was found and what is allowed."""
    is_killed: bool = False
    """Whether it is a file of a directory whose node was killed, and not stopped."""


OF_THE_NODE = [
    Later("node.json", raise_document, "expected millstream-store version 1, got .* version 99"),
    Later("clock.json", raise_document, "expected millstream-clock version 1, got .* version 99"),
    Later(
        "cluster.json", raise_document, "expected millstream-cluster version 1, got .* version 99"
    ),
    Later(
        "high-watermarks.json",
        raise_document,
        "expected millstream-high-watermarks version 1-2, got .* version 99",
    ),
    Later("etcd-checkpoint", write_etcd_checkpoint, "expected .* version 1, got .* version 99"),
    Later("__state/node.json", raise_document, "expected millstream-store version 1, got .* 99"),
    Later("__state/clock.json", raise_document, "expected millstream-clock version 1, got .* 99"),
]
OF_A_LOG = [
    Later(
        f"{LOG}/partition.json",
        raise_document,
        "expected millstream-partition version 1-6, got .* version 99",
    ),
    Later(f"{LOG}/00000000000000000000.seal", raise_seal, "seal has version 99, expected 1"),
    Later(f"{LOG}/checkpoint", raise_checkpoint, "checkpoint has version 99, expected 2", True),
]
OF_A_REPLICA = [
    Later(f"{LOG}/watermark", raise_watermark, "watermark has version 99, expected 1"),
    Later(f"{LOG}/producers.snapshot", raise_snapshot, "snapshot has version 99, expected 1 or 2"),
]


async def prepare(cluster: LocalCluster, later: Later) -> tuple[int, Path]:
    """Fill a topic, stop its follower, and change a file of it; return node and directory."""
    await cluster.create("t")
    leader = cluster.leader_of("t")
    assert leader is not None
    for value in VALUES:
        await submit(cluster.partition(leader, "t"), value)
    follower = 3 - leader
    await until(lambda: values_of(cluster.partition(follower, "t")) == VALUES)
    directory = cluster.directory / str(follower)
    killed = cluster.directory / "killed"
    copy_directory(directory / LOG, killed)
    await cluster.stop_node(follower)
    if later.is_killed:
        copy_directory(killed, directory / LOG)
    later.change(directory / later.name)
    return follower, directory


async def refused(cluster: LocalCluster, node_id: int) -> str:
    """Start a node, and return why it does not start."""
    with pytest.raises(UnknownFormat) as error:
        await cluster.start_node(node_id)
    del cluster.nodes[node_id]
    return str(error.value)


@pytest.mark.parametrize("later", OF_THE_NODE, ids=lambda later: later.name)
def test_a_directory_of_a_later_release_is_not_changed_at_all(tmp_path: Path, later: Later) -> None:
    @in_loop
    async def run() -> None:
        async with local_cluster(tmp_path, 2) as cluster:
            node_id, directory = await prepare(cluster, later)
            before = contents(directory)
            message = await refused(cluster, node_id)
            assert message.startswith(f"{directory / later.name}: ")
            assert re.search(later.message, message)
            assert contents(directory) == before

    run()


@pytest.mark.parametrize("later", OF_A_LOG, ids=lambda later: later.name)
def test_a_node_with_a_log_of_a_later_release_does_not_start_and_keeps_the_log(
    tmp_path: Path, later: Later
) -> None:
    """It would be taken for a damaged one otherwise, removed, and copied from another node."""

    @in_loop
    async def run() -> None:
        async with local_cluster(tmp_path, 2) as cluster:
            node_id, directory = await prepare(cluster, later)
            before = contents(directory / LOG)
            message = await refused(cluster, node_id)
            assert message.startswith(f"{directory / later.name}: ")
            assert re.search(later.message, message)
            assert contents(directory / LOG) == before

    run()


@pytest.mark.parametrize("later", OF_A_REPLICA, ids=lambda later: later.name)
def test_a_replica_of_a_later_release_is_stopped_and_kept(tmp_path: Path, later: Later) -> None:
    @in_loop
    async def run() -> None:
        async with local_cluster(tmp_path, 2) as cluster:
            node_id, directory = await prepare(cluster, later)
            before = contents(directory / LOG)
            node = await cluster.start_node(node_id)
            await until(lambda: any(re.search(later.message, text) for text in stopped(node)))
            replicas = cluster.member(node_id).replicas
            (key,) = (key for key, one in replicas.replicas.items() if one.topic.name == "t")
            # A replica that cannot be opened is removed, and copied again. Not this one.
            with pytest.raises(UnknownFormat, match=later.message):
                await replicas.run_exclusive(key, lambda replica: replica.recover_end(None))
            after = contents(directory / LOG)
            if later.name != f"{LOG}/watermark":  # It is of this release, and may have gone on.
                after["watermark"] = before["watermark"]
            assert after == before
            leader = cluster.partition(3 - node_id, "t")
            assert values_of(leader) == VALUES

    run()


def stopped(node: Node) -> list[str]:
    problems = node.health().problems
    return [one.message for one in problems if one.code is ProblemCode.REPLICA_STOPPED]

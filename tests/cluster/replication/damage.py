"""Damage of the files of a node in a test, and what its readers see afterwards."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from millstream.broker.partition.partition import Partition
from tests.cluster.local_cluster import LocalCluster, submit, until, values_of

SMALL_SEGMENTS = {"segment.bytes": "4096"}
"""Topic settings with which a few hundred records fill several segments."""

VALUE = "x" * 300


def value(number: int) -> str:
    return f"{number}-{VALUE}"


def expected(count: int, first: int = 0) -> list[str]:
    return [value(number) for number in range(first, first + count)]


async def fill(cluster: LocalCluster, topic: str, count: int, first: int = 0) -> None:
    """Append numbered records, each in a batch of its own, and wait for all of them."""
    leader = cluster.leader_of(topic)
    assert leader is not None
    partition = cluster.partition(leader, topic)
    await asyncio.gather(*(submit(partition, value(n)) for n in range(first, first + count)))


def directory_of(cluster: LocalCluster, node_id: int, topic: str) -> Path:
    return cluster.directory / str(node_id) / "topics" / topic / "0"


def segment_files(directory: Path) -> list[Path]:
    """Return the files with records, oldest first."""
    return sorted(path for path in directory.iterdir() if path.suffix == ".log")


def flip_bit(path: Path, position: int) -> None:
    """Change a byte in place: the file may be mapped by a node that runs."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def copy_directory(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def seen(cluster: LocalCluster, node_id: int, topic: str) -> list[str] | None:
    """Return what a reader of one node sees; None if the node refuses to be read."""
    partition = cluster.partition(node_id, topic)
    try:
        assert partition.replica is not None
        partition.replica.check_present()
        return values_of(partition)
    except Exception:  # noqa: BLE001 - it may be refused for several reasons.
        return None


async def until_equal(cluster: LocalCluster, topic: str, values: list[str]) -> None:
    """Wait until readers of all nodes see these values, and all nodes are in sync."""
    await until(lambda: all(seen(cluster, node, topic) == values for node in cluster.nodes))
    await until(lambda: is_in_sync(cluster, topic))


def is_in_sync(cluster: LocalCluster, topic: str) -> bool:
    node_id = next(iter(cluster.nodes))
    topic_id = cluster.nodes[node_id].broker.topics.get(topic).id
    states = cluster.member(node_id).state.partitions
    state = next(state for key, state in states.items() if key.topic_id == topic_id)
    return all(state.is_counted(node) for node in state.replicas)


def follower_of(cluster: LocalCluster, topic: str) -> int:
    leader = cluster.leader_of(topic)
    return next(node_id for node_id in cluster.nodes if node_id != leader)


def files_are_equal(cluster: LocalCluster, topic: str) -> bool:
    """Return whether all replicas have the same bytes in the same files."""
    found = [
        {path.name: path.read_bytes() for path in segment_files(directory)}
        for directory in (directory_of(cluster, node, topic) for node in cluster.nodes)
    ]
    return all(files == found[0] for files in found)


def damage_of(partition: Partition) -> list[str]:
    return [str(damage) for damage in partition.log.damage]

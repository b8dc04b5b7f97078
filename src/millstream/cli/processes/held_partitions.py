"""Partitions that nodes hold which are not to be started any more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection

from millstream.broker.topics.topic import TOPICS_PREFIX, decode_row
from millstream.cluster.control.cluster_state import PARTITIONS_PREFIX, parse_partition_key
from millstream.cluster.replication_state import decode_state
from millstream.config.schema import ClusterConfig
from millstream.errors import InvalidConfig
from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.metadata.interface import Metadata

NAMED_MAX = 5
"""Partitions that an error names."""


def check_left_out(config: ClusterConfig, data: str, left_out: Collection[int], count: int) -> None:
    """Raise `InvalidConfig` if nodes that are not to be started hold partitions.

    `left_out` are nodes with a directory below `data`, and `count` are the processes that are
    wanted.
    """
    for node_id, partitions in asyncio.run(_held(config, data, left_out)).items():
        if not partitions:
            continue
        named = ", ".join(partitions[:NAMED_MAX])
        more = f" and {len(partitions) - NAMED_MAX} more" * (len(partitions) > NAMED_MAX)
        raise InvalidConfig(
            f"node {node_id} holds {len(partitions)} partitions ({named}{more}) and would not run"
            f" with --processes {count}; start with {count + len(left_out)}, move them with"
            f" `millstream cluster remove {node_id}`, stop, and start with {count}"
        )


async def _held(
    config: ClusterConfig, data: str, node_ids: Collection[int]
) -> dict[int, list[str]]:
    first = min(node_ids)
    metadata = await EtcdMetadata.open_configured(config, os.path.join(data, f"node-{first}"))
    try:
        return await held_partitions(metadata, node_ids)
    finally:
        await metadata.close()


async def held_partitions(metadata: Metadata, node_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the partitions of which nodes have replicas, by node; internal ones last."""
    names = {}
    for entry in await metadata.list(TOPICS_PREFIX):
        name, row = decode_row(entry.key, entry.value)
        names[row.id] = (row.is_internal, name)
    held: dict[int, list[tuple[bool, str, int]]] = {node_id: [] for node_id in sorted(node_ids)}
    for entry in await metadata.list(PARTITIONS_PREFIX):
        partition = parse_partition_key(entry.key)
        state = decode_state(entry.value, entry.revision)
        for node_id in held.keys() & set(state.replicas):
            topic = names.get(partition.topic_id)
            if topic is not None:  # Otherwise the topic was deleted.
                held[node_id].append((*topic, partition.partition))
    return {
        node_id: [f"{name}/{index}" for _, name, index in sorted(partitions)]
        for node_id, partitions in held.items()
    }

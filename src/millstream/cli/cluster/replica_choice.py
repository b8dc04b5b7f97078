"""Choice of nodes for a number of replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click


def choose_replicas(
    partitions: Sequence[Any], count: int, nodes: Sequence[Any], everything: Sequence[Any]
) -> list[list[int]]:
    """Return `count` nodes for each of `partitions`; the first is the preferred leader.

    Replicas stay where they are as far as possible. New ones go to the nodes with the fewest, in
    racks that the partition is not in yet. The preferred leaders are spread over the replicas.
    `nodes` and `everything`, all partitions of the cluster, are as the HTTP API describes them.
    """
    racks = {
        node["node_id"]: node["rack"] or ""
        for node in nodes
        if node["is_alive"] and not node["is_stopping"] and not node["is_removed"]
    }
    if count > len(racks):
        raise click.ClickException(
            f"replicas must be at most {len(racks)}, the number of nodes, got {count}"
        )
    chosen = {(item["topic"], item["partition"]) for item in partitions}
    loads: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for item in everything:
        loads.update(_staying(item))
        if (item["topic"], item["partition"]) not in chosen:
            leaders.update(_staying(item)[:1])
    targets = []
    for item in partitions:
        # Live replicas first: the others are replaced before they are missed.
        kept = sorted(_staying(item), key=lambda node: node not in racks)[:count]
        target = [node for node in kept if node in racks]
        while len(target) < count:
            used = {racks[node] for node in target}
            added = min(
                (node for node in racks if node not in target),
                key=lambda node: (racks[node] in used, loads[node], node),
            )
            target.append(added)
            loads[added] += 1
        first = min(target, key=lambda node: (leaders[node], target.index(node)))
        leaders[first] += 1
        targets.append([first, *(node for node in target if node != first)])
    return targets


def _staying(partition: Any) -> list[int]:
    return [node for node in partition["replicas"] if node not in partition["removing"]]

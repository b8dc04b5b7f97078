"""Nodes that are being removed from the cluster: `removed/<id>` in the metadata store.

Such a node gets no new replicas and leaderships. The key is deleted when the node is gone and has
no replicas left, or when an operator keeps the node.
"""

from __future__ import annotations

REMOVED_PREFIX = "removed/"


def removed_key(node_id: int) -> str:
    """Return the key that says that a node is being removed."""
    return f"{REMOVED_PREFIX}{node_id}"


def removed_node(key: str) -> int:
    """Return the node of such a key."""
    return int(key.removeprefix(REMOVED_PREFIX))

"""What a data directory remembers of its cluster: `cluster.json`.

    cluster          id of the cluster
    node_id          id of the node, kept for life
    tokens           of the node's last lives, oldest first

A directory belongs to one node of one cluster. If it is lost or replaced by an older copy, the
token of the last life is missing, and the node counts for nothing until it has caught up
(`cluster/life.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.errors import InvalidConfig
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document

CLUSTER_FILE = "cluster.json"
_KIND = "millstream-cluster"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The content of `cluster.json`."""

    cluster: str
    node_id: int
    tokens: tuple[str, ...] = ()


def read_identity(filesystem: Filesystem, directory: str) -> NodeIdentity | None:
    """Return what a directory remembers; `None` if it does not belong to a cluster."""
    try:
        content = read_document(filesystem, join(directory, CLUSTER_FILE), _KIND, _VERSION)
    except FileNotFoundError:
        return None
    return NodeIdentity(
        str(content["cluster"]),
        int(content["node_id"]),
        tuple(str(token) for token in content["tokens"]),
    )


class IdentityFile:
    """`cluster.json` of one data directory."""

    def __init__(self, filesystem: Filesystem, directory: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._identity: NodeIdentity | None = None

    def open(self, cluster: str, node_id: int) -> NodeIdentity:
        """Return the identity; raise `InvalidConfig` if the directory belongs to another node."""
        stored = read_identity(self._filesystem, self._directory)
        if stored is None:
            self._identity = NodeIdentity(cluster, node_id)
            return self._identity
        if stored.cluster != cluster:
            raise InvalidConfig(
                f"{self._directory} belongs to cluster {stored.cluster!r}, and this node is"
                f" configured for {cluster!r}; use another data directory or cluster.name"
            )
        if stored.node_id != node_id:
            raise InvalidConfig(
                f"{self._directory} belongs to node {stored.node_id}, and this node has id"
                f" {node_id}; use another data directory or node.id"
            )
        self._identity = stored
        return stored

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the node's last lives, oldest first."""
        assert self._identity is not None, "the file was opened"
        return self._identity.tokens

    def store_tokens(self, tokens: tuple[str, ...]) -> None:
        """Store the tokens, durably."""
        assert self._identity is not None, "the file was opened"
        self._identity = replace(self._identity, tokens=tokens)
        write_document(
            self._filesystem,
            self._directory,
            CLUSTER_FILE,
            {
                "cluster": self._identity.cluster,
                "node_id": self._identity.node_id,
                "tokens": list(tokens),
            },
            kind=_KIND,
            version=_VERSION,
        )


def is_cluster_directory(filesystem: Filesystem, directory: str) -> bool:
    """Return whether a data directory belongs to a node of a cluster."""
    return CLUSTER_FILE in filesystem.list(directory)

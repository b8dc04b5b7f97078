"""The data directory of several node processes.

DIR/processes.json   marks the directory, and names the nodes
DIR/lock             held by the process that supervises the others
DIR/etcd             data of etcd, unless another etcd is used
DIR/node-1 ...       data directories of the nodes
DIR/node-1.toml ...  their settings, written at each start
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from millstream.cluster.control.node_identity import CLUSTER_FILE
from millstream.errors import InvalidConfig
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.names import NODE_FILE, PROCESSES_FILE

ETCD_DIRECTORY = "etcd"
_MEMBER = "member"
"""Directory that etcd creates in its data directory."""

_KIND = "millstream-processes"
_VERSION = 1

_NODE = re.compile(r"node-([0-9]{1,10})")


def check_layout(data: str, *, has_own_etcd: bool) -> None:
    """Raise `InvalidConfig` if a directory is not one of several node processes, nor empty."""
    names = set(os.listdir(data)) if os.path.isdir(data) else set()
    if CLUSTER_FILE in names:
        raise InvalidConfig(
            f"{data} belongs to one node of a cluster; start it without --processes, or use another"
            " data directory"
        )
    if NODE_FILE in names:
        raise InvalidConfig(
            f"{data} belongs to a node without a cluster; start it without --processes, use another"
            " data directory, or move it to node-1 of a new directory and adopt it with `millstream"
            " cluster adopt` (see docs/operating/processes.md, From one process to several)"
        )
    has_nodes = bool(stored_nodes(data))
    has_etcd = os.path.isdir(os.path.join(data, ETCD_DIRECTORY, _MEMBER))
    if has_own_etcd and has_nodes and not has_etcd:
        raise InvalidConfig(
            f"{data} has nodes, but {ETCD_DIRECTORY} with their metadata is missing: restore it"
            " from a backup of the whole directory, or set cluster.etcd if they used another etcd"
        )
    if not has_own_etcd and has_etcd:
        raise InvalidConfig(
            f"{data} has the metadata of its nodes in {ETCD_DIRECTORY}; start without cluster.etcd"
        )


def stored_nodes(data: str) -> list[int]:
    """Return the ids of the nodes that have taken part in the cluster, from their directories."""
    names = os.listdir(data) if os.path.isdir(data) else []
    matches = (_NODE.fullmatch(name) for name in names)
    return sorted(
        int(match[1])
        for match in matches
        if match and os.path.exists(os.path.join(data, match[0], CLUSTER_FILE))
    )


def marked_nodes(filesystem: Filesystem, data: str) -> list[int]:
    """Return the ids of the nodes of the last start; empty if there was none."""
    try:
        content = read_document(filesystem, os.path.join(data, PROCESSES_FILE), _KIND, _VERSION)
    except FileNotFoundError:
        return []
    return [int(node_id) for node_id in content["node_ids"]]


def mark_directory(filesystem: Filesystem, data: str, node_ids: Sequence[int]) -> None:
    """Mark a directory as one of several node processes: a lone node does not start in it."""
    content = {"node_ids": list(node_ids)}
    write_document(filesystem, data, PROCESSES_FILE, content, kind=_KIND, version=_VERSION)

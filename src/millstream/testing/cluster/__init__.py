"""A real cluster on free ports of this machine, for tests: etcd, and each node a process.

    with running_cluster(tmp_path) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        ...
        cluster.nodes[cluster.leader("orders", 0)].kill()
        ...
        cluster.start()
        cluster.wait_until_in_sync()
        cluster.check_replicas("orders")

Data and logs are below the directory. etcd must be installed, see `millstream.testing.etcd`.

    running.py, nodes.py     the cluster and its nodes
    network.py               which links between nodes, etcd and clients are cut or slow
    proxy.py                 such a network of proxies, for all users
    namespaces.py            such a network of network namespaces, for root
    node_faults.py           disks that fail, are full or slow, and clocks that jump
    memory_limit.py          control groups that limit the memory of nodes
    loads/, reading.py       clients that work while the cluster fails, and what readers see then
    history.py, checker.py   what clients were told, and the rules that it must keep
    faults.py, chaos.py      seeded rounds of faults; `python -m millstream.testing.cluster.chaos`

Loads and chaos need confluent-kafka, so they are not imported here.
"""

from __future__ import annotations

from millstream.testing.cluster.node_faults import NodeFaults
from millstream.testing.cluster.nodes import NodeFailed, RunningNode
from millstream.testing.cluster.proxy import Network
from millstream.testing.cluster.running import ReplicasDiffer, RunningCluster, running_cluster

__all__ = [
    "Network",
    "NodeFailed",
    "NodeFaults",
    "ReplicasDiffer",
    "RunningCluster",
    "RunningNode",
    "running_cluster",
]

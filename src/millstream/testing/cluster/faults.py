"""Faults of a cluster, by name. `RunningCluster.heal` ends them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from millstream.testing.cluster.network import CLIENTS, CUT, LinkRule, etcd_name, node_name
from millstream.testing.cluster.node_faults import NodeFaults, failing_disk, full_disk
from millstream.testing.cluster.running import RunningCluster

NETWORK_DELAY_S = 0.05
NETWORK_LOSS = 0.05
SYNC_DELAY_S = 0.3
CLOCK_STEP_MS = 3_600_000
SPARE_BYTES = 128 * 1024
"""What a starved node can allocate: a few seconds' growth, and hardly any cache."""

LEAK_BYTES = 16 * 1024 * 1024


class FaultTarget(NamedTuple):
    """Where a fault strikes: chosen by the seed, used as far as the fault has a use for it."""

    node: int
    other: int
    """Another node."""
    member: int
    """Index of a member of etcd."""
    sign: int
    """1 or -1: the direction of a cut or of a step."""


ClusterFault: TypeAlias = Callable[[RunningCluster, FaultTarget], None]


# Processes.


def kill_one(cluster: RunningCluster, target: FaultTarget) -> None:
    """Kill a node (`kill -9`)."""
    cluster.nodes[target.node].kill()


def kill_all(cluster: RunningCluster, _target: FaultTarget) -> None:
    """Kill all nodes at once."""
    cluster.kill()


def pause(cluster: RunningCluster, target: FaultTarget) -> None:
    """Stop a node from running (SIGSTOP). It does not know how long it slept when it wakes up."""
    cluster.nodes[target.node].pause()


def restart_all(cluster: RunningCluster, _target: FaultTarget) -> None:
    """Stop and start all nodes cleanly, one after the other."""
    for node in cluster.nodes.values():
        node.stop()
        node.start()
        cluster.wait_until_caught_up()


def memory_limit(cluster: RunningCluster, target: FaultTarget) -> None:
    """Let a node allocate hardly more than it has. If it also leaks, the kernel kills it (OOM)."""
    node = cluster.nodes[target.node]
    node.starve(SPARE_BYTES)
    if target.sign < 0 and node.is_running:
        node.disturb(NodeFaults(leak_bytes=LEAK_BYTES))


# The network.


def isolate(cluster: RunningCluster, target: FaultTarget) -> None:
    """Cut a node off from all: other nodes, etcd and clients."""
    _set_rule(cluster, target.node, _everyone(cluster), CUT)


def cut_peers(cluster: RunningCluster, target: FaultTarget) -> None:
    """Cut two nodes off from each other; both reach all others, etcd and clients."""
    cluster.network.cut(node_name(target.node), node_name(target.other))


def cut_one_way(cluster: RunningCluster, target: FaultTarget) -> None:
    """Let other nodes not hear a node, which hears them; or the other way round."""
    name = node_name(target.node)
    for other in _nodes(cluster):
        source, end = (name, other) if target.sign > 0 else (other, name)
        cluster.network.cut_one_way(source, end)


def cut_etcd(cluster: RunningCluster, target: FaultTarget) -> None:
    """Cut a node off from etcd; clients and other nodes still reach it."""
    _set_rule(cluster, target.node, _members(cluster), CUT)


def cut_clients(cluster: RunningCluster, target: FaultTarget) -> None:
    """Cut clients off from a node, which goes on to lead."""
    cluster.network.cut(CLIENTS, node_name(target.node))


def slow_network(cluster: RunningCluster, target: FaultTarget) -> None:
    """Delay all bytes of a node, and some of them for longer."""
    rule = LinkRule(delay_s=NETWORK_DELAY_S, loss=NETWORK_LOSS)
    _set_rule(cluster, target.node, _everyone(cluster), rule)


# Disks and clocks.


def disk_error(cluster: RunningCluster, target: FaultTarget) -> None:
    """Fail all writes and syncs of a node (EIO)."""
    cluster.nodes[target.node].disturb(failing_disk())


def disk_full(cluster: RunningCluster, target: FaultTarget) -> None:
    """Fail all calls of a node that need space (ENOSPC)."""
    cluster.nodes[target.node].disturb(full_disk())


def disk_slow(cluster: RunningCluster, target: FaultTarget) -> None:
    """Let each sync of a node take 0.3 s longer."""
    cluster.nodes[target.node].disturb(NodeFaults(sync_delay_s=SYNC_DELAY_S))


def clock_step(cluster: RunningCluster, target: FaultTarget) -> None:
    """Let the wall clock of a node jump by an hour; healing lets it jump back."""
    cluster.nodes[target.node].disturb(NodeFaults(wall_step_ms=target.sign * CLOCK_STEP_MS))


def rejoin_empty(cluster: RunningCluster, target: FaultTarget) -> None:
    """Kill a node and remove its data."""
    node = cluster.nodes[target.node]
    node.kill()
    shutil.rmtree(node.data)


def rejoin_old(cluster: RunningCluster, target: FaultTarget) -> None:
    """Kill a node and replace its data by a copy that was made before, while it did not run."""
    node = cluster.nodes[target.node]
    copy = node.data.with_name(f"{node.data.name}.old")
    shutil.rmtree(copy, ignore_errors=True)
    node.stop()
    shutil.copytree(node.data, copy)
    node.start()
    cluster.wait_until_caught_up()
    node.kill()
    shutil.rmtree(node.data)
    copy.rename(node.data)


# etcd.


def etcd_kill(cluster: RunningCluster, target: FaultTarget) -> None:
    """Kill one member of etcd (`kill -9`)."""
    cluster.etcd.members[target.member].kill()


def etcd_pause(cluster: RunningCluster, target: FaultTarget) -> None:
    """Stop one member of etcd from running: its connections stay open, and silent."""
    cluster.etcd.members[target.member].pause()


def etcd_without_quorum(cluster: RunningCluster, target: FaultTarget) -> None:
    """Kill all members of etcd but one, so that no lease can be renewed."""
    for index, member in enumerate(cluster.etcd.members):
        if index != target.member:
            member.kill()


FAULTS: Mapping[str, ClusterFault] = {
    "kill-one": kill_one,
    "kill-all": kill_all,
    "pause": pause,
    "rolling-restart": restart_all,
    "memory-limit": memory_limit,
    "isolate": isolate,
    "cut-peers": cut_peers,
    "cut-one-way": cut_one_way,
    "cut-etcd": cut_etcd,
    "cut-clients": cut_clients,
    "slow-network": slow_network,
    "disk-error": disk_error,
    "disk-full": disk_full,
    "disk-slow": disk_slow,
    "clock-step": clock_step,
    "rejoin-empty": rejoin_empty,
    "rejoin-old": rejoin_old,
    "etcd-kill": etcd_kill,
    "etcd-pause": etcd_pause,
    "etcd-without-quorum": etcd_without_quorum,
}
"""All kinds of faults."""


def _set_rule(cluster: RunningCluster, node_id: int, others: Iterable[str], rule: LinkRule) -> None:
    """Set a rule between a node and others, in both directions."""
    name = node_name(node_id)
    rules = {}
    for other in others:
        rules[name, other] = rules[other, name] = rule
    cluster.network.set_rules(rules)


def _everyone(cluster: RunningCluster) -> list[str]:
    return [CLIENTS, *_nodes(cluster), *_members(cluster)]


def _nodes(cluster: RunningCluster) -> list[str]:
    return [node_name(node_id) for node_id in cluster.nodes]


def _members(cluster: RunningCluster) -> list[str]:
    return [etcd_name(index) for index in range(len(cluster.etcd.members))]

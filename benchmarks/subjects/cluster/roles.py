"""What it costs to lead, and what to follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most

from subjects.cluster.nodes import FSYNC, NodeCluster, node_cluster, wait_until_in_sync
from subjects.kafka.confluent import PARTITIONS, produce_for, topic
from subjects.log.common import KIB

GB = 1e9
BATCHES = {"16 KB": 16 * KIB, "1 MB": 1_000_000}
LEADER, FOLLOWERS = 1, (2, 3)


def _turn(cluster: NodeCluster, batch: str, seconds: float) -> Figures:
    nodes = (LEADER, *FOLLOWERS)
    with topic(cluster.bootstrap, FSYNC, assignment=[nodes] * PARTITIONS) as name:
        wait_until_in_sync(cluster.bootstrap, name)
        used = {node: cluster.node_seconds(node) for node in nodes}
        moved = produce_for(
            seconds, cluster.bootstrap, name, size=KIB, batch_size=BATCHES[batch], acks="all"
        )
        cost = {
            node: (cluster.node_seconds(node) - used[node]) / moved.bytes * GB for node in nodes
        }
    return {
        f"leader {batch}": cost[LEADER],
        f"follower {batch}": sum(cost[node] for node in FOLLOWERS) / len(FOLLOWERS),
    }


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    seconds = scale.pick(smoke=0.05, quick=1.5, full=5.0)
    with node_cluster(folder) as cluster:
        turns = [partial(_turn, cluster, batch, seconds) for batch in BATCHES]
        turns[0]()
        yield turns


ROLES = Experiment(
    title="CPU of leader and followers",
    note=(
        "One node leads all four partitions of a topic, and two follow. Four producers of"
        " confluent-kafka send 1 KB records with acks=all, class `fsync`. The figure of the"
        " followers is the mean of the two."
    ),
    rows=tuple(
        Row(
            name=f"follower, {batch} batches, CPU",
            unit="s/GB",
            ours=f"follower {batch}",
            limit=f"leader {batch}",
            limit_name="leader",
            goal=ratio_at_most(0.7),
        )
        for batch in BATCHES
    ),
    arms=_arms,
)

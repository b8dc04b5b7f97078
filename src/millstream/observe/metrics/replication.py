"""Metrics of the replicas of a node in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from millstream.cluster.repair import RepairStep
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    LabelledSources,
    MetricDeclaration,
    MetricSection,
    counter,
    counter_by,
    gauge,
)

if TYPE_CHECKING:
    from millstream.cluster.replication.replica_manager import (
        LedPartition,
        ReplicaLag,
        ReplicaManager,
    )

REPLICATION_METRICS: Sequence[MetricDeclaration[ReplicaManager]] = (
    gauge(
        "millstream_replica_led_partitions",
        "Partitions that this node leads.",
        lambda node: sum(1 for replica in node.replicas.values() if replica.leader is not None),
    ),
    gauge(
        "millstream_replica_under_replicated_partitions",
        "Partitions led by this node with a replica that is not in sync.",
        lambda node: len({(str(lag.partition)) for lag in node.lags() if not lag.is_in_sync}),
    ),
    gauge(
        "millstream_replica_under_min_insync_partitions",
        "Partitions led by this node with too few replicas in sync for `acks=all`.",
        lambda node: len(node.small_isrs()),
    ),
    gauge(
        "millstream_replica_stopped_partitions",
        "Replicas on this node that do not follow or lead as they should.",
        lambda node: len(node.problems()),
    ),
    gauge(
        "millstream_replica_resyncing_partitions",
        "Replicas on this node that copy whole segments from other nodes.",
        lambda node: sum(1 for _ in node.resyncs()),
    ),
    gauge(
        "millstream_replica_resync_left_bytes",
        "Bytes of whole segments that replicas on this node have still to copy.",
        lambda node: sum(progress.bytes_left for _, progress in node.resyncs()),
    ),
    counter(
        "millstream_replica_resync_bytes_total",
        "Bytes of whole segments that were copied from other nodes.",
        lambda node: node.context.counters.resync_bytes,
    ),
    counter(
        "millstream_replica_resync_served_bytes_total",
        "Bytes of whole segments that were sent to other nodes.",
        lambda node: node.context.counters.served_resync_bytes,
    ),
    counter(
        "millstream_replica_resync_segments_total",
        "Segments that were copied from other nodes, verified and installed.",
        lambda node: node.context.counters.resync_segments,
    ),
    counter(
        "millstream_replica_resync_refused_segments_total",
        "Copied segments that were thrown away, because they were not what the digest said.",
        lambda node: node.context.counters.resync_refusals,
    ),
    counter_by(
        "step",
        (step.value for step in RepairStep if step is not RepairStep.NOTHING),
        "millstream_replica_repair_steps_total",
        "Steps of repairs of replicas on this node: `disown` (it lacked records), `recover the"
        " end`, `prove`, `replace` (damaged segments), `reopen`, `copy`, `hand over`.",
        lambda node, step: node.context.counters.repairs[step],
    ),
    counter(
        "millstream_replica_leader_changes_total",
        "How often this node became the leader of a partition.",
        lambda node: node.context.counters.leaders_begun,
    ),
    counter(
        "millstream_replica_isr_shrinks_total",
        "In-sync replicas of partitions led by this node that became fewer.",
        lambda node: node.context.counters.isr_shrinks,
    ),
    counter(
        "millstream_replica_isr_growths_total",
        "In-sync replicas of partitions led by this node that became more.",
        lambda node: node.context.counters.isr_growths,
    ),
    counter(
        "millstream_replica_position_mismatches_total",
        "Slices of a leader that did not continue the log of a replica on this node.",
        lambda node: node.context.counters.mismatches,
    ),
    counter(
        "millstream_replica_truncations_total",
        "Truncations of replicas on this node, because their leader does not have these records.",
        lambda node: node.context.counters.truncations,
    ),
    counter(
        "millstream_replica_removed_replicas_total",
        "Replicas whose files were removed, because they are on other nodes now.",
        lambda node: node.context.counters.removed_replicas,
    ),
    counter(
        "millstream_replica_fetched_bytes_total",
        "Bytes of records that replicas on this node fetched from their leaders.",
        lambda node: node.context.counters.fetched_bytes,
    ),
    counter(
        "millstream_replica_served_bytes_total",
        "Bytes of records that followers fetched from this node.",
        lambda node: node.context.counters.served_bytes,
    ),
    counter(
        "millstream_replica_internal_errors_total",
        "Unexpected errors in the work of replicas, or when parts of this node were told of changes"
        " of the cluster. Each is a bug, and has its stack in the log; everything else goes on.",
        lambda node: node.context.counters.internal_errors + node.context.state.failed_callbacks,
    ),
    gauge(
        "millstream_replica_without_quorum_seconds",
        "For how long the node has not been sure of its registration; 0 while it is.",
        lambda node: node.context.membership.seconds_without_quorum(),
    ),
)

LED_PARTITION_METRICS: Sequence[MetricDeclaration[LedPartition]] = (
    gauge(
        "millstream_replica_isr_replicas",
        "Size of the ISR of a partition that this node leads: replicas in sync, the leader"
        " included.",
        lambda led: led.in_sync,
    ),
    gauge(
        "millstream_replica_assigned_replicas",
        "Replicas that a partition which this node leads should have in sync: without those that"
        " are being removed.",
        lambda led: led.assigned,
    ),
)

REPLICA_LAG_METRICS: Sequence[MetricDeclaration[ReplicaLag]] = (
    gauge(
        "millstream_replica_lag_records",
        "Records that a follower does not have yet, as its leader knows it.",
        lambda lag: lag.records,
    ),
    gauge(
        "millstream_replica_lag_bytes",
        "About how many bytes a follower does not have yet.",
        lambda lag: lag.bytes,
    ),
    gauge(
        "millstream_replica_lag_seconds",
        "For how long a follower has not been at the end of its leader.",
        lambda lag: lag.seconds,
    ),
    gauge(
        "millstream_replica_in_sync_flag",
        "1 if a follower is in the in-sync replicas.",
        lambda lag: float(lag.is_in_sync),
    ),
)

REPLICATION = MetricSection(metrics=REPLICATION_METRICS)
LED_PARTITIONS = MetricSection(metrics=LED_PARTITION_METRICS, labels=("topic", "partition"))
REPLICA_LAGS = MetricSection(metrics=REPLICA_LAG_METRICS, labels=("topic", "partition", "node"))


def listed_led_partitions(manager: ReplicaManager) -> LabelledSources[LedPartition]:
    """Return the partitions that this node leads, the first `LISTED_MAX` of them."""
    return [
        ((led.partition.topic, str(led.partition.index)), led)
        for led in islice(manager.led_partitions(), LISTED_MAX)
    ]


def listed_lags(manager: ReplicaManager) -> LabelledSources[ReplicaLag]:
    """Return the followers of the partitions that this node leads, the first `LISTED_MAX`."""
    return [
        ((lag.partition.topic, str(lag.partition.index), str(lag.node_id)), lag)
        for lag in islice(manager.lags(), LISTED_MAX)
    ]

"""Handlers that show the cluster: nodes, partitions, replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.broker import Broker
from millstream.broker.cluster_admin import NodeStatus, PartitionStatus
from millstream.broker.cluster_view import NO_NODE
from millstream.cluster.circuit_breaker import BreakerState
from millstream.cluster.hlc import DriftHealth, drift_health, drift_text
from millstream.protocols.http.cluster import (
    ClusterAnswer,
    ClusterNodeShape,
    ClusterPartitionsAnswer,
    ClusterPartitionShape,
    ClusterPartitionsQuery,
    FollowerShape,
    ReplicasAnswer,
)
from millstream.servers.http.handlers.cluster.replica_reports import (
    REPLICAS_PATH,
    ReplicaReports,
    collect_reports,
    own_replicas,
    page_of,
)
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

PAIR = 2
"""Of two nodes or replicas none may be missing for a majority: no more than one is gained."""


async def describe_cluster(request: HttpRequest) -> Response:
    """Return the nodes of the cluster, and how many partitions are well.

    Any node answers, from the metadata that it follows. A node without a cluster shows itself.
    """
    broker = request.context.broker
    controller = broker.cluster.controller_id
    statuses = list(_partitions(broker))
    resyncs = broker.admin.resyncs()
    return json_response(
        ClusterAnswer(
            cluster=broker.cluster_id,
            node_id=broker.node_id,
            controller=None if controller == NO_NODE else controller,
            nodes=[_node(node) for node in broker.admin.nodes()],
            partitions=len(statuses),
            offline=sum(1 for status in statuses if status.leader == NO_NODE),
            under_min_insync=sum(1 for status in statuses if len(status.isr) < status.min_insync),
            under_replicated=sum(1 for status in statuses if status.is_under_replicated),
            reassigning=sum(1 for status in statuses if status.adding or status.removing),
            resyncing=len(resyncs),
            resync_bytes_left=sum(resync.bytes_left for resync in resyncs),
            problems=[problem.message for problem in broker.problems()],
            warnings=list(_warnings(broker, statuses)),
        )
    )


def _warnings(broker: Broker, statuses: Iterable[PartitionStatus]) -> Iterator[str]:
    """Yield what works, and needs attention.

    Two nodes or two replicas are such a case: with one of them down nothing is written.
    """
    nodes = broker.admin.nodes()
    for node in nodes:
        if node.drift_ms is not None and drift_health(node.drift_ms) is DriftHealth.WARNING:
            yield drift_text(node.node_id, node.drift_ms)
        if node.breaker == BreakerState.TRIPPED.value:
            yield (
                f"an operator stopped all requests from this node to node {node.node_id};"
                f" `millstream cluster breaker reset {node.node_id}` allows them again"
            )
    alive = sum(1 for node in nodes if node.is_alive)
    # With one replica by default, a node holds only what is lost with it in any case.
    if alive == PAIR and broker.cluster.default_replication_factor > 1:
        yield (
            "the cluster has 2 nodes: if one is down, writes with acks=all are refused; 3 or 5 are"
            " recommended"
        )
    elif alive >= PAIR:
        pairs = [
            status
            for status in statuses
            if len(status.target) == PAIR == status.min_insync
            and not broker.topics.get(status.partition.topic).is_internal
        ]
        if pairs:
            first = pairs[0].partition
            yield (
                f"{len(pairs)} partitions have 2 replicas, such as {first.topic}/{first.partition}:"
                " if one is down, writes with acks=all are refused; 3 are recommended"
            )


def _partitions(broker: Broker) -> Iterator[PartitionStatus]:
    for topic in broker.topics.all():
        for index in range(topic.partition_count):
            yield broker.admin.partition(topic.name, index)


def _node(node: NodeStatus) -> ClusterNodeShape:
    fields = node._asdict()
    return ClusterNodeShape(started_at=fields.pop("started_ms"), **fields)


async def list_partitions(request: HttpRequest) -> Response:
    """List partitions with their leaders and the progress of their replicas, page by page.

    The node asks the other nodes, since only the leader of a partition knows how far its followers
    are. What a node that does not answer would know is null.
    """
    query = read_query(request, ClusterPartitionsQuery)
    broker = request.context.broker
    page = page_of(broker, query)
    reports = await collect_reports(request, query, page)
    statuses = [broker.admin.partition(*partition) for partition in page.partitions]
    return json_response(
        ClusterPartitionsAnswer(
            partitions=[_partition(status, reports) for status in statuses], next=page.next
        )
    )


def _partition(status: PartitionStatus, reports: ReplicaReports) -> ClusterPartitionShape:
    leader = reports.by_node.get(status.leader, {}).get(status.partition)
    return ClusterPartitionShape(
        topic=status.partition.topic,
        partition=status.partition.partition,
        leader=None if status.leader == NO_NODE else status.leader,
        leader_epoch=status.leader_epoch,
        isr=list(status.isr),
        replicas=list(status.replicas),
        adding=list(status.adding),
        removing=list(status.removing),
        min_insync=status.min_insync,
        first_live_offset=None if leader is None else leader.first_live_offset,
        high_watermark=None if leader is None else leader.high_watermark,
        end=None if leader is None else leader.end,
        bytes=None if leader is None else leader.bytes,
        followers=[_follower(node_id, status, reports) for node_id in status.replicas],
        problems=list(_problems(status, reports)),
    )


def _follower(node_id: int, status: PartitionStatus, reports: ReplicaReports) -> FollowerShape:
    leader = reports.by_node.get(status.leader, {}).get(status.partition)
    own = reports.by_node.get(node_id, {}).get(status.partition)
    shape = FollowerShape(
        node_id=node_id,
        is_alive=node_id not in status.offline,
        is_in_sync=node_id in status.isr,
        end=None,
        lag_records=None,
        lag_ms=None,
        resync_bytes_left=None if own is None or own.resync is None else own.resync.bytes_left,
    )
    if leader is None:
        return shape
    if node_id == status.leader:
        shape.end, shape.lag_records, shape.lag_ms = leader.end, 0, 0
        return shape
    for follower in leader.followers:
        if follower.node_id == node_id:
            shape.end, shape.lag_records = follower.end, follower.lag_records
            shape.lag_ms = follower.lag_ms
    return shape


def _problems(status: PartitionStatus, reports: ReplicaReports) -> Iterator[str]:
    """Yield what is wrong with a partition."""
    if status.leader == NO_NODE:
        yield "no leader: nothing can be read or written"
    elif len(status.isr) < status.min_insync:
        yield (
            f"{len(status.isr)} replicas are in sync, min.insync.replicas is {status.min_insync}:"
            " acks=all is refused"
        )
    elif reason := reports.missing.get(status.leader):
        yield f"its leader, node {status.leader}, did not report: {reason}"
    for node_id in status.replicas:
        replica = reports.by_node.get(node_id, {}).get(status.partition)
        if replica is not None and replica.problem is not None:
            yield f"node {node_id}: {replica.problem}"
        elif node_id in status.offline:
            yield f"node {node_id} is not alive"
    if status.unclean_epochs:
        yield f"records may have been lost in unclean elections, epochs {status.unclean_epochs}"


async def list_replicas(request: HttpRequest) -> Response:
    """List the replicas that this node has of a page of partitions.

    Other nodes ask for it to answer `GET /v1/cluster/partitions`, which shows more.
    """
    query = read_query(request, ClusterPartitionsQuery)
    broker = request.context.broker
    page = page_of(broker, query)
    return json_response(
        ReplicasAnswer(node_id=broker.node_id, replicas=own_replicas(broker, page), next=page.next)
    )


_NODE = {
    "node_id": 1,
    "is_alive": True,
    "is_controller": True,
    "is_stopping": False,
    "is_removed": False,
    "kafka": "10.0.0.1:9092",
    "http": "http://10.0.0.1:8080",
    "peer": "10.0.0.1:9093",
    "rack": "a",
    "release": "0.1.0",
    "started_at": 1763240000000,
    "broker_epoch": 17,
    "leaders": 3,
    "replicas": 9,
    "drift_ms": 0,
    "breaker": None,
}
_LEADER = {
    "node_id": 1,
    "is_alive": True,
    "is_in_sync": True,
    "end": 90,
    "lag_records": 0,
    "lag_ms": 0,
    "resync_bytes_left": None,
}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/cluster",
        describe_cluster,
        "Describe the cluster",
        {HTTPStatus.OK: ClusterAnswer},
        tag="cluster",
        answer_example={
            "cluster": "millstream",
            "node_id": 1,
            "controller": 1,
            "nodes": [_NODE],
            "partitions": 9,
            "offline": 0,
            "under_min_insync": 0,
            "under_replicated": 0,
            "reassigning": 0,
            "resyncing": 0,
            "resync_bytes_left": 0,
            "problems": [],
            "warnings": [],
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "GET",
        "/v1/cluster/partitions",
        list_partitions,
        "List partitions and their replicas",
        {HTTPStatus.OK: ClusterPartitionsAnswer},
        query=ClusterPartitionsQuery,
        tag="cluster",
        answer_example={
            "partitions": [
                {
                    "topic": "orders",
                    "partition": 0,
                    "leader": 1,
                    "leader_epoch": 4,
                    "isr": [1],
                    "replicas": [1],
                    "adding": [],
                    "removing": [],
                    "min_insync": 1,
                    "first_live_offset": 0,
                    "high_watermark": 90,
                    "end": 90,
                    "bytes": 9214,
                    "followers": [_LEADER],
                    "problems": [],
                }
            ],
            "next": None,
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "GET",
        REPLICAS_PATH,
        list_replicas,
        "List the replicas of one node",
        {HTTPStatus.OK: ReplicasAnswer},
        query=ClusterPartitionsQuery,
        tag="cluster",
        answer_example={
            "node_id": 1,
            "replicas": [
                {
                    "topic": "orders",
                    "partition": 0,
                    "is_leader": True,
                    "first_live_offset": 0,
                    "high_watermark": 90,
                    "end": 90,
                    "bytes": 9214,
                    "problem": None,
                    "followers": [{"node_id": 2, "end": 90, "lag_records": 0, "lag_ms": 0}],
                    "resync": None,
                }
            ],
            "next": None,
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
)

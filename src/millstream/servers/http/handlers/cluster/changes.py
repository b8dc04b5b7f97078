"""Handlers that change the cluster: move replicas, elect leaders, remove nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.cluster_admin import ReplicaMove
from millstream.errors import ElectionNotNeeded, InvalidRequest
from millstream.protocols.http.cluster import (
    PARTITIONS_PAGE_MAX,
    ClusterPartitionsQuery,
    ElectBody,
    ElectionsAnswer,
    ElectionShape,
    MovesAnswer,
    MoveShape,
    PartitionName,
    ReassignBody,
    RebalanceBody,
    RemovalProgress,
    RemoveNodeQuery,
)
from millstream.records.topic_partition import TopicPartition
from millstream.servers.http.handlers.cluster.node_parameter import node_of
from millstream.servers.http.handlers.cluster.replica_reports import collect_reports, page_of
from millstream.servers.http.routing.bodies import read_message, read_query
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

BODY_SIZE_MAX = 1024 * 1024


async def reassign(request: HttpRequest) -> Response:
    """Begin to move partitions to other nodes, or cancel that.

    New replicas copy the records and join the ISR before old ones are removed, so nothing is less
    safe meanwhile. Repeating a request changes nothing. `reassigning` of `GET /v1/cluster` tells
    how many moves are left.
    """
    body = await read_message(request, ReassignBody, size_max=BODY_SIZE_MAX)
    admin = request.context.broker.admin
    moves = []
    for item in body.partitions:
        before = admin.partition(item.topic, item.partition)
        await admin.reassign(item.topic, item.partition, item.replicas)
        after = admin.partition(item.topic, item.partition)
        moves.append(
            ReplicaMove(
                before.partition,
                before.replicas,
                [node for node in after.replicas if node not in after.removing],
            )
        )
    return json_response(MovesAnswer(moves=_moves(moves)))


async def rebalance(request: HttpRequest) -> Response:
    """Begin to move replicas from the nodes with the most data to those with the least.

    Racks stay spread, and partitions that are moving already stay. With `dry_run`, nothing is
    moved.
    """
    body = await read_message(request, RebalanceBody, size_max=BODY_SIZE_MAX, is_optional=True)
    admin = request.context.broker.admin
    moves = await admin.rebalance(
        await _sizes(request), moves_max=body.moves_max, is_dry_run=body.dry_run
    )
    return json_response(MovesAnswer(moves=_moves(moves)))


async def _sizes(request: HttpRequest) -> dict[TopicPartition, int]:
    """Return the bytes of all partitions: of their largest replicas."""
    sizes: dict[TopicPartition, int] = {}
    query = ClusterPartitionsQuery(limit=PARTITIONS_PAGE_MAX)
    while True:
        page = page_of(request.context.broker, query)
        reports = await collect_reports(request, query, page)
        for replicas in reports.by_node.values():
            for partition, replica in replicas.items():
                sizes[partition] = max(sizes.get(partition, 0), replica.bytes)
        if page.next is None:
            return sizes
        query = ClusterPartitionsQuery(after=page.next, limit=PARTITIONS_PAGE_MAX)


async def elect(request: HttpRequest) -> Response:
    """Let the preferred replicas of partitions lead them.

    With `unclean`, a partition without a leader gets one that may lack committed records: these are
    lost. It is refused if a replica in sync is alive.
    """
    body = await read_message(request, ElectBody, size_max=BODY_SIZE_MAX)
    if body.leader is not None and not body.unclean:
        raise InvalidRequest(
            "leader is for unclean elections; otherwise the first replica leads, which"
            " `POST /v1/cluster/reassign` changes"
        )
    elections = await asyncio.gather(*(_elect(request, body, item) for item in body.partitions))
    return json_response(ElectionsAnswer(elections=list(elections)))


async def _elect(request: HttpRequest, body: ElectBody, item: PartitionName) -> ElectionShape:
    admin = request.context.broker.admin
    try:
        election = (
            await admin.elect_uncleanly(item.topic, item.partition, body.leader)
            if body.unclean
            else await admin.elect_preferred(item.topic, item.partition)
        )
    except ElectionNotNeeded:
        status = admin.partition(item.topic, item.partition)
        return ElectionShape(
            topic=item.topic,
            partition=item.partition,
            leader=status.leader,
            leader_epoch=status.leader_epoch,
            is_elected=False,
            former_isr=[],
        )
    return ElectionShape(
        topic=item.topic,
        partition=item.partition,
        leader=election.leader,
        leader_epoch=election.leader_epoch,
        is_elected=True,
        former_isr=list(election.former_isr),
    )


async def remove_node(request: HttpRequest) -> Response:
    """Begin to move all replicas away from a node, and return how many it still has.

    Repeat it until none is left; then the node can be stopped for good. It gets no new replicas
    meanwhile. Works for a node that is lost, too. With `cancel`, the node stays.
    """
    query = read_query(request, RemoveNodeQuery)
    admin, node_id = request.context.broker.admin, node_of(request)
    if query.cancel:
        await admin.keep_node(node_id)
        left = sum(node.replicas for node in admin.nodes() if node.node_id == node_id)
        return json_response(RemovalProgress(node_id=node_id, replicas_left=left, moves=[]))
    removal = await admin.remove_node(node_id, may_shrink=query.shrink, is_dry_run=query.dry_run)
    return json_response(
        RemovalProgress(
            node_id=node_id, replicas_left=removal.replicas_left, moves=_moves(removal.moves)
        )
    )


def _moves(moves: Iterable[ReplicaMove]) -> list[MoveShape]:
    return [
        MoveShape(
            topic=move.partition.topic,
            partition=move.partition.partition,
            before=list(move.before),
            after=list(move.after),
        )
        for move in moves
    ]


_MOVE = {"topic": "orders", "partition": 0, "before": [1, 2, 3], "after": [1, 2, 4]}

OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/cluster/reassign",
        reassign,
        "Move partitions to other nodes",
        {HTTPStatus.OK: MovesAnswer},
        body=ReassignBody,
        errors=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
        tag="cluster",
        example={"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 4]}]},
        answer_example={"moves": [_MOVE]},
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "POST",
        "/v1/cluster/rebalance",
        rebalance,
        "Spread the data over the nodes",
        {HTTPStatus.OK: MovesAnswer},
        body=RebalanceBody,
        is_body_optional=True,
        tag="cluster",
        example={"dry_run": True},
        answer_example={"moves": [_MOVE]},
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "POST",
        "/v1/cluster/elect",
        elect,
        "Elect leaders",
        {HTTPStatus.OK: ElectionsAnswer},
        body=ElectBody,
        errors=(HTTPStatus.NOT_FOUND,),
        tag="cluster",
        example={"partitions": [{"topic": "orders", "partition": 0}]},
        answer_example={
            "elections": [
                {
                    "topic": "orders",
                    "partition": 0,
                    "leader": 1,
                    "leader_epoch": 5,
                    "is_elected": True,
                    "former_isr": [],
                }
            ]
        },
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "DELETE",
        "/v1/cluster/nodes/{node}",
        remove_node,
        "Remove a node from the cluster",
        {HTTPStatus.OK: RemovalProgress},
        query=RemoveNodeQuery,
        tag="cluster",
        answer_example={"node_id": 4, "replicas_left": 12, "moves": [_MOVE]},
        access=cluster_access(Operation.ALTER),
    ),
)

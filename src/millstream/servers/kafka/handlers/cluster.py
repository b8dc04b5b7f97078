"""DescribeCluster: the nodes of the cluster."""

from __future__ import annotations

from millstream.broker.access.resources import CLUSTER, Operation
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)
from millstream.servers.kafka.request_context import RequestContext

BROKERS, CONTROLLERS = 1, 2
"""Endpoint types: Kafka's numbers."""

OPERATIONS_NOT_REQUESTED = -(2**31)
"""Stands for the allowed operations if the client did not ask for them."""


def cluster_operations(context: RequestContext) -> int:
    """Return the operations that the caller may do on the cluster.

    As in Kafka, none are told to those who may not describe it.
    """
    if not context.may(Operation.DESCRIBE, CLUSTER):
        return 0
    return context.operations_on(CLUSTER)


def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Return the nodes of the cluster. There are no controllers that a client could reach."""
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=f"endpoint type must be {BROKERS}, got {request.endpoint_type}",
            endpoint_type=BROKERS,
        )
    broker = context.broker
    is_asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id,
        brokers=tuple(
            DescribeClusterResponseBroker(
                broker_id=node.node_id, host=node.kafka.host, port=node.kafka.port, rack=node.rack
            )
            for node in broker.cluster.nodes()
        ),
        cluster_authorized_operations=(
            cluster_operations(context) if is_asked else OPERATIONS_NOT_REQUESTED
        ),
    )

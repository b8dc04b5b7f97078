"""The cluster: one node, so far."""

from __future__ import annotations

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)
from millstream.servers.kafka.request_context import RequestContext

BROKERS, CONTROLLERS = 1, 2
"""What can be asked for: Kafka's numbers."""

OPERATIONS_NOT_REQUESTED = -(2**31)
"""In place of what a client may do, where it did not ask."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
"""What can be done to a topic. Nothing is forbidden to anyone: there are no rules yet."""

CLUSTER_OPERATIONS = _bits(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)
"""What can be done to the cluster."""


def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Say which nodes there are. There are no controllers that a client could reach."""
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=f"endpoint type is {request.endpoint_type}, allowed is {BROKERS}",
            endpoint_type=BROKERS,
        )
    broker = context.broker
    host, port = broker.advertised
    is_asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=(DescribeClusterResponseBroker(broker_id=broker.node_id, host=host, port=port),),
        cluster_authorized_operations=CLUSTER_OPERATIONS if is_asked else OPERATIONS_NOT_REQUESTED,
    )

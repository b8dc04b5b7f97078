"""The nodes of the cluster."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
)

DESCRIBE_CLUSTER = Versions(first=0, last=2, flexible=0)


@message(DESCRIBE_CLUSTER)
class DescribeClusterRequest:
    """Ask for the nodes of the cluster."""

    include_cluster_authorized_operations: bool = wire(BOOL, default=False)
    endpoint_type: int = wire(INT8, since=1, default=1)
    include_fenced_brokers: bool = wire(BOOL, since=2, default=False)


@struct
class DescribeClusterResponseBroker:
    """A node and its address."""

    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(NULLABLE_STRING, default=None)
    is_fenced: bool = wire(BOOL, since=2, default=False)


@message(DESCRIBE_CLUSTER)
class DescribeClusterResponse:
    """The nodes of the cluster."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    endpoint_type: int = wire(INT8, since=1, default=1)
    cluster_id: str = wire(STRING, default="")
    controller_id: int = wire(INT32, default=-1)
    brokers: tuple[DescribeClusterResponseBroker, ...] = wire(
        ARRAY(DescribeClusterResponseBroker), default=()
    )
    cluster_authorized_operations: int = wire(INT32, default=-(2**31))

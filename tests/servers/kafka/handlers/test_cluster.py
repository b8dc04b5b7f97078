"""DescribeCluster, as clients see it."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.cluster import DESCRIBE_CLUSTER, DescribeClusterRequest
from millstream.servers.kafka.handlers.cluster import describe_cluster
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import CLUSTER_ID, NODE_ID, open_handler_node

UNASKED = -(2**31)


@pytest.mark.parametrize("version", range(DESCRIBE_CLUSTER.first, DESCRIBE_CLUSTER.last + 1))
@pytest.mark.parametrize("is_asking", [False, True])
def test_the_cluster_is_one_node(version, is_asking):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            request = DescribeClusterRequest(include_cluster_authorized_operations=is_asking)
            response = await node.ask(describe_cluster, request, version=version)
            assert (response.error_code, response.error_message) == (0, None)
            assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, NODE_ID)
            (broker,) = response.brokers
            assert (broker.broker_id, broker.host, broker.port) == (NODE_ID, "there", 9092)
            assert not broker.is_fenced
            wanted = 0b1_1111_1010_0000 if is_asking else UNASKED
            assert response.cluster_authorized_operations == wanted

    run()


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_controllers_cannot_be_reached(kind, code):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=kind
            )
            response = await node.ask(describe_cluster, request, version=2)
            assert response.error_code == code
            assert f"endpoint type must be 1, got {kind}" in response.error_message
            assert response.brokers == ()

    run()

"""GetClusterStatus: the cluster as this node sees it."""

from __future__ import annotations

import msgspec

from millstream.broker.cluster_view import NO_NODE
from millstream.protocols.native.frame import Frame, NativeFrameHeader, control_frame
from millstream.protocols.native.operations import (
    ClusterStatus,
    NativeOperation,
    Reply,
    check_empty,
)
from millstream.servers.native.native_context import NativeContext


def get_cluster_status(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Describe the nodes that are alive. The leader is the controller.

    `current_term` is the revision of the metadata: it rises with every change of the cluster.
    """
    check_empty(body, NativeOperation.GET_CLUSTER_STATUS)
    context.require_cluster()
    broker = context.broker
    controller, nodes = broker.cluster.controller_id, broker.cluster.nodes()
    status = ClusterStatus(
        node_id=broker.node_id,
        is_leader=controller == broker.node_id,
        leader_id=None if controller == NO_NODE else controller,
        current_term=broker.metadata.revision,
        node_count=len(nodes),
        healthy_nodes=len(nodes),
        quorum_available=broker.metadata.failure is None and controller != NO_NODE,
        peer_states={
            str(node.node_id): "healthy" for node in nodes if node.node_id != broker.node_id
        },
    )
    return control_frame(Reply.CLUSTER_STATUS, msgspec.json.encode(status))

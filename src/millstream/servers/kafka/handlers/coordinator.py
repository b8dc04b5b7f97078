"""FindCoordinator: the node that coordinates a group or a transactional id."""

from __future__ import annotations

from millstream.broker.cluster_view import CoordinatorKind
from millstream.errors import MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from millstream.servers.kafka.request_context import RequestContext

GROUP, TRANSACTION = 0, 1
"""Types of keys: Kafka's numbers. Its third type, share groups, is not supported."""

KINDS = {GROUP: CoordinatorKind.GROUP, TRANSACTION: CoordinatorKind.TRANSACTION}

MANY_SINCE = 4
"""The first version with several keys in one request."""


def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Return the coordinator of one key up to version 3, of several keys from then on."""
    if context.version >= MANY_SINCE:
        return FindCoordinatorResponse(
            coordinators=tuple(
                _coordinator(key, request.key_type, context) for key in request.coordinator_keys
            )
        )
    coordinator = _coordinator(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _coordinator(
    key: str, key_type: int, context: RequestContext
) -> FindCoordinatorResponseCoordinator:
    if key_type not in KINDS:
        return FindCoordinatorResponseCoordinator(
            key=key,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"key type must be {GROUP} or {TRANSACTION}, got {key_type}",
        )
    try:
        if key_type == GROUP:
            context.require_group(key)
        else:
            context.require_transactional_id(key)
    except MillstreamError as error:
        return FindCoordinatorResponseCoordinator(
            key=key, error_code=code_of(error), error_message=str(error)
        )
    node = context.broker.cluster.coordinator_of(KINDS[key_type], key)
    if node is None:
        return FindCoordinatorResponseCoordinator(
            key=key,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message=f"no node coordinates {key[:100]!r} now",
        )
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=node.node_id, host=node.kafka.host, port=node.kafka.port
    )

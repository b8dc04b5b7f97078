"""FindCoordinator: who looks after a group or a transactional id. This node does, for all."""

from __future__ import annotations

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from millstream.servers.kafka.request_context import RequestContext

GROUP, TRANSACTION = 0, 1
"""What a key can be: Kafka's numbers. Its third kind, of share groups, is not served."""

MANY_SINCE = 4
"""The first version that asks for many keys at once."""


def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Say which node to ask; for one key up to version 3, for many from then on."""
    if context.version >= MANY_SINCE:
        return FindCoordinatorResponse(
            coordinators=tuple(
                _coordinator(key, request.key_type, context) for key in request.coordinator_keys
            )
        )
    found = _coordinator(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(
    key: str, key_type: int, context: RequestContext
) -> FindCoordinatorResponseCoordinator:
    if key_type not in (GROUP, TRANSACTION):
        return FindCoordinatorResponseCoordinator(
            key=key,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"key type is {key_type}, allowed is {GROUP} or {TRANSACTION}",
        )
    host, port = context.broker.advertised
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=context.broker.node_id, host=host, port=port
    )

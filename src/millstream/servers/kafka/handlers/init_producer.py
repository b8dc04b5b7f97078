"""InitProducerId: gives a producer its id, or lets it take over from its predecessor."""

from __future__ import annotations

from millstream.broker.access.resources import CLUSTER, Operation, ResourceType
from millstream.errors import MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.producers import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.servers.kafka.handlers.transactions import transaction_code_of
from millstream.servers.kafka.request_context import RequestContext

FENCED_SINCE = 4
"""The first version whose clients know the error of being fenced."""


async def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Return the id and epoch of a producer; with a transactional id, fence its predecessors."""
    try:
        _check_rights(request.transactional_id, context)
        producer = await context.broker.transactions.init_producer(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
        )
    except MillstreamError as error:
        code = transaction_code_of(error, knows_fenced=context.version >= FENCED_SINCE)
        if request.transactional_id is None and code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # Such a producer has no coordinator to look for.
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code)
    return InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch)


def _check_rights(transactional_id: str | None, context: RequestContext) -> None:
    """Raise unless the caller may use the id; without one, unless it may write to some topic."""
    if transactional_id is not None:
        context.require_transactional_id(transactional_id)
        return
    access, caller = context.access, context.caller
    if access is None or context.may(Operation.IDEMPOTENT_WRITE, CLUSTER):
        return
    if not access.check_some(caller, context.needs.on(ResourceType.TOPIC), ResourceType.TOPIC):
        context.require_cluster()

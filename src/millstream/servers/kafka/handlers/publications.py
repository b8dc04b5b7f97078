"""PublishTransactions and RenewTransactions, APIs of Millstream for many producers of one job."""

from __future__ import annotations

from millstream.broker.access.resources import ResourceType, transactional_id
from millstream.broker.transactions.publication import ProposedTransaction, PublicationProposal
from millstream.broker.transactions.transaction import TransactionProducer
from millstream.errors import MillstreamError
from millstream.protocols.kafka.messages.publications import (
    PublishTransactionsRequest,
    PublishTransactionsResponse,
    RenewTransactionsRequest,
    RenewTransactionsResponse,
)
from millstream.servers.kafka.handlers.transactions import transaction_code_of
from millstream.servers.kafka.request_context import RequestContext


async def publish_transactions(
    request: PublishTransactionsRequest, context: RequestContext
) -> PublishTransactionsResponse:
    """Commit transactions of many producers, all or none, once for each sequence."""
    proposal = PublicationProposal(
        publisher=request.publisher,
        sequence=request.sequence,
        chosen=tuple(
            ProposedTransaction(
                transaction.transactional_id,
                TransactionProducer(transaction.producer_id, transaction.producer_epoch),
            )
            for transaction in request.transactions
        ),
        prefix=request.prefix,
        is_commit=request.committed,
        is_final=request.is_final,
        client_id=context.client_id,
    )
    try:
        _check_rights(proposal, context)
        published = await context.broker.transactions.publish(proposal)
    except MillstreamError as error:
        return PublishTransactionsResponse(
            error_code=transaction_code_of(error), error_message=str(error)
        )
    return PublishTransactionsResponse(
        is_repeated=published.is_repeated, last_sequence=published.last_sequence
    )


def renew_transactions(
    request: RenewTransactionsRequest, context: RequestContext
) -> RenewTransactionsResponse:
    """Start the timeouts of open transactions below a prefix again."""
    try:
        context.require_transactional_id(request.publisher)
        _check_prefix(request.prefix, context)
        count = context.broker.transactions.renew(
            request.publisher, request.prefix, request.duration_ms_max
        )
    except MillstreamError as error:
        return RenewTransactionsResponse(
            error_code=transaction_code_of(error), error_message=str(error)
        )
    return RenewTransactionsResponse(transaction_count=count)


def _check_rights(proposal: PublicationProposal, context: RequestContext) -> None:
    """Raise unless the caller may use the publisher, each transaction and all under the prefix.

    Other producers whose ids begin with the prefix are fenced, so a right to one id is not enough.
    """
    context.require_transactional_id(proposal.publisher)
    for chosen in proposal.chosen:
        context.require_transactional_id(chosen.transactional_id)
    _check_prefix(proposal.prefix, context)


def _check_prefix(prefix: str, context: RequestContext) -> None:
    """Raise unless the caller may use all ids under a prefix."""
    access, caller = context.access, context.caller
    if access is None or not prefix:
        return
    operation = context.needs.on(ResourceType.TRANSACTIONAL_ID)
    if not access.check_below(caller, operation, ResourceType.TRANSACTIONAL_ID, prefix):
        raise access.denial(caller, operation, transactional_id(prefix))

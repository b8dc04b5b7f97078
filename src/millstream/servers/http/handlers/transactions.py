"""Handlers of transactions: list, describe, abort.

An open transaction holds back readers of committed records of its partitions. These operations tell
which one it is, and end it.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation, ResourceType, transactional_id
from millstream.broker.transactions.transaction import TransactionMetadata
from millstream.protocols.http.groups import AssignedShape
from millstream.protocols.http.transactions import (
    TransactionDetailsAnswer,
    TransactionsAnswer,
    TransactionShape,
    TransactionsQuery,
)
from millstream.servers.http.handlers.coordinator_lists import ask_coordinators
from millstream.servers.http.handlers.groups.groups import state_name
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import (
    AccessNeed,
    OperationAccess,
    filtered,
)
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


async def list_transactions(request: HttpRequest) -> Response:
    """List transactional ids sorted by name, one page at a time.

    In a cluster, every coordinator is asked.
    """
    query = read_query(request, TransactionsQuery)

    async def own() -> TransactionsAnswer:
        return _own_transactions(request, query)

    pages = await ask_coordinators(
        request,
        request.context.broker.transactions.coordinators,
        TransactionsAnswer,
        own,
    )
    if len(pages) == 1:
        return json_response(pages[0])
    listed = sorted(
        (shape for page in pages for shape in page.transactions), key=lambda shape: shape.id
    )
    shown = listed[: query.limit]
    is_more = len(listed) > len(shown) or any(page.next is not None for page in pages)
    return json_response(
        TransactionsAnswer(transactions=shown, next=shown[-1].id if is_more else None)
    )


def _own_transactions(request: HttpRequest, query: TransactionsQuery) -> TransactionsAnswer:
    """Return a page of the transactional ids that this node coordinates."""
    broker = request.context.broker
    listed = sorted(
        (
            each
            for each in broker.transactions.listed()
            if (query.after is None or each.transactional_id > query.after)
            and (not query.open or each.is_ongoing or each.is_ending)
            and request.may(Operation.DESCRIBE, transactional_id(each.transactional_id))
        ),
        key=lambda each: each.transactional_id,
    )
    shown = listed[: query.limit]
    return TransactionsAnswer(
        transactions=[
            TransactionShape(
                id=each.transactional_id,
                state=state_name(each.state.value),
                producer_id=each.producer.id,
                producer_epoch=each.producer.epoch,
                timeout_ms=each.timeout_ms,
                open_ms=_open_ms(request, each),
                partitions=len(each.partitions),
            )
            for each in shown
        ],
        next=shown[-1].transactional_id if len(listed) > len(shown) else None,
    )


async def describe_transaction(request: HttpRequest) -> Response:
    """Return the state of a transactional id, with the partitions that hold back readers."""
    name: str = request.path_params["transaction"]
    coordinator = request.context.broker.transactions.of(name)
    return json_response(_details(request, coordinator.describe(name)))


async def abort_transaction(request: HttpRequest) -> Response:
    """Abort the open transaction of an id, and fence its producer.

    Its records are not committed; the producer may begin another transaction. Succeeds without
    changes if no transaction is open. Durable before the response.
    """
    name: str = request.path_params["transaction"]
    aborted = await request.context.broker.transactions.of(name).abort(name)
    return json_response(_details(request, aborted))


def _details(request: HttpRequest, transaction: TransactionMetadata) -> TransactionDetailsAnswer:
    return TransactionDetailsAnswer(
        id=transaction.transactional_id,
        state=state_name(transaction.state.value),
        producer_id=transaction.producer.id,
        producer_epoch=transaction.producer.epoch,
        timeout_ms=transaction.timeout_ms,
        open_ms=_open_ms(request, transaction),
        started_ms=transaction.start_ms if transaction.start_ms >= 0 else None,
        partitions=[
            AssignedShape(topic=topic, partition=partition)
            for topic, partition in sorted(transaction.partitions)
            if request.may_describe_topic(topic)
        ],
        groups=sorted(filter(request.may_describe_group, transaction.groups)),
    )


def _open_ms(request: HttpRequest, transaction: TransactionMetadata) -> int | None:
    if not transaction.is_ongoing:
        return None
    name = transaction.transactional_id
    return request.context.broker.transactions.of(name).age_ms(transaction)


def _access(operation: Operation, checks: str = "") -> OperationAccess:
    need = AccessNeed(operation, ResourceType.TRANSACTIONAL_ID, "transaction")
    return OperationAccess((need,), checks)


_CHECKS = "topics and groups that the caller may describe"
_EXAMPLE = {
    "id": "spark-query/2b7c/0/0",
    "state": "ongoing",
    "producer_id": 4001,
    "producer_epoch": 3,
    "timeout_ms": 60_000,
    "open_ms": 75_000,
}
_DETAILS = {
    **_EXAMPLE,
    "started_ms": 1_700_000_000_000,
    "partitions": [{"topic": "orders", "partition": 0}],
    "groups": [],
}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/transactions",
        list_transactions,
        "List transactions",
        {HTTPStatus.OK: TransactionsAnswer},
        query=TransactionsQuery,
        tag="transactions",
        answer_example={"transactions": [{**_EXAMPLE, "partitions": 1}], "next": None},
        access=filtered("transactional ids that the caller may describe"),
    ),
    HttpOperation(
        "GET",
        "/v1/transactions/{transaction:path}",
        describe_transaction,
        "Describe a transaction",
        {HTTPStatus.OK: TransactionDetailsAnswer},
        tag="transactions",
        answer_example=_DETAILS,
        is_forwarded=True,
        access=_access(Operation.DESCRIBE, _CHECKS),
    ),
    HttpOperation(
        "POST",
        "/v1/transactions/{transaction:path}/abort",
        abort_transaction,
        "Abort a transaction",
        {HTTPStatus.OK: TransactionDetailsAnswer},
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="transactions",
        answer_example={**_DETAILS, "state": "complete_abort", "open_ms": None, "partitions": []},
        is_forwarded=True,
        access=_access(Operation.WRITE, _CHECKS),
    ),
)

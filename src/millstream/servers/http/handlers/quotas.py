"""Handlers of quotas: list, set, remove.

They are the quotas of Kafka's DescribeClientQuotas and AlterClientQuotas, and hold for all servers
of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict
from starlette.responses import Response

from millstream.broker import quota_rules as quota
from millstream.broker.access.resources import Operation
from millstream.broker.quotas import DEFAULT, ClientQuotaEntity
from millstream.errors import InvalidRequest
from millstream.protocols.http.quotas import (
    DefaultQuotaEntity,
    QuotaAnswer,
    QuotaBody,
    QuotaEntityName,
    QuotaEntityShape,
    QuotasAnswer,
    Rates,
    RemovalAnswer,
)
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

QUOTA_SIZE_MAX = 16 * 1024
"""Bytes of a request body: two names and four numbers."""


async def list_quotas(request: HttpRequest) -> Response:
    """List all quotas, and the rates of clients that have none."""
    quotas = request.context.broker.quotas
    defaults = {kind.value: rate for kind, rate in quotas.defaults.items()}
    return json_response(
        QuotasAnswer(
            quotas=[_shape(entity, rates) for entity, rates in quotas.all().items()],
            defaults=Rates(**defaults),
        )
    )


async def put_quota(request: HttpRequest) -> Response:
    """Set quotas of a user, a client id or both; quotas that are not named are kept.

    A rate of null is removed. The change is durable and atomic, and takes effect at once for all
    servers of the node.
    """
    body = await read_message(request, QuotaBody, size_max=QUOTA_SIZE_MAX)
    changes = {name: rate for name, rate in asdict(body.rates).items() if rate is not UNSET}
    entity = _entity(body.user, body.client_id)
    quotas = request.context.broker.quotas
    await quotas.alter(entity, changes)
    return json_response(_shape(entity, quotas.rates_of(entity)))


async def delete_quota(request: HttpRequest) -> Response:
    """Remove all quotas of a user, a client id or both. Succeeds if there are none."""
    body = await read_message(request, QuotaEntityShape, size_max=QUOTA_SIZE_MAX)
    entity = _entity(body.user, body.client_id)
    quotas = request.context.broker.quotas
    removed = list(quotas.rates_of(entity))
    await quotas.alter(entity, dict.fromkeys(removed))
    return json_response(RemovalAnswer(removed=removed))


def _entity(
    user: QuotaEntityName | UnsetType, client_id: QuotaEntityName | UnsetType
) -> ClientQuotaEntity:
    return ClientQuotaEntity(_name(user), _name(client_id))


def _name(entity: QuotaEntityName | UnsetType) -> quota.EntityName | None:
    if isinstance(entity, UnsetType):
        return None
    if isinstance(entity, str):
        return entity
    if not entity.default:
        raise InvalidRequest("default must be true, got false")
    return DEFAULT


def _shape(entity: ClientQuotaEntity, rates: Mapping[str, float]) -> QuotaAnswer:
    return QuotaAnswer(
        user=_shown(entity.user), client_id=_shown(entity.client_id), rates=Rates(**rates)
    )


def _shown(name: quota.EntityName | None) -> QuotaEntityName | UnsetType:
    if name is None:
        return UNSET
    return name if isinstance(name, str) else DefaultQuotaEntity(default=True)


_EXAMPLE = {"client_id": "etl", "rates": {"producer_byte_rate": 1_048_576.0}}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/quotas",
        list_quotas,
        "List quotas",
        {HTTPStatus.OK: QuotasAnswer},
        tag="quotas",
        answer_example={"quotas": [_EXAMPLE], "defaults": {}},
        access=cluster_access(Operation.DESCRIBE_CONFIGS),
    ),
    HttpOperation(
        "PUT",
        "/v1/quotas",
        put_quota,
        "Set quotas of a user, a client id, or both",
        {HTTPStatus.OK: QuotaAnswer},
        body=QuotaBody,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="quotas",
        example={"client_id": "etl", "rates": {"producer_byte_rate": 1_048_576}},
        answer_example=_EXAMPLE,
        access=cluster_access(Operation.ALTER_CONFIGS),
    ),
    HttpOperation(
        "DELETE",
        "/v1/quotas",
        delete_quota,
        "Remove quotas of a user, a client id, or both",
        {HTTPStatus.OK: RemovalAnswer},
        body=QuotaEntityShape,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="quotas",
        example={"client_id": "etl"},
        answer_example={"removed": ["producer_byte_rate"]},
        access=cluster_access(Operation.ALTER_CONFIGS),
    ),
)

"""Quotas: describe and alter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.access.resources import CLUSTER
from millstream.broker.quotas import DEFAULT, ClientQuotaEntity
from millstream.errors import InvalidRequest, MillstreamError, UnsupportedVersion
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntity,
    AlterClientQuotasResponseEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntity,
    DescribeClientQuotasResponseEntry,
    DescribeClientQuotasResponseValue,
)
from millstream.servers.kafka.request_context import RequestContext

USER, CLIENT_ID, ADDRESS = "user", "client-id", "ip"
EXACT, DEFAULT_ONLY, ANY = 0, 1, 2
"""How a name is matched: Kafka's numbers."""


class _Filter(NamedTuple):
    """Condition on the name of one type of entity."""

    kind: str
    how: int
    name: str | None

    def fits(self, entity: ClientQuotaEntity) -> bool:
        name = entity.user if self.kind == USER else entity.client_id
        if name is None:
            return False
        if self.how == ANY:
            return True
        return name is DEFAULT if self.how == DEFAULT_ONLY else name == self.name


# Describe.


def describe_client_quotas(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Return the quotas of all entities that match."""
    try:
        context.require_cluster()
        filters = _filters(request.components)
    except MillstreamError as error:
        return DescribeClientQuotasResponse(
            error_code=code_of(error), error_message=str(error), entries=None
        )
    return DescribeClientQuotasResponse(
        entries=tuple(
            DescribeClientQuotasResponseEntry(
                entity=_described(entity),
                values=tuple(
                    DescribeClientQuotasResponseValue(key=name, value=rate)
                    for name, rate in rates.items()
                ),
            )
            for entity, rates in context.broker.quotas.all().items()
            if _fits(entity, filters, is_strict=request.strict)
        )
    )


def _filters(components: Sequence[DescribeClientQuotasRequestComponent]) -> list[_Filter]:
    filters = [_filter(component) for component in components]
    kinds = Counter(condition.kind for condition in filters)
    if repeated := [kind for kind, count in kinds.items() if count > 1]:
        raise InvalidRequest(f"entity type {repeated[0]!r} is repeated")
    if ADDRESS in kinds and len(kinds) > 1:
        raise InvalidRequest(f"{ADDRESS!r} cannot be combined with {USER} or {CLIENT_ID}")
    return filters


def _filter(component: DescribeClientQuotasRequestComponent) -> _Filter:
    kind, how, name = component.entity_type, component.match_type, component.match
    if kind not in (USER, CLIENT_ID, ADDRESS):
        raise UnsupportedVersion(
            f"entity type must be one of {USER}, {CLIENT_ID}, {ADDRESS}, got {kind[:100]!r}"
        )
    if how not in (EXACT, DEFAULT_ONLY, ANY):
        raise InvalidRequest(
            f"match type must be {EXACT} exact, {DEFAULT_ONLY} default or {ANY} any, got {how}"
        )
    if (name is not None) != (how == EXACT):
        raise InvalidRequest("a name must be given for an exact match, and only then")
    return _Filter(kind, how, name)


def _fits(entity: ClientQuotaEntity, filters: Sequence[_Filter], *, is_strict: bool) -> bool:
    """Return whether an entity matches; if strict, it must have no other part.

    No entity has an address: quotas for addresses are not supported.
    """
    parts = sum(name is not None for name in entity)
    if any(condition.kind == ADDRESS or not condition.fits(entity) for condition in filters):
        return False
    return not is_strict or parts == len(filters)


def _described(entity: ClientQuotaEntity) -> tuple[DescribeClientQuotasResponseEntity, ...]:
    return tuple(
        DescribeClientQuotasResponseEntity(
            entity_type=kind, entity_name=name if isinstance(name, str) else None
        )
        for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id))
        if name is not None
    )


# Alter.


async def alter_client_quotas(
    request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas: all changes of one entity, or none."""
    seen = Counter(_identity(entry) for entry in request.entries)
    results = []
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            if seen[_identity(entry)] > 1:
                raise InvalidRequest("an entity is repeated")
            context.require_cluster()
            await _alter(entry, context, is_validate_only=request.validate_only)
            if not request.validate_only:
                context.note_change(CLUSTER)
        except MillstreamError as error:
            code, message = code_of(error), str(error)
        results.append(
            AlterClientQuotasResponseEntry(
                error_code=code,
                error_message=message,
                entity=tuple(
                    AlterClientQuotasResponseEntity(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ),
            )
        )
    return AlterClientQuotasResponse(entries=tuple(results))


def _identity(entry: AlterClientQuotasRequestEntry) -> frozenset[tuple[str, str | None]]:
    return frozenset((part.entity_type, part.entity_name) for part in entry.entity)


async def _alter(
    entry: AlterClientQuotasRequestEntry, context: RequestContext, *, is_validate_only: bool
) -> None:
    changes = {change.key: None if change.remove else change.value for change in entry.ops}
    if len(changes) < len(entry.ops):
        raise InvalidRequest("a quota is repeated")
    entity = _entity(entry.entity)
    await context.broker.quotas.alter(entity, changes, is_validate_only=is_validate_only)


def _entity(parts: Sequence[AlterClientQuotasRequestEntity]) -> ClientQuotaEntity:
    names = {
        part.entity_type: DEFAULT if part.entity_name is None else part.entity_name
        for part in parts
    }
    if len(names) < len(parts):
        raise InvalidRequest("an entity type is repeated")
    if unknown := names.keys() - {USER, CLIENT_ID}:
        raise InvalidRequest(
            f"entity type must be {USER} or {CLIENT_ID}, got {min(unknown)[:100]!r}:"
            " quotas for addresses are not supported"
        )
    return ClientQuotaEntity(names.get(USER), names.get(CLIENT_ID))

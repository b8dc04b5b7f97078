"""ACLs: described, created and deleted, by Kafka's own tools among others."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from millstream.broker.access.access import Access
from millstream.broker.access.acls import Acl, AclFilter, Permission, ResourcePattern
from millstream.broker.access.principal import parse_principal
from millstream.broker.access.resources import Operation, PatternType, ResourceType
from millstream.errors import InvalidRequest, MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsRequestAcl,
    CreateAclsResponse,
    CreateAclsResponseResult,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DeleteAclsResponse,
    DeleteAclsResponseAcl,
    DeleteAclsResponseFilter,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAcl,
    DescribeAclsResponseResource,
)
from millstream.servers.kafka.request_context import RequestContext

NO_ACLS = "this node has no ACLs: every client that can connect may do everything"

E = TypeVar("E", bound=enum.IntEnum)


def describe_acls(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """Return the ACLs that a filter selects, by resource."""
    if (access := context.access) is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)
    try:
        context.require_cluster()
        selected = access.acls(_filter_of(request))
    except MillstreamError as error:
        return DescribeAclsResponse(
            throttle_time_ms=context.throttle_ms,
            error_code=code_of(error),
            error_message=str(error),
        )
    return DescribeAclsResponse(
        throttle_time_ms=context.throttle_ms,
        resources=tuple(
            DescribeAclsResponseResource(
                resource_type=pattern.kind,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=tuple(
                    DescribeAclsResponseAcl(
                        principal=str(acl.principal),
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ),
            )
            for pattern, acls in groupby(selected, key=lambda acl: acl.pattern)
        ),
    )


async def create_acls(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create ACLs, each on its own."""
    if (access := context.access) is None:
        refused = CreateAclsResponseResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS
        )
        return CreateAclsResponse(results=(refused,) * len(request.creations))
    results = []
    for creation in request.creations:
        code, message = ErrorCode.NONE, None
        try:
            context.require_cluster()
            await access.create_acl(_acl_of(creation), by=context.caller)
        except MillstreamError as error:
            code, message = code_of(error), str(error)
        results.append(CreateAclsResponseResult(error_code=code, error_message=message))
    return CreateAclsResponse(throttle_time_ms=context.throttle_ms, results=tuple(results))


async def delete_acls(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Delete the ACLs that each filter selects."""
    if (access := context.access) is None:
        refused = DeleteAclsResponseFilter(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS
        )
        return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))
    return DeleteAclsResponse(
        throttle_time_ms=context.throttle_ms,
        filter_results=tuple(
            [await _delete_selected(wanted, access, context) for wanted in request.filters]
        ),
    )


async def _delete_selected(
    wanted: DeleteAclsRequestFilter, access: Access, context: RequestContext
) -> DeleteAclsResponseFilter:
    try:
        context.require_cluster()
        selected: Sequence[Acl] = access.acls(_filter_of(wanted))
    except MillstreamError as error:
        return DeleteAclsResponseFilter(error_code=code_of(error), error_message=str(error))
    results = []
    for acl in selected:
        code, message = ErrorCode.NONE, None
        try:
            await access.delete_acl(acl, by=context.caller)
        except MillstreamError as error:
            code, message = code_of(error), str(error)
        results.append(
            DeleteAclsResponseAcl(
                error_code=code,
                error_message=message,
                resource_type=acl.pattern.kind,
                resource_name=acl.pattern.name,
                pattern_type=acl.pattern.pattern_type,
                principal=str(acl.principal),
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DeleteAclsResponseFilter(matching_acls=tuple(results))


def _acl_of(creation: CreateAclsRequestAcl) -> Acl:
    pattern = ResourcePattern(
        _member(ResourceType, creation.resource_type, "resource type"),
        creation.resource_name,
        _member(PatternType, creation.resource_pattern_type, "pattern type"),
    )
    return Acl(
        pattern,
        parse_principal(creation.principal),
        creation.host,
        _member(Operation, creation.operation, "operation"),
        _member(Permission, creation.permission_type, "permission"),
    )


def _filter_of(wanted: DescribeAclsRequest | DeleteAclsRequestFilter) -> AclFilter:
    return AclFilter(
        kind=_member(ResourceType, wanted.resource_type_filter, "resource type"),
        name=wanted.resource_name_filter,
        pattern_type=_member(PatternType, wanted.pattern_type_filter, "pattern type"),
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=_member(Operation, wanted.operation, "operation"),
        permission=_member(Permission, wanted.permission_type, "permission"),
    )


def _member(kind: type[E], number: int, name: str) -> E:
    try:
        return kind(number)
    except ValueError:
        allowed = ", ".join(f"{member.value} {member.name}" for member in kind)
        raise InvalidRequest(f"{name} must be one of {allowed}, got {number}") from None

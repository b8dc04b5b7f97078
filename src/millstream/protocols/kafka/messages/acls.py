"""ACLs."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
)

DESCRIBE_ACLS = Versions(first=1, last=3, flexible=2)
CREATE_ACLS = Versions(first=1, last=3, flexible=2)
DELETE_ACLS = Versions(first=1, last=3, flexible=2)


@message(DESCRIBE_ACLS)
class DescribeAclsRequest:
    """Ask for the ACLs that match a filter."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(NULLABLE_STRING, default=None)
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(NULLABLE_STRING, default=None)
    host_filter: str | None = wire(NULLABLE_STRING, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@struct
class DescribeAclsResponseAcl:
    """One ACL."""

    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@struct
class DescribeAclsResponseResource:
    """The ACLs of one resource."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    acls: tuple[DescribeAclsResponseAcl, ...] = wire(ARRAY(DescribeAclsResponseAcl), default=())


@message(DESCRIBE_ACLS)
class DescribeAclsResponse:
    """The ACLs that match."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    resources: tuple[DescribeAclsResponseResource, ...] = wire(
        ARRAY(DescribeAclsResponseResource), default=()
    )


@struct
class CreateAclsRequestAcl:
    """One ACL to create."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    resource_pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message(CREATE_ACLS)
class CreateAclsRequest:
    """Create ACLs."""

    creations: tuple[CreateAclsRequestAcl, ...] = wire(ARRAY(CreateAclsRequestAcl))


@struct
class CreateAclsResponseResult:
    """Result for one ACL."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@message(CREATE_ACLS)
class CreateAclsResponse:
    """Results for all ACLs."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[CreateAclsResponseResult, ...] = wire(
        ARRAY(CreateAclsResponseResult), default=()
    )


@struct
class DeleteAclsRequestFilter:
    """One filter."""

    resource_type_filter: int = wire(INT8)
    resource_name_filter: str | None = wire(NULLABLE_STRING, default=None)
    pattern_type_filter: int = wire(INT8, default=3)
    principal_filter: str | None = wire(NULLABLE_STRING, default=None)
    host_filter: str | None = wire(NULLABLE_STRING, default=None)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@message(DELETE_ACLS)
class DeleteAclsRequest:
    """Delete the ACLs that match any of these filters."""

    filters: tuple[DeleteAclsRequestFilter, ...] = wire(ARRAY(DeleteAclsRequestFilter))


@struct
class DeleteAclsResponseAcl:
    """One ACL that matched, and whether it was deleted."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8, default=3)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@struct
class DeleteAclsResponseFilter:
    """The ACLs that one filter matched."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    matching_acls: tuple[DeleteAclsResponseAcl, ...] = wire(
        ARRAY(DeleteAclsResponseAcl), default=()
    )


@message(DELETE_ACLS)
class DeleteAclsResponse:
    """Results for all filters."""

    throttle_time_ms: int = wire(INT32, default=0)
    filter_results: tuple[DeleteAclsResponseFilter, ...] = wire(
        ARRAY(DeleteAclsResponseFilter), default=()
    )

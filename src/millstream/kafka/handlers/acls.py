"""Rules about who may do what: there are none, and clients are told so."""

from __future__ import annotations

from millstream.kafka.context import Context
from millstream.wire.error_codes import ErrorCode
from millstream.wire.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreateAclsResponseResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilter,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

NO_RULES = "this node keeps no rules about who may do what: everyone who reaches it may do all"


def describe_acls(_: DescribeAclsRequest, __: Context) -> DescribeAclsResponse:
    """Say that there are no rules."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_RULES)


def create_acls(request: CreateAclsRequest, _: Context) -> CreateAclsResponse:
    """Refuse each rule."""
    refused = CreateAclsResponseResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_RULES
    )
    return CreateAclsResponse(results=(refused,) * len(request.creations))


def delete_acls(request: DeleteAclsRequest, _: Context) -> DeleteAclsResponse:
    """Say to each pattern that there are no rules."""
    refused = DeleteAclsResponseFilter(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_RULES
    )
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))

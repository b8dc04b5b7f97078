"""ACL requests. There are no ACLs, and clients are told so."""

from __future__ import annotations

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreateAclsResponseResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilter,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from millstream.servers.kafka.request_context import RequestContext

NO_ACLS = "this node has no ACLs: every client that can connect may do everything"


def describe_acls(_: DescribeAclsRequest, __: RequestContext) -> DescribeAclsResponse:
    """Answer that there are no ACLs."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)


def create_acls(request: CreateAclsRequest, _: RequestContext) -> CreateAclsResponse:
    """Reject each ACL."""
    refused = CreateAclsResponseResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS
    )
    return CreateAclsResponse(results=(refused,) * len(request.creations))


def delete_acls(request: DeleteAclsRequest, _: RequestContext) -> DeleteAclsResponse:
    """Answer for each filter that no ACL matches."""
    refused = DeleteAclsResponseFilter(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS
    )
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))

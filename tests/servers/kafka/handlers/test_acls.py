"""DescribeAcls, CreateAcls and DeleteAcls: there are no ACLs, and clients get an error."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsRequestAcl,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DescribeAclsRequest,
)
from millstream.servers.kafka.handlers.acls import NO_ACLS, create_acls, delete_acls, describe_acls
from tests.in_loop import in_loop
from tests.servers.kafka.socketless import open_handler_node

REFUSED = (ErrorCode.SECURITY_DISABLED, NO_ACLS)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_are_no_rules(version):
    @in_loop
    async def run() -> None:
        async with open_handler_node() as node:
            request = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
            shown = await node.ask(describe_acls, request, version=version)
            assert (shown.error_code, shown.error_message, shown.resources) == (*REFUSED, ())
            rule = CreateAclsRequestAcl(
                resource_type=2,
                resource_name="a",
                principal="User:u",
                host="*",
                operation=3,
                permission_type=3,
            )
            created = await node.ask(
                create_acls, CreateAclsRequest(creations=(rule,) * 3), version=version
            )
            found = [(result.error_code, result.error_message) for result in created.results]
            assert found == [REFUSED] * 3
            pattern = DeleteAclsRequestFilter(
                resource_type_filter=1, operation=1, permission_type=1
            )
            deleted = await node.ask(
                delete_acls, DeleteAclsRequest(filters=(pattern,) * 2), version=version
            )
            found = [(result.error_code, result.error_message) for result in deleted.filter_results]
            assert found == [REFUSED] * 2

    run()

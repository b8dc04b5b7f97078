"""Who did what to a node with logins: each action is one line of its log, also after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.protocols.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsRequestAcl,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
)
from millstream.protocols.kafka.messages.groups import HeartbeatRequest
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestDeletion,
)
from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
)
from tests.cli.nodes import wait_until
from tests.crash.secured_node import TOPIC, SecuredNode
from tests.servers.kafka.client import RawClient

AUDITED = "millstream.broker.access.access"
ACL = {"user": "carol", "operation": "read", "resource_type": "topic", "resource": "x"}
EVERYTHING = {"user": "user-2", "operation": "all", "resource_type": "cluster"}
Action = Callable[[], object]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecuredNode]:
    node = SecuredNode(tmp_path)
    node.start()
    yield node
    node.process.close()


def lines(node: SecuredNode) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in node.process.said().splitlines()]
    return [event for event in events if event["logger"] == AUDITED]


class Audit:
    """Does one action after the other, and knows the line of each."""

    def __init__(self, node: SecuredNode) -> None:
        self.node = node
        self.told: list[str] = []
        # The log is written beside the requests: what was said before this is there with it.
        node.ask("GET", "/v1/topics", authorization=f"Bearer ms_{'f' * 12}_{'A' * 32}")
        wait_until(lambda: any(line.get("token") == "f" * 12 for line in lines(node)))
        self._count = len(lines(node))

    def expect(self, action: Action, event: str, **fields: str) -> None:
        """Fail unless an action adds just one line, of the event and with the fields."""
        action()
        wait_until(lambda: len(lines(self.node)) > self._count)
        new = lines(self.node)[self._count :]
        assert len(new) == 1, new
        assert new[0]["event"] == event, new
        assert {name: new[0].get(name) for name in fields} == fields
        assert new[0]["host"] == "127.0.0.1"
        self._count += 1
        self.told.append(event)


def test_each_of_twenty_actions_is_one_line_that_survives_a_kill(node: SecuredNode) -> None:
    node.make_secrets()
    node.as_admin("POST", "/v1/access/acls", EVERYTHING | {"resource": "kafka-cluster"})
    password = node.passwords["user-2"]
    carol = node.tokens[3]
    audit = Audit(node)
    expect, admin = audit.expect, node.as_admin

    def by_token(path: str, method: str = "GET", body: Any = None) -> Action:
        return lambda: node.ask(method, path, body, authorization=f"Bearer {carol}")

    # Logins.
    expect(by_token("/v1/access/whoami"), "logged in", principal="User:user-3", method="token")
    bad = f"Bearer ms_{'0' * 12}_{'A' * 32}"
    expect(lambda: node.ask("GET", "/v1/topics", authorization=bad), "a login failed")
    with RawClient(node.process.bootstrap) as client:
        expect(
            lambda: node.scram(client, "user-2", "wrong"),
            "a login failed", user="user-2", method="SCRAM-SHA-256",
        )  # fmt: skip
    with RawClient(node.process.bootstrap) as client:
        expect(lambda: node.plain(client, "nobody", "x"), "a login failed", user="nobody")
    with RawClient(node.process.bootstrap) as client:
        expect(lambda: node.plain(client, "user-2", password), "logged in", method="PLAIN")
    client = RawClient(node.process.bootstrap)
    expect(lambda: node.scram(client, "user-2", password), "logged in", method="SCRAM-SHA-256")

    # Refusals.
    refused = "access was refused"
    expect(by_token("/v1/topics/payroll"), refused, resource="topic 'payroll'")
    expect(by_token("/v1/groups/g"), refused, resource="group 'g'", operation="describe")
    expect(by_token("/metrics"), refused, resource="the cluster", principal="User:user-3")
    expect(lambda: node.ask("GET", "/v1/node"), refused, principal="User:ANONYMOUS")
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    expect(lambda: client.call(beat), refused, resource="group 'g'", operation="read")
    begin = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
    expect(lambda: client.call(begin), refused, resource="transactional id 't'")

    # Changes of rights and logins.
    expect(lambda: admin("POST", "/v1/access/acls", ACL), "acl was created", principal="User:admin")
    expect(lambda: admin("DELETE", "/v1/access/acls", ACL), "acl was deleted")
    creation = CreateAclsRequestAcl(
        resource_type=2, resource_name="x", resource_pattern_type=3, principal="User:carol",
        host="*", operation=3, permission_type=3,
    )  # fmt: skip
    expect(
        lambda: client.call(CreateAclsRequest(creations=(creation,))),
        "acl was created", principal="User:user-2",
    )  # fmt: skip
    wanted = DeleteAclsRequestFilter(
        resource_type_filter=2, resource_name_filter="x", pattern_type_filter=3,
        principal_filter="User:carol", host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    expect(lambda: client.call(DeleteAclsRequest(filters=(wanted,))), "acl was deleted")
    made: list[Any] = []
    body = {"user": "dave"}
    expect(
        lambda: made.append(admin("POST", "/v1/access/tokens", body)),
        "token was created", of="User:dave",
    )  # fmt: skip
    token_id = made[0]["id"]
    expect(
        lambda: admin("DELETE", f"/v1/access/tokens/{token_id}"),
        "token was revoked", token=token_id,
    )  # fmt: skip
    deletion = AlterUserScramCredentialsRequestDeletion(name="user-9", mechanism=1)
    alter = AlterUserScramCredentialsRequest(deletions=(deletion,), upsertions=())
    expect(lambda: client.call(alter), "user was deleted", user="user-9", principal="User:user-2")

    # Changes of what is stored.
    changed = "topic was changed"
    new = CreateTopicsRequestTopic(
        name="y", num_partitions=1, replication_factor=-1, assignments=(), configs=()
    )
    expect(
        lambda: client.call(CreateTopicsRequest(topics=(new,), timeout_ms=1000)),
        changed, resource="topic 'y'", operation="create", principal="User:user-2",
    )  # fmt: skip
    configs = {"configs": {"retention.ms": "60000"}}
    expect(
        lambda: admin("PUT", f"/v1/topics/{TOPIC}", configs),
        changed, resource=f"topic '{TOPIC}'", operation="alter_configs",
    )  # fmt: skip
    expect(lambda: admin("DELETE", "/v1/topics/y"), changed, operation="delete")
    quota = {"client_id": "c", "rates": {"producer_byte_rate": 1e9}}
    expect(lambda: admin("PUT", "/v1/quotas", quota), "cluster was changed")
    gone = DeleteTopicsRequestTopic(name="absent")
    expect(
        lambda: client.call(DeleteTopicsRequest(topics=(gone,), timeout_ms=1000)),
        refused, operation="delete", principal="User:user-2",
    )  # fmt: skip
    client.socket.close()
    assert len(audit.told) >= 20
    before = lines(node)
    node.process.kill()
    assert lines(node) == before

"""The gate: what it decides, and how soon changes of rules and credentials take effect."""

from __future__ import annotations

import json
import logging

import pytest

from millstream.broker.access.access import Access
from millstream.broker.access.acls import Acl, AclFilter, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramCredential, ScramMechanism
from millstream.broker.access.principal import ANONYMOUS, NODE, Principal, user
from millstream.broker.access.resources import (
    CLUSTER,
    Operation,
    PatternType,
    ResourceType,
    group,
    topic,
)
from millstream.broker.access.rows import acl_key, encode_acl
from millstream.broker.access.tokens import Scope
from millstream.errors import (
    ClusterAccessDenied,
    GroupAccessDenied,
    InvalidRequest,
    NotAuthenticated,
    TopicAccessDenied,
    UnknownCredential,
    UnknownTopic,
)
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from millstream.testing.memory_metadata import MetadataServer
from tests.in_loop import in_loop

ADMIN = Caller(user("root"), "127.0.0.1")
ALICE = user("alice")
HOST = "10.0.0.7"


def allow(operation, name="orders", *, kind=ResourceType.TOPIC, permission=Permission.ALLOW):
    return Acl(ResourcePattern(kind, name), ALICE, "*", operation, permission)


class Nodes:
    """Two nodes that share metadata."""

    def __init__(self, **settings) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.server = MetadataServer(self.timers)
        self.settings = settings
        self.connections = []

    async def open(self) -> Access:
        connection = self.server.connect()
        self.connections.append(connection)
        access = Access(
            connection, clock=self.clock, timers=self.timers, super_users=("root",), **self.settings
        )
        await access.open()
        return access


@in_loop
async def test_a_caller_may_do_what_an_acl_allows_until_it_is_deleted():
    access = await Nodes().open()
    alice = Caller(ALICE, HOST)
    assert not access.check(alice, Operation.READ, topic("orders"))
    await access.create_acl(allow(Operation.READ), by=ADMIN)
    assert access.check(alice, Operation.READ, topic("orders"))
    await access.delete_acl(allow(Operation.READ), by=ADMIN)
    assert not access.check(alice, Operation.READ, topic("orders"))


@in_loop
async def test_a_change_at_one_node_holds_at_the_others():
    nodes = Nodes()
    first, second = await nodes.open(), await nodes.open()
    alice = Caller(ALICE, HOST)
    assert not second.check(alice, Operation.READ, topic("orders"))
    await first.create_acl(allow(Operation.READ), by=ADMIN)
    assert second.check(alice, Operation.READ, topic("orders"))
    _, text = await first.create_token(ALICE, by=ADMIN)
    caller = second.log_in_by_token(text, HOST)
    assert second.is_current(caller)
    changes = []
    second.on_change.append(lambda: changes.append(second.is_current(caller)))
    await first.revoke_token(caller.token.id, by=ADMIN)
    assert changes == [False], "connections of the token learn that they have to be closed"
    with pytest.raises(NotAuthenticated):
        second.log_in_by_token(text, HOST)


@in_loop
async def test_rules_and_credentials_survive_a_restart():
    nodes = Nodes()
    access = await nodes.open()
    credential = ScramCredential(
        iterations=4096, salt=b"s" * 16, stored_key=b"k" * 32, server_key=b"v" * 32
    )
    await access.create_acl(allow(Operation.READ), by=ADMIN)
    await access.create_acl(
        allow(Operation.READ, "a b/c%\u00e9", kind=ResourceType.GROUP), by=ADMIN
    )
    token, text = await access.create_token(
        ALICE, by=ADMIN, lifetime_ms=5000, scopes=frozenset({Scope.READ}), prefixes=("o",), note="x"
    )
    await access.put_scram("alice/\u00e9", ScramMechanism.SHA_256, credential, by=ADMIN)
    again = await nodes.open()
    assert list(again.acls()) == list(access.acls())
    assert list(again.tokens()) == [token]
    assert again.log_in_by_token(text, HOST).token == token
    assert again.users() == ["alice/\u00e9"]
    assert again.scram_of("alice/\u00e9") == {ScramMechanism.SHA_256: credential}


@in_loop
async def test_no_secret_is_stored_logged_or_shown(caplog):
    caplog.set_level(logging.DEBUG)
    nodes = Nodes()
    access = await nodes.open()
    token, text = await access.create_token(ALICE, by=ADMIN)
    caller = access.log_in_by_token(text, HOST)
    with pytest.raises(NotAuthenticated) as refused:
        access.log_in_by_token(text[:-1] + ("A" if text[-1] != "A" else "B"), HOST)
    secret = text.split("_", 2)[2]
    stored = [entry.value for entry in await nodes.connections[0].list("")]
    shown = f"{token!r} {caller!r} {refused.value} {caplog.records!r}"
    for place in (*map(bytes.decode, stored), caplog.text, shown):
        assert secret not in place
        assert secret[:-1] not in place


@in_loop
async def test_a_token_expires_and_its_connections_are_told():
    nodes = Nodes()
    access = await nodes.open()
    _, text = await access.create_token(ALICE, by=ADMIN, lifetime_ms=60_000)
    caller = access.log_in_by_token(text, HOST)
    told = []
    access.on_change.append(lambda: told.append(access.is_current(caller)))
    nodes.timers.advance(59)
    assert access.is_current(caller)
    assert not told
    nodes.timers.advance(1)
    assert told[-1] is False
    with pytest.raises(NotAuthenticated):
        access.log_in_by_token(text, HOST)


@in_loop
async def test_a_token_narrows_the_rights_of_its_user():
    access = await Nodes().open()
    await access.create_acl(allow(Operation.ALL), by=ADMIN)
    _, text = await access.create_token(ALICE, by=ADMIN, scopes=frozenset({Scope.READ}))
    reader = access.log_in_by_token(text, HOST)
    assert access.check(reader, Operation.READ, topic("orders"))
    assert not access.check(reader, Operation.WRITE, topic("orders"))
    assert not access.check_some(reader, Operation.WRITE, ResourceType.TOPIC)
    assert not access.check(reader, Operation.READ, topic("other")), "it adds no right"
    _, text = await access.create_token(user("root"), by=ADMIN, scopes=frozenset({Scope.READ}))
    root = access.log_in_by_token(text, HOST)
    assert not access.check(root, Operation.WRITE, topic("orders")), "a super user's too"
    assert access.check(root, Operation.READ, topic("anything"))


@in_loop
async def test_super_users_and_nodes_may_do_everything():
    access = await Nodes().open()
    for principal in (user("root"), Principal(NODE, "2")):
        caller = Caller(principal, HOST)
        assert access.check(caller, Operation.ALTER, CLUSTER)
        assert access.check_some(caller, Operation.WRITE, ResourceType.TOPIC)
    assert not access.check(Caller(Principal("Other", "root"), HOST), Operation.ALTER, CLUSTER)


@in_loop
async def test_open_reads_need_no_login_and_writes_do():
    access = await Nodes(are_reads_open=True).open()
    nobody = Caller(ANONYMOUS, HOST)
    assert access.check(nobody, Operation.READ, topic("orders"))
    assert access.check(nobody, Operation.DESCRIBE, group("g"))
    assert not access.check(nobody, Operation.READ, group("g")), "a commit is a write"
    assert not access.check(nobody, Operation.WRITE, topic("orders"))
    assert not access.check(nobody, Operation.ALTER, CLUSTER)
    assert not access.check(nobody, Operation.DESCRIBE, CLUSTER), "it lists users and ACLs"
    await access.create_acl(
        Acl(
            ResourcePattern(ResourceType.TOPIC, "sec", PatternType.PREFIXED),
            user("*"),
            "*",
            Operation.READ,
            Permission.DENY,
        ),
        by=ADMIN,
    )
    assert not access.check(nobody, Operation.READ, topic("secret"))


@in_loop
async def test_a_topic_that_one_may_not_describe_looks_absent():
    access = await Nodes().open()
    alice = Caller(ALICE, HOST)
    with pytest.raises(UnknownTopic, match=r"^topic 'orders' does not exist$"):
        access.require(alice, Operation.READ, topic("orders"))
    await access.create_acl(allow(Operation.DESCRIBE), by=ADMIN)
    with pytest.raises(TopicAccessDenied, match="User:alice may not read topic 'orders'"):
        access.require(alice, Operation.READ, topic("orders"))
    with pytest.raises(GroupAccessDenied, match="may not read group 'g'"):
        access.require(alice, Operation.READ, group("g"))
    with pytest.raises(ClusterAccessDenied, match="may not alter configs the cluster"):
        access.require(alice, Operation.ALTER_CONFIGS, CLUSTER)


@in_loop
async def test_a_refusal_is_logged_once_per_caller_and_counted_each_time(caplog):
    access = await Nodes().open()
    alice = Caller(ALICE, HOST)
    for _ in range(3):
        with pytest.raises(UnknownTopic):
            access.require(alice, Operation.READ, topic("orders"))
    refused = [r for r in caplog.records if r.message == "access was refused"]
    assert [(r.principal, r.host, r.operation, r.resource) for r in refused] == [
        ("User:alice", HOST, "read", "topic 'orders'")
    ]
    assert access.counters.refusals == {"topic": 3}


@in_loop
async def test_changes_and_logins_are_logged_with_who_made_them(caplog):
    caplog.set_level(logging.INFO)
    access = await Nodes().open()
    await access.create_acl(allow(Operation.READ), by=ADMIN)
    token, text = await access.create_token(ALICE, by=ADMIN)
    access.log_in_by_token(text, HOST)
    access.log_in_by_token(text, HOST)
    await access.revoke_token(token.id, by=ADMIN)
    events = [(r.message, getattr(r, "principal", None)) for r in caplog.records]
    assert events == [
        ("acl was created", "User:root"),
        ("token was created", "User:root"),
        ("logged in", "User:alice"),
        ("token was revoked", "User:root"),
    ]


@pytest.mark.parametrize("value", [b"", b"{}", b"nonsense", b'{"version": 2}', "future"])
@in_loop
async def test_an_acl_that_cannot_be_read_closes_the_gate(value):
    """It may deny something."""
    nodes = Nodes()
    access = await nodes.open()
    alice = Caller(ALICE, HOST)
    await access.create_acl(allow(Operation.READ), by=ADMIN)
    acl = allow(Operation.WRITE, permission=Permission.DENY)
    if value == "future":
        value = json.dumps({**json.loads(encode_acl(acl)), "version": 2}).encode()
    await nodes.connections[0].transact(puts={acl_key(acl): value})
    assert not access.check(alice, Operation.READ, topic("orders"))
    assert access.check(ADMIN, Operation.READ, topic("orders")), "someone has to mend it"
    await nodes.connections[0].transact(deletes=[acl_key(acl)])
    assert access.check(alice, Operation.READ, topic("orders"))


@in_loop
async def test_a_password_that_was_changed_ends_the_logins_with_the_old_one():
    access = await Nodes().open()
    old, new = (
        ScramCredential(iterations=4096, salt=salt, stored_key=b"k", server_key=b"v")
        for salt in (b"1", b"2")
    )
    await access.put_scram("alice", ScramMechanism.SHA_512, old, by=ADMIN)
    caller = Caller(ALICE, HOST, credential=old)
    assert access.is_current(caller)
    await access.put_scram("alice", ScramMechanism.SHA_512, new, by=ADMIN)
    assert not access.is_current(caller)
    await access.delete_scram("alice", ScramMechanism.SHA_512, by=ADMIN)
    with pytest.raises(UnknownCredential):
        await access.delete_scram("alice", ScramMechanism.SHA_512, by=ADMIN)


@in_loop
async def test_a_late_report_of_an_own_change_does_not_bring_back_what_was_deleted():
    nodes = Nodes()
    access = await nodes.open()
    acl = allow(Operation.READ)
    await access.create_acl(acl, by=ADMIN)
    made = (await nodes.connections[0].list("access/"))[0]
    await nodes.connections[0].transact(deletes=[acl_key(acl)])
    access._follow(made.key, made.value, made.revision)
    assert list(access.acls(AclFilter())) == []


@in_loop
async def test_unknown_tokens_are_refused():
    access = await Nodes().open()
    for text in ("", "ms_000000000000_" + "A" * 32, "Basic xyz"):
        with pytest.raises(NotAuthenticated, match="the token is not valid"):
            access.log_in_by_token(text, HOST)
    with pytest.raises(UnknownCredential):
        await access.revoke_token("0" * 12, by=ADMIN)
    with pytest.raises(InvalidRequest):
        await access.create_token(ALICE, by=ADMIN, lifetime_ms=0)


@in_loop
async def test_a_login_of_a_super_user_is_made_by_super_users_only():
    access = await Nodes().open()
    everything = Acl(
        ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"), ALICE, "*", Operation.ALL,
        Permission.ALLOW,
    )  # fmt: skip
    await access.create_acl(everything, by=ADMIN)
    alice = Caller(ALICE, HOST)
    assert access.check(alice, Operation.ALTER, CLUSTER)
    credential = ScramCredential(
        iterations=4096, salt=b"s" * 16, stored_key=b"k" * 32, server_key=b"v" * 32
    )
    with pytest.raises(ClusterAccessDenied, match="only a super user can change the password of"):
        await access.put_scram("root", ScramMechanism.SHA_256, credential, by=alice)
    with pytest.raises(ClusterAccessDenied, match="only a super user can create a token of"):
        await access.create_token(user("root"), by=alice)
    assert (access.users(), access.tokens()) == ([], [])
    await access.put_scram("Root", ScramMechanism.SHA_256, credential, by=alice)
    assert not access.check(Caller(user("Root"), HOST), Operation.READ, topic("orders"))
    await access.put_scram("root", ScramMechanism.SHA_256, credential, by=ADMIN)

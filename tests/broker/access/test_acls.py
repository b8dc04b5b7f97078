"""What ACLs allow and deny."""

from __future__ import annotations

import pytest

from millstream.broker.access.acls import (
    Acl,
    AclFilter,
    Acls,
    Permission,
    ResourcePattern,
    check_acl,
)
from millstream.broker.access.principal import ANONYMOUS, Principal, parse_principal, user
from millstream.broker.access.resources import (
    CLUSTER,
    CLUSTER_NAME,
    OPERATIONS,
    Operation,
    PatternType,
    ResourceType,
    group,
    topic,
)
from millstream.errors import InvalidRequest

ALICE, BOB = user("alice"), user("bob")
HOST = "10.0.0.7"


def rule(
    operation=Operation.READ,
    name="orders",
    *,
    kind=ResourceType.TOPIC,
    pattern_type=PatternType.LITERAL,
    principal=ALICE,
    host="*",
    permission=Permission.ALLOW,
):
    pattern = ResourcePattern(kind, name, pattern_type)
    return Acl(pattern, principal, host, operation, permission)


def test_what_no_rule_allows_is_denied():
    acls = Acls([rule(Operation.READ)])
    assert acls.allows(ALICE, HOST, Operation.READ, topic("orders"))
    assert not acls.allows(BOB, HOST, Operation.READ, topic("orders"))
    assert not acls.allows(ALICE, HOST, Operation.WRITE, topic("orders"))
    assert not acls.allows(ALICE, HOST, Operation.READ, topic("orders2"))
    assert not acls.allows(ALICE, HOST, Operation.READ, group("orders"))
    assert not Acls().allows(ALICE, HOST, Operation.DESCRIBE, CLUSTER)


def test_a_rule_that_denies_precedes_all_that_allow():
    acls = Acls(
        [
            rule(Operation.ALL, "*"),
            rule(
                Operation.READ, "sec", pattern_type=PatternType.PREFIXED, permission=Permission.DENY
            ),
        ]
    )
    assert not acls.allows(ALICE, HOST, Operation.READ, topic("secrets"))
    assert acls.allows(ALICE, HOST, Operation.WRITE, topic("secrets"))
    assert acls.allows(ALICE, HOST, Operation.READ, topic("se"))


@pytest.mark.parametrize(
    ("pattern_type", "name", "matched", "others"),
    [
        (PatternType.LITERAL, "a", ["a"], ["ab", "b", "", "A"]),
        (PatternType.PREFIXED, "ab", ["ab", "abc"], ["a", "b", "xab"]),
        (PatternType.LITERAL, "*", ["a", "*", "anything"], []),
        (PatternType.PREFIXED, "*", ["*", "*a"], ["a"]),
    ],
)
def test_a_pattern_matches_literally_by_prefix_or_everything(pattern_type, name, matched, others):
    acls = Acls([rule(name=name, pattern_type=pattern_type)])
    for resource in matched:
        assert acls.allows(ALICE, HOST, Operation.READ, topic(resource)), resource
    for resource in others:
        assert not acls.allows(ALICE, HOST, Operation.READ, topic(resource)), resource


@pytest.mark.parametrize(
    "operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
)
def test_a_right_includes_that_to_describe(operation):
    acls = Acls([rule(operation)])
    assert acls.allows(ALICE, HOST, Operation.DESCRIBE, topic("orders"))
    assert not acls.allows(ALICE, HOST, Operation.DESCRIBE_CONFIGS, topic("orders"))


def test_altering_configs_includes_describing_them_and_nothing_else():
    acls = Acls([rule(Operation.ALTER_CONFIGS)])
    assert acls.allows(ALICE, HOST, Operation.DESCRIBE_CONFIGS, topic("orders"))
    assert not acls.allows(ALICE, HOST, Operation.DESCRIBE, topic("orders"))


def test_describing_includes_nothing_and_creating_does_not_include_it():
    acls = Acls([rule(Operation.DESCRIBE), rule(Operation.CREATE, "new")])
    allowed = [
        op for op in OPERATIONS[ResourceType.TOPIC] if acls.allows(ALICE, HOST, op, topic("orders"))
    ]
    assert allowed == [Operation.DESCRIBE]
    assert not acls.allows(ALICE, HOST, Operation.DESCRIBE, topic("new"))


def test_denying_to_describe_does_not_deny_to_read():
    acls = Acls([rule(Operation.READ), rule(Operation.DESCRIBE, permission=Permission.DENY)])
    assert acls.allows(ALICE, HOST, Operation.READ, topic("orders"))
    assert not acls.allows(ALICE, HOST, Operation.DESCRIBE, topic("orders"))


def test_a_rule_for_one_host_applies_there_only():
    acls = Acls(
        [
            rule(host=HOST),
            rule(Operation.WRITE),
            rule(Operation.WRITE, host="10.0.0.8", permission=Permission.DENY),
        ]
    )
    assert acls.allows(ALICE, HOST, Operation.READ, topic("orders"))
    assert not acls.allows(ALICE, "10.0.0.8", Operation.READ, topic("orders"))
    assert not acls.allows(ALICE, "10.0.0.8", Operation.WRITE, topic("orders"))


def test_every_user_is_everyone_who_has_logged_in():
    everyone = Acls([rule(principal=user("*"))])
    assert everyone.allows(BOB, HOST, Operation.READ, topic("orders"))
    assert not everyone.allows(ANONYMOUS, HOST, Operation.READ, topic("orders"))
    assert not everyone.allows(Principal("Node", "1"), HOST, Operation.READ, topic("orders"))
    named = Acls([rule(principal=ANONYMOUS)])
    assert named.allows(ANONYMOUS, HOST, Operation.READ, topic("orders"))
    denied = Acls(
        [rule(principal=ANONYMOUS), rule(principal=user("*"), permission=Permission.DENY)]
    )
    assert not denied.allows(ANONYMOUS, HOST, Operation.READ, topic("orders"))


@pytest.mark.parametrize(
    ("rules", "is_allowed"),
    [
        ([], False),
        ([rule(Operation.WRITE)], True),
        ([rule(Operation.READ)], False),
        ([rule(Operation.WRITE), rule(Operation.WRITE, permission=Permission.DENY)], False),
        ([rule(Operation.WRITE, "*"), rule(Operation.WRITE, permission=Permission.DENY)], True),
        ([rule(Operation.ALL), rule(Operation.ALL, "*", permission=Permission.DENY)], False),
        (
            [
                rule(Operation.WRITE, "ab", pattern_type=PatternType.PREFIXED),
                rule(
                    Operation.WRITE,
                    "a",
                    pattern_type=PatternType.PREFIXED,
                    permission=Permission.DENY,
                ),
            ],
            False,
        ),
        (
            [
                rule(Operation.WRITE, "a", pattern_type=PatternType.PREFIXED),
                rule(
                    Operation.WRITE,
                    "ab",
                    pattern_type=PatternType.PREFIXED,
                    permission=Permission.DENY,
                ),
            ],
            True,
        ),
        (
            [
                rule(Operation.WRITE, "*"),
                rule(
                    Operation.WRITE,
                    "*",
                    pattern_type=PatternType.PREFIXED,
                    permission=Permission.DENY,
                ),
            ],
            True,
        ),
    ],
)
def test_some_resource_of_a_type_is_one_that_no_rule_denies(rules, is_allowed):
    acls = Acls(rules)
    assert acls.allows_some(ALICE, HOST, Operation.WRITE, ResourceType.TOPIC) is is_allowed
    assert not acls.allows_some(BOB, HOST, Operation.WRITE, ResourceType.TOPIC)
    assert not acls.allows_some(ALICE, HOST, Operation.WRITE, ResourceType.GROUP)


def test_a_removed_rule_has_no_effect_and_others_keep_theirs():
    read, write = rule(Operation.READ), rule(Operation.WRITE)
    acls = Acls([read, write, read])
    assert len(acls) == 2
    acls.remove(read)
    acls.remove(read)
    assert list(acls) == [write]
    assert not acls.allows(ALICE, HOST, Operation.READ, topic("orders"))
    assert acls.allows(ALICE, HOST, Operation.WRITE, topic("orders"))


def test_a_prefix_holds_as_long_as_one_rule_has_it():
    read = rule(Operation.READ, "or", pattern_type=PatternType.PREFIXED)
    write = rule(Operation.WRITE, "or", pattern_type=PatternType.PREFIXED)
    acls = Acls([read, write])
    acls.remove(read)
    assert acls.allows(ALICE, HOST, Operation.WRITE, topic("orders"))
    acls.remove(write)
    assert not acls.allows(ALICE, HOST, Operation.WRITE, topic("orders"))
    acls.add(read)
    assert acls.allows(ALICE, HOST, Operation.READ, topic("orders"))


LITERAL = rule(name="orders")
PREFIXED = rule(name="ord", pattern_type=PatternType.PREFIXED)
WILD = rule(name="*", principal=BOB)
OTHER = rule(kind=ResourceType.GROUP, name="orders", host=HOST)


@pytest.mark.parametrize(
    ("wanted", "selected"),
    [
        (AclFilter(), [LITERAL, PREFIXED, WILD, OTHER]),
        (AclFilter(kind=ResourceType.GROUP), [OTHER]),
        (AclFilter(name="orders"), [LITERAL, OTHER]),
        (
            AclFilter(name="orders", pattern_type=PatternType.MATCH),
            [LITERAL, PREFIXED, WILD, OTHER],
        ),
        (AclFilter(name="ord", pattern_type=PatternType.MATCH), [PREFIXED, WILD]),
        (AclFilter(pattern_type=PatternType.PREFIXED), [PREFIXED]),
        (AclFilter(name="ord", pattern_type=PatternType.LITERAL), []),
        (AclFilter(principal="User:bob"), [WILD]),
        (AclFilter(host=HOST), [OTHER]),
        (AclFilter(operation=Operation.WRITE), []),
        (AclFilter(permission=Permission.DENY), []),
    ],
)
def test_a_filter_selects_acls_as_in_kafka(wanted, selected):
    assert sorted(Acls([LITERAL, PREFIXED, WILD, OTHER]).selected(wanted)) == sorted(selected)


@pytest.mark.parametrize(
    ("acl", "words"),
    [
        (rule(kind=ResourceType.ANY), "needs a resource type"),
        (rule(pattern_type=PatternType.MATCH), "literal or prefixed"),
        (rule(Operation.ANY), "one operation"),
        (rule(permission=Permission.ANY), "one permission"),
        (rule(name=""), "1 to 255 characters, got 0"),
        (rule(name="x" * 256), "got 256"),
        (rule(Operation.ALTER, kind=ResourceType.CLUSTER, name="c"), f"must be '{CLUSTER_NAME}'"),
        (rule(Operation.CLUSTER_ACTION), "operation on a topic must be one of"),
        (rule(Operation.WRITE, kind=ResourceType.GROUP), "operation on a group must be one of"),
        (rule(principal=Principal("Node", "1")), "must be User:<name>"),
        (rule(principal=Principal("User", "a\nb")), "printable"),
        (rule(host="localhost"), "an IP address, got 'localhost'"),
        (rule(host="10.0.0.0/8"), "an IP address, got '10.0.0.0/8'"),
        (rule(host="2001:DB8::1"), "must be written '2001:db8::1', got '2001:DB8::1'"),
        (rule(host="2001:db8:0:0:0:0:0:1"), "must be written '2001:db8::1'"),
        (rule(host="::ffff:10.0.0.7"), "must be written '10.0.0.7'"),
        (rule(host="010.0.0.7"), "an IP address"),
    ],
)
def test_an_acl_that_makes_no_sense_is_refused(acl, words):
    with pytest.raises(InvalidRequest, match=words.replace("*", r"\*")):
        check_acl(acl)


@pytest.mark.parametrize("text", ["", "alice", "User:", "Node:1", "user:alice", ":a"])
def test_a_principal_is_a_user(text):
    with pytest.raises(InvalidRequest):
        parse_principal(text)


def test_a_name_may_have_colons():
    assert parse_principal("User:CN=a:b") == user("CN=a:b")
    assert str(user("CN=a:b")) == "User:CN=a:b"

"""Which user a certificate belongs to."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.principal_rules import (
    NAME_LENGTH_MAX,
    RULES_LENGTH_MAX,
    map_principal,
    parse_principal_rules,
)
from millstream.errors import InvalidConfig

KAFKAS_EXAMPLE = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=alice,O=Example", "CN=alice,O=Example"),
        (KAFKAS_EXAMPLE, "CN=serviceuser,OU=ServiceUsers,O=Unknown,C=Unknown", "serviceuser"),
        (KAFKAS_EXAMPLE, "CN=AdminUser,OU=Admin,O=Un,L=Un,ST=Un,C=Un", "adminuser@admin"),
        (KAFKAS_EXAMPLE, "OU=Other,cn=Bob.B", "bob.b"),
        (KAFKAS_EXAMPLE, "UID=7", "UID=7"),
        (" RULE:CN=(.*)/$1/U , DEFAULT ", "CN=alice", "ALICE"),
        ("RULE:CN=(a+)b*/$1-$1/", "CN=aab", "aa-aa"),
        (r"RULE:CN=host\/(.*)/$1/", "CN=host/7", "7"),
        (r"RULE:CN=(.*)/\$1\/$1/", "CN=a", "$1/a"),
        ("RULE:CN=(a)?(.*)/$1$2/", "CN=b", "b"),
        ("RULE:CN=(.*)/everyone/", "CN=a,b", "everyone"),
    ],
)
def test_the_first_rule_that_matches_the_complete_name_names_the_user(
    rules: str, name: str, user: str
) -> None:
    assert map_principal(rules, name) == user


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:CN=(.*),O=A/$1/", "CN=alice,O=B"),
        ("RULE:CN=alice/alice/", "CN=alice,O=B"),
        ("RULE:CN=alice/alice/", "O=B,CN=alice"),
        ("RULE:CN=(.*)/$1/", "CN="),
        ("DEFAULT", ""),
        ("DEFAULT", "CN=" + "a" * NAME_LENGTH_MAX),
    ],
    ids=["other", "longer", "end", "no-user", "no-name", "long"],
)
def test_a_name_that_no_rule_matches_is_nobodys(rules: str, name: str) -> None:
    assert map_principal(rules, name) is None


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("", "a rule must be DEFAULT or RULE"),
        ("default", "a rule must be DEFAULT or RULE"),
        ("DEFAULT,", "a rule must be DEFAULT or RULE"),
        ("RULE:a/b", "a rule must be DEFAULT or RULE"),
        ("RULE:a/b/X", "a rule must be DEFAULT or RULE"),
        ("RULE:a/b/L DEFAULT", "a rule must be DEFAULT or RULE"),
        ("RULE:(/b/", "invalid pattern '\\('"),
        ("RULE:(?=a)/b/", "invalid pattern"),
        ("RULE:(a)/$2/", r"\$2 in '\$2' must be at most \$1"),
        ("RULE:((a{1,500}){1,500}){1,500}/b/", "invalid pattern"),
        ("D" * (RULES_LENGTH_MAX + 1), f"at most {RULES_LENGTH_MAX} characters, got"),
    ],
)
def test_what_is_wrong_with_rules_is_named(rules: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        parse_principal_rules(rules)


def test_a_pattern_that_would_backtrack_takes_linear_time() -> None:
    # With a backtracking engine this would not end in the time of the test run.
    assert map_principal("RULE:(a+)+b/x/", "a" * NAME_LENGTH_MAX) is None


@given(st.text(max_size=60))
def test_noise_is_refused_or_read_but_never_crashes(noise: str) -> None:
    with contextlib.suppress(InvalidConfig):
        parse_principal_rules(noise)

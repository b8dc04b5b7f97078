"""What a token looks like, and what it may be used for."""

from __future__ import annotations

import hashlib

import pytest

from millstream.broker.access.principal import user
from millstream.broker.access.resources import CLUSTER, Operation, group, topic, transactional_id
from millstream.broker.access.tokens import (
    SECRET_BYTES,
    Scope,
    Token,
    format_token,
    parse_scopes,
    split_token,
)
from millstream.errors import InvalidRequest

TEXT = format_token(bytes(6), bytes(range(24)))


def token(**fields):
    return Token(id="0" * 12, principal=user("alice"), digest=bytes(32), created_ms=0, **fields)


def test_a_token_has_a_prefix_an_id_and_a_secret_of_at_least_128_bits():
    assert TEXT == "ms_000000000000_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
    assert SECRET_BYTES * 8 >= 128


def test_only_the_digest_of_a_secret_is_kept():
    secret = TEXT.split("_")[2].encode()
    assert split_token(TEXT) == ("0" * 12, hashlib.sha256(secret).digest())


@pytest.mark.parametrize(
    "text", ["", "ms_", TEXT[:-1], TEXT + "x", TEXT.upper(), " " + TEXT, TEXT + "\n", "é" * 48]
)
def test_other_texts_are_no_tokens(text):
    assert split_token(text) is None


@pytest.mark.parametrize(
    ("scopes", "operations"),
    [
        ((), set(Operation)),
        (("read",), {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}),
        (
            ("write",),
            {Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE},
        ),
        (("delete",), {Operation.DELETE, Operation.DESCRIBE}),
        (("admin",), set(Operation)),
    ],
)
def test_a_scope_narrows_what_a_token_may_be_used_for(scopes, operations):
    narrow = token(scopes=parse_scopes(scopes))
    assert {op for op in Operation if narrow.permits(op, topic("t"))} == operations


def test_a_prefix_narrows_the_names_and_excludes_the_cluster():
    narrow = token(prefixes=("team-", "shared"))
    for kind in (topic, group, transactional_id):
        assert narrow.permits(Operation.READ, kind("team-a"))
        assert narrow.permits(Operation.READ, kind("shared"))
        assert not narrow.permits(Operation.READ, kind("team"))
        assert not narrow.permits(Operation.READ, kind("other-team-a"))
    assert not narrow.permits(Operation.DESCRIBE, CLUSTER)
    assert token().permits(Operation.ALTER, CLUSTER)


def test_an_unknown_scope_is_named():
    with pytest.raises(InvalidRequest, match="one of read, write, delete, admin, got root"):
        parse_scopes(("root",))
    assert parse_scopes(("read", "write")) == {Scope.READ, Scope.WRITE}


def test_a_token_expires_at_its_time():
    assert not token().is_expired(2**62)
    assert not token(expires_ms=10).is_expired(9)
    assert token(expires_ms=10).is_expired(10)

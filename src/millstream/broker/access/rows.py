"""Rows of the metadata store with ACLs, tokens and SCRAM credentials. One key each.

access/acls/TOPIC/LITERAL/orders/User%3Aalice/*/READ/ALLOW
access/tokens/4f1d0c9a2b7e
access/scram/alice/SCRAM-SHA-256
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.credentials import ScramCredential
from millstream.broker.access.principal import parse_principal
from millstream.broker.access.resources import Operation, PatternType, ResourceType
from millstream.broker.access.tokens import Scope, Token
from millstream.errors import CorruptFile, InvalidRequest, UnknownFormat

PREFIX = "access/"
ACLS_PREFIX = f"{PREFIX}acls/"
TOKENS_PREFIX = f"{PREFIX}tokens/"
SCRAM_PREFIX = f"{PREFIX}scram/"

ROW_VERSION = 1


class AclRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ACL. Its values are Kafka's names."""

    version: int
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token, without its secret."""

    version: int
    principal: str
    sha256: bytes
    created_ms: int
    expires_ms: int | None = None
    scopes: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    note: str = ""


class ScramRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a node keeps to check the password of a user. The password does not follow from it."""

    version: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class SecretRow(msgspec.Struct, frozen=True, kw_only=True):
    """The secret from which salts of users that do not exist are derived."""

    version: int
    secret: bytes


def acl_key(acl: Acl) -> str:
    """Return the key of an ACL."""
    kind, name, pattern_type = acl.pattern
    parts = (
        kind.name,
        pattern_type.name,
        name,
        str(acl.principal),
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )
    return ACLS_PREFIX + "/".join(quote(part, safe="*") for part in parts)


def token_key(token_id: str) -> str:
    """Return the key of a token."""
    return TOKENS_PREFIX + token_id


def scram_key(user: str, mechanism: str) -> str:
    """Return the key of a user's SCRAM credential."""
    return f"{SCRAM_PREFIX}{quote(user, safe='')}/{mechanism}"


def scram_key_parts(key: str) -> tuple[str, str]:
    """Return the user and the mechanism of a key."""
    user, _, mechanism = key.removeprefix(SCRAM_PREFIX).partition("/")
    return unquote(user), mechanism


def encode_acl(acl: Acl) -> bytes:
    kind, name, pattern_type = acl.pattern
    return msgspec.json.encode(
        AclRow(
            version=ROW_VERSION,
            resource_type=kind.name,
            resource_name=name,
            pattern_type=pattern_type.name,
            principal=str(acl.principal),
            host=acl.host,
            operation=acl.operation.name,
            permission=acl.permission.name,
        )
    )


def decode_acl(key: str, value: bytes) -> Acl:
    row = _decode(key, value, AclRow)
    try:
        return Acl(
            ResourcePattern(
                ResourceType[row.resource_type], row.resource_name, PatternType[row.pattern_type]
            ),
            parse_principal(row.principal),
            row.host,
            Operation[row.operation],
            Permission[row.permission],
        )
    except (KeyError, InvalidRequest) as error:
        raise CorruptFile(f"{key} is not a valid ACL: {error}") from error


def encode_token(token: Token) -> bytes:
    return msgspec.json.encode(
        TokenRow(
            version=ROW_VERSION,
            principal=str(token.principal),
            sha256=token.digest,
            created_ms=token.created_ms,
            expires_ms=token.expires_ms,
            scopes=sorted(scope.value for scope in token.scopes),
            prefixes=token.prefixes,
            note=token.note,
        )
    )


def decode_token(key: str, value: bytes) -> Token:
    row = _decode(key, value, TokenRow)
    try:
        return Token(
            id=key.removeprefix(TOKENS_PREFIX),
            principal=parse_principal(row.principal),
            digest=row.sha256,
            created_ms=row.created_ms,
            expires_ms=row.expires_ms,
            scopes=frozenset(Scope(name) for name in row.scopes),
            prefixes=tuple(row.prefixes),
            note=row.note,
        )
    except (ValueError, InvalidRequest) as error:
        raise CorruptFile(f"{key} is not a valid token: {error}") from error


def encode_scram(credential: ScramCredential) -> bytes:
    return msgspec.json.encode(
        ScramRow(
            version=ROW_VERSION,
            iterations=credential.iterations,
            salt=credential.salt,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
        )
    )


def decode_scram(key: str, value: bytes) -> ScramCredential:
    row = _decode(key, value, ScramRow)
    return ScramCredential(
        iterations=row.iterations,
        salt=row.salt,
        stored_key=row.stored_key,
        server_key=row.server_key,
    )


def encode_secret(secret: bytes) -> bytes:
    return msgspec.json.encode(SecretRow(version=ROW_VERSION, secret=secret))


def decode_secret(key: str, value: bytes) -> bytes:
    return _decode(key, value, SecretRow).secret


R = TypeVar("R", AclRow, TokenRow, ScramRow, SecretRow)


def _decode(key: str, value: bytes, kind: type[R]) -> R:
    try:
        row = msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        # Values are not repeated: they may belong to a secret.
        raise CorruptFile(f"{key} is not a valid row") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    return row

"""Tokens: credentials for programs, made by the node. Pure; random bytes are passed in.

    ms_<id>_<secret>        ms_4f1d0c9a2b7e_Zk3…

The id is stored, shown and logged. Of the secret only its SHA-256 is stored: it has 192 random
bits, so a slow hash would add nothing. A token belongs to a user and can do what that user may do,
unless it is narrowed to scopes or to names with given prefixes.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from millstream.broker.access.principal import Principal
from millstream.broker.access.resources import NAMED, Operation, Resource
from millstream.errors import InvalidRequest

ID_BYTES = 6
"""Random bytes of an id. Ids need not be secret, only distinct."""

SECRET_BYTES = 24
"""Random bytes of a secret: 192 bits."""

PREFIXES_MAX = 100
PREFIX_SIZE_MAX = 249

NOTE_SIZE_MAX = 200

TOKEN_PREFIX = "ms_"  # noqa: S105 - not a secret.

_TOKEN = re.compile(r"ms_([0-9a-f]{12})_([A-Za-z0-9_-]{32})")

ID_PATTERN = re.compile(r"[0-9a-f]{12}")


class Scope(enum.Enum):
    """What a token may be used for."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


SCOPES: Mapping[Scope, frozenset[Operation]] = MappingProxyType(
    {
        Scope.READ: frozenset({Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}),
        Scope.WRITE: frozenset(
            {Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE}
        ),
        Scope.DELETE: frozenset({Operation.DELETE, Operation.DESCRIBE}),
        Scope.ADMIN: frozenset(Operation),
    }
)
"""The operations that each scope permits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is stored: everything but its secret."""

    id: str
    principal: Principal
    digest: bytes
    """SHA-256 of the secret."""
    created_ms: int
    expires_ms: int | None = None
    """When it ends, in Unix time; `None` for never."""
    scopes: frozenset[Scope] = frozenset()
    """What it may be used for; empty for everything that its user may do."""
    prefixes: tuple[str, ...] = ()
    """Names of topics, groups and transactional ids must begin with one of these, if there are
    any; the cluster itself is then out of reach.
    """
    note: str = ""
    """What it is for, for those who list tokens."""

    def permits(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the token may be used for that, if its user may do it."""
        if self.scopes and not any(operation in SCOPES[scope] for scope in self.scopes):
            return False
        if not self.prefixes:
            return True
        return resource.kind in NAMED and resource.name.startswith(self.prefixes)

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


def format_token(id_bytes: bytes, secret_bytes: bytes) -> str:
    """Return the text of a token with these random bytes."""
    assert len(id_bytes) == ID_BYTES
    assert len(secret_bytes) == SECRET_BYTES
    return f"ms_{id_bytes.hex()}_{base64.urlsafe_b64encode(secret_bytes).decode()}"


def split_token(text: str) -> tuple[str, bytes] | None:
    """Return the id of a token and the digest of its secret; `None` if it is not a token."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else (match[1], digest_of(match[2]))


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_same_digest(first: bytes, second: bytes) -> bool:
    """Compare two digests in a time that does not depend on them."""
    return hmac.compare_digest(first, second)


def check_limits(
    *, scopes: frozenset[Scope], prefixes: tuple[str, ...], note: str, lifetime_ms: int | None
) -> None:
    """Raise unless a token with these can be created."""
    if len(prefixes) > PREFIXES_MAX:
        raise InvalidRequest(
            f"a token may have at most {PREFIXES_MAX} prefixes, got {len(prefixes)}"
        )
    for prefix in prefixes:
        if not 1 <= len(prefix) <= PREFIX_SIZE_MAX:
            raise InvalidRequest(
                f"prefix must have 1 to {PREFIX_SIZE_MAX} characters, got {len(prefix)}"
            )
    if len(note) > NOTE_SIZE_MAX or not (note.isprintable() or not note):
        raise InvalidRequest(f"note must have at most {NOTE_SIZE_MAX} printable characters")
    if lifetime_ms is not None and lifetime_ms < 1:
        raise InvalidRequest(f"lifetime must be at least 1 ms, got {lifetime_ms}")
    if unknown := scopes - set(Scope):
        raise InvalidRequest(f"unknown scopes {unknown}")


def parse_scopes(names: tuple[str, ...]) -> frozenset[Scope]:
    """Return the scopes of these names."""
    try:
        return frozenset(Scope(name) for name in names)
    except ValueError:
        allowed = ", ".join(scope.value for scope in Scope)
        raise InvalidRequest(f"scope must be one of {allowed}, got {', '.join(names)}") from None

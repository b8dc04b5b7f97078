"""Messages about access: ACLs, tokens, users, and who the caller is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

ResourceTypeName = Literal["topic", "group", "cluster", "transactional_id"]
OperationName = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
]
ScopeName = Literal["read", "write", "delete", "admin"]

UserName = Annotated[str, Meta(min_length=1, max_length=255)]


class AclShape(Struct, kw_only=True, forbid_unknown_fields=True):
    """An ACL: a rule that allows or denies an operation on resources to a user."""

    user: UserName
    """A name, or `*` for everyone who has logged in."""
    operation: OperationName
    resource_type: ResourceTypeName
    resource: Annotated[str, Meta(min_length=1, max_length=255)] = "kafka-cluster"
    """A name, `*` for all of the type, or with `pattern` a prefix of names."""
    pattern: Literal["literal", "prefixed"] = "literal"
    permission: Literal["allow", "deny"] = "allow"
    host: str = "*"
    """An IP address, or `*` for all."""


class AclsAnswer(Struct, kw_only=True):
    """All ACLs."""

    acls: list[AclShape]


class TokenBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    user: UserName
    lifetime_ms: Annotated[int, Meta(ge=1, le=10**13)] | None = None
    """How long it is valid; null for as long as it is not revoked."""
    scopes: Annotated[list[ScopeName], Meta(max_length=4)] = []
    """What it may be used for; empty for everything that the user may do."""
    prefixes: Annotated[list[str], Meta(max_length=100)] = []
    """Names must begin with one of these; empty for all names."""
    note: Annotated[str, Meta(max_length=200)] = ""


class TokenShape(Struct, kw_only=True):
    """A token, without its secret."""

    id: str
    user: str
    created_ms: int
    expires_ms: int | None
    scopes: list[str]
    prefixes: list[str]
    note: str


class CreatedToken(Struct, kw_only=True):
    """A new token."""

    id: str
    user: str
    expires_ms: int | None
    token: str
    """The token itself. It is not stored, and is never shown again."""


class TokensAnswer(Struct, kw_only=True):
    """All tokens."""

    tokens: list[TokenShape]


_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
"""A pattern and not `bytes`, for which msgspec would check the size of what is decoded, while the
OpenAPI document would tell that of the text.
"""


class CredentialBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What nodes store of a password, for one mechanism (RFC 5802). It does not follow from it."""

    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
    iterations: Annotated[int, Meta(ge=4096, le=1_000_000)]
    salt: Annotated[str, Meta(min_length=4, max_length=344, pattern=_BASE64)]
    """In base64, as the keys are."""
    stored_key: Annotated[str, Meta(min_length=44, max_length=88, pattern=_BASE64)]
    server_key: Annotated[str, Meta(min_length=44, max_length=88, pattern=_BASE64)]


class UserBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The password of a user, as those who set it have hashed it."""

    user: UserName
    credentials: Annotated[list[CredentialBody], Meta(min_length=1, max_length=2)]
    """One for each mechanism by which the user may log in."""


class UserDeletion(Struct, kw_only=True, forbid_unknown_fields=True):
    """A user whose password is deleted."""

    user: UserName


class CredentialShape(Struct, kw_only=True):
    """A mechanism by which a user can log in."""

    mechanism: str
    iterations: int


class UserShape(Struct, kw_only=True):
    """A user with a password."""

    user: str
    mechanisms: list[str]
    credentials: list[CredentialShape]


class UsersAnswer(Struct, kw_only=True):
    """All users with a password."""

    users: list[UserShape]


class IdentityAnswer(Struct, kw_only=True):
    """Who the caller is."""

    principal: str
    token: str | None
    """Id of the token by which it has logged in."""
    host: str
    enabled: bool
    """Whether the node has logins; if not, everyone may do everything."""
    cluster: list[OperationName]
    """Operations on the cluster that the caller may do."""
    reads: Literal["login", "open"]
    """Whether topics can be read without a login."""
    console: Literal["off", "read", "write"]
    """What the console lets people do, as far as they have the rights."""

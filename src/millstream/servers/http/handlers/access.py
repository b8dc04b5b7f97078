"""Handlers of access: ACLs, tokens and users, for those who administer the cluster."""

from __future__ import annotations

from base64 import b64decode
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.access import Access
from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.credentials import ScramCredential, ScramMechanism
from millstream.broker.access.principal import Principal, user
from millstream.broker.access.resources import (
    CLUSTER,
    Operation,
    PatternType,
    ResourceType,
)
from millstream.broker.access.sasl.scram import HASH_SIZES
from millstream.broker.access.tokens import Token, parse_scopes
from millstream.errors import InvalidRequest
from millstream.protocols.http.access import (
    AclsAnswer,
    AclShape,
    CreatedToken,
    CredentialShape,
    IdentityAnswer,
    TokenBody,
    TokensAnswer,
    TokenShape,
    UserBody,
    UserDeletion,
    UsersAnswer,
    UserShape,
)
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.operation_access import checked, cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

BODY_SIZE_MAX = 64 * 1024
"""Bytes of a request body: a hundred prefixes."""


CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
"""What can be done to the cluster."""


def _access_of(request: HttpRequest) -> Access:
    access = request.context.access
    if access is None:
        raise InvalidRequest("this node has no logins: set access.enabled")
    return access


async def describe_caller(request: HttpRequest) -> Response:
    """Return who the caller is. A token that is not valid is refused with 401."""
    caller = request.caller
    access = request.context.access
    permitted = [
        operation.name.lower()
        for operation in CLUSTER_OPERATIONS
        if access is None or access.check(caller, operation, CLUSTER)
    ]
    return json_response(
        IdentityAnswer(
            principal=str(caller.principal),
            token=None if caller.token is None else caller.token.id,
            host=caller.host,
            enabled=access is not None,
            cluster=permitted,  # type: ignore[arg-type] # The names are those of the members.
            reads="open" if access is None or access.are_reads_open else "login",
            console=request.context.config.console.value,
        )
    )


async def list_acls(request: HttpRequest) -> Response:
    """List all ACLs. Those of Kafka's DescribeAcls are the same."""
    return json_response(AclsAnswer(acls=[_shape(acl) for acl in _access_of(request).acls()]))


async def create_acl(request: HttpRequest) -> Response:
    """Create an ACL. It is durable before the response, and holds at once.

    Succeeds without changes if it exists.
    """
    body = await read_message(request, AclShape, size_max=BODY_SIZE_MAX)
    access = _access_of(request)
    acl = _acl(body)
    await access.create_acl(acl, by=request.caller)
    return json_response(_shape(acl), HTTPStatus.CREATED)


async def delete_acl(request: HttpRequest) -> Response:
    """Delete an ACL, which is named by all its fields. Succeeds if there is no such one."""
    body = await read_message(request, AclShape, size_max=BODY_SIZE_MAX)
    access = _access_of(request)
    await access.delete_acl(_acl(body), by=request.caller)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def list_tokens(request: HttpRequest) -> Response:
    """List all tokens. Their secrets are not stored."""
    tokens = [_token_shape(token) for token in _access_of(request).tokens()]
    return json_response(TokensAnswer(tokens=tokens))


async def create_token(request: HttpRequest) -> Response:
    """Create a token of a user. The response is the only place where it is shown.

    Only a super user can create a token of one.
    """
    body = await read_message(request, TokenBody, size_max=BODY_SIZE_MAX)
    access = _access_of(request)
    principal = user(body.user)
    token, text = await access.create_token(
        principal,
        by=request.caller,
        lifetime_ms=body.lifetime_ms,
        scopes=parse_scopes(tuple(body.scopes)),
        prefixes=tuple(body.prefixes),
        note=body.note,
    )
    created = CreatedToken(
        id=token.id, user=principal.name, expires_ms=token.expires_ms, token=text
    )
    return json_response(created, HTTPStatus.CREATED)


async def revoke_token(request: HttpRequest) -> Response:
    """Revoke a token. Connections that use it are closed within a second, on all nodes."""
    access = _access_of(request)
    await access.revoke_token(request.path_params["token"], by=request.caller)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def list_users(request: HttpRequest) -> Response:
    """List the users that have a password, and the mechanisms by which they can log in."""
    access = _access_of(request)
    return json_response(UsersAnswer(users=[_user_shape(access, name) for name in access.users()]))


async def set_user(request: HttpRequest) -> Response:
    """Set the password of a user, who can log in by the mechanisms of the body and by no others.

    The password itself is not sent: the caller hashes it, as `millstream access users set` does.
    Connections that used another password are closed within a second, on all nodes. Only a super
    user can set the password of one.
    """
    body = await read_message(request, UserBody, size_max=BODY_SIZE_MAX)
    access = _access_of(request)
    await access.set_password(body.user, _credentials(body), by=request.caller)
    return json_response(_user_shape(access, body.user))


async def delete_user(request: HttpRequest) -> Response:
    """Delete the password of a user. Connections that used it are closed within a second.

    Rules about the user, and its tokens, are kept.
    """
    body = await read_message(request, UserDeletion, size_max=BODY_SIZE_MAX)
    await _access_of(request).set_password(body.user, {}, by=request.caller)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _credentials(body: UserBody) -> dict[ScramMechanism, ScramCredential]:
    credentials = {}
    for sent in body.credentials:
        mechanism = ScramMechanism(sent.mechanism)
        size = HASH_SIZES[mechanism]
        stored_key, server_key = b64decode(sent.stored_key), b64decode(sent.server_key)
        for field, key in (("stored_key", stored_key), ("server_key", server_key)):
            if len(key) != size:
                raise InvalidRequest(
                    f"{field} of {mechanism.value} must have {size} bytes, got {len(key)}"
                )
        if mechanism in credentials:
            raise InvalidRequest(f"{mechanism.value} must be given once")
        credentials[mechanism] = ScramCredential(
            iterations=sent.iterations,
            salt=b64decode(sent.salt),
            stored_key=stored_key,
            server_key=server_key,
        )
    return credentials


def _user_shape(access: Access, name: str) -> UserShape:
    stored = access.scram_of(name)
    return UserShape(
        user=name,
        mechanisms=[mechanism.value for mechanism in stored],
        credentials=[
            CredentialShape(mechanism=mechanism.value, iterations=credential.iterations)
            for mechanism, credential in stored.items()
        ],
    )


def _acl(body: AclShape) -> Acl:
    kind = ResourceType[body.resource_type.upper()]
    pattern = ResourcePattern(kind, body.resource, PatternType[body.pattern.upper()])
    return Acl(
        pattern,
        user(body.user),
        body.host,
        Operation[body.operation.upper()],
        Permission[body.permission.upper()],
    )


def _shape(acl: Acl) -> AclShape:
    kind, name, pattern_type = acl.pattern
    principal: Principal = acl.principal
    shape = {
        "user": principal.name,
        "operation": acl.operation.name.lower(),
        "resource_type": kind.name.lower(),
        "resource": name,
        "pattern": pattern_type.name.lower(),
        "permission": acl.permission.name.lower(),
        "host": acl.host,
    }
    return AclShape(**shape)  # type: ignore[arg-type] # The names are those of the members.


def _token_shape(token: Token) -> TokenShape:
    return TokenShape(
        id=token.id,
        user=token.principal.name,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
        scopes=sorted(scope.value for scope in token.scopes),
        prefixes=list(token.prefixes),
        note=token.note,
    )


_ACL = {"user": "alice", "operation": "read", "resource_type": "topic", "resource": "orders"}
_FULL_ACL = {**_ACL, "pattern": "literal", "permission": "allow", "host": "*"}
_USER = {
    "user": "alice",
    "mechanisms": ["SCRAM-SHA-256"],
    "credentials": [{"mechanism": "SCRAM-SHA-256", "iterations": 15_000}],
}
_TOKEN = {"id": "4f1d0c9a2b7e", "user": "alice", "expires_ms": None}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/access/whoami",
        describe_caller,
        "Get who the caller is",
        {HTTPStatus.OK: IdentityAnswer},
        tag="access",
        answer_example={
            "principal": "User:alice",
            "token": "4f1d0c9a2b7e",
            "host": "10.0.0.7",
            "enabled": True,
            "cluster": ["describe"],
            "reads": "login",
            "console": "read",
        },
        access=checked("nothing: everyone may know who they are"),
    ),
    HttpOperation(
        "GET",
        "/v1/access/acls",
        list_acls,
        "List ACLs",
        {HTTPStatus.OK: AclsAnswer},
        tag="access",
        answer_example={"acls": [_FULL_ACL]},
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "POST",
        "/v1/access/acls",
        create_acl,
        "Create an ACL",
        {HTTPStatus.CREATED: AclShape},
        body=AclShape,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        example=_ACL,
        answer_example=_FULL_ACL,
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "DELETE",
        "/v1/access/acls",
        delete_acl,
        "Delete an ACL",
        {HTTPStatus.NO_CONTENT: None},
        body=AclShape,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        example=_ACL,
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "GET",
        "/v1/access/tokens",
        list_tokens,
        "List tokens",
        {HTTPStatus.OK: TokensAnswer},
        tag="access",
        answer_example={
            "tokens": [
                {
                    **_TOKEN,
                    "created_ms": 1_700_000_000_000,
                    "scopes": ["read"],
                    "prefixes": [],
                    "note": "dashboard",
                }
            ]
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "POST",
        "/v1/access/tokens",
        create_token,
        "Create a token",
        {HTTPStatus.CREATED: CreatedToken},
        body=TokenBody,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        example={"user": "alice", "scopes": ["read"], "note": "dashboard"},
        answer_example={**_TOKEN, "token": "ms_4f1d0c9a2b7e_..."},
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "DELETE",
        "/v1/access/tokens/{token}",
        revoke_token,
        "Revoke a token",
        {HTTPStatus.NO_CONTENT: None},
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "GET",
        "/v1/access/users",
        list_users,
        "List users with a password",
        {HTTPStatus.OK: UsersAnswer},
        tag="access",
        answer_example={"users": [_USER]},
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "PUT",
        "/v1/access/users",
        set_user,
        "Set the password of a user",
        {HTTPStatus.OK: UserShape},
        body=UserBody,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        example={
            "user": "alice",
            "credentials": [
                {
                    "mechanism": "SCRAM-SHA-256",
                    "iterations": 15_000,
                    "salt": "MTIzNDU2Nzg=",
                    "stored_key": "A" * 43 + "=",
                    "server_key": "A" * 43 + "=",
                }
            ],
        },
        answer_example=_USER,
        access=cluster_access(Operation.ALTER),
    ),
    HttpOperation(
        "DELETE",
        "/v1/access/users",
        delete_user,
        "Delete the password of a user",
        {HTTPStatus.NO_CONTENT: None},
        body=UserDeletion,
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        tag="access",
        example={"user": "alice"},
        access=cluster_access(Operation.ALTER),
    ),
)

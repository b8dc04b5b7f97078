"""Callers of HTTP requests: who sends a request, by its token or by the node that forwarded it.

    Authorization: Bearer ms_<id>_<secret>

A request without a token is that of the user whom the certificate of the client names, or else of
`User:ANONYMOUS`, who is asked to log in if that has not enough rights. A token that is not valid is
refused, whatever the request asks for.
"""

from __future__ import annotations

from typing import Any

from millstream.broker.access.access import Access
from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import ANONYMOUS, parse_principal
from millstream.broker.access.resources import Operation, Resource
from millstream.errors import InvalidRequest, MillstreamError, NotAuthenticated

CALLER = "millstream.caller"
"""In the scope of a request: its caller, once that was needed."""

CERTIFICATE_USER = "millstream.certificate_user"
"""In the scope of a request: the user that the certificate of the client belongs to, if it has
shown one."""

FORWARDED_CALLER = "millstream.forwarded_caller"
"""In the scope of a forwarded request: principal and token id, as the other node has sent them."""

SCHEME = "Bearer"

_NO_LOGIN = "this needs a login: send a token in Authorization, as Bearer ms_<id>_<secret>"


def caller_of(scope: Any, access: Access | None) -> Caller:
    """Return who sends a request; raises `NotAuthenticated` if its token is not valid."""
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        caller = scope[CALLER] = _log_in(scope, access)
    return caller


def _log_in(scope: Any, access: Access | None) -> Caller:
    if access is None:
        return NOBODY
    client = scope.get("client")
    host = "" if client is None else str(client[0])
    if (forwarded := scope.get(FORWARDED_CALLER)) is not None:
        principal, token_id = forwarded
        return forwarded_caller(principal, token_id, host, access)
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        user = scope.get(CERTIFICATE_USER)
        return access.anonymous(host) if user is None else access.log_in_by_certificate(user, host)
    scheme, _, token = values[0].decode("latin-1").partition(" ")
    if len(values) > 1 or scheme.lower() != SCHEME.lower():
        raise NotAuthenticated(f"Authorization must be sent once, with the scheme {SCHEME}")
    return access.log_in_by_token(token.strip(), host)


def forwarded_caller(principal: str, token_id: str, host: str, access: Access) -> Caller:
    """Return the caller of a request that another node has forwarded, and has logged in."""
    if token_id:
        return access.caller_by_token_id(token_id, host)
    try:
        return Caller(parse_principal(principal), host)
    except InvalidRequest:  # Of an older release, which knows no principals.
        return Caller(ANONYMOUS, host)


def require(
    access: Access | None, caller: Caller, operation: Operation, resource: Resource
) -> None:
    """Raise unless a caller may do an operation; one that has not logged in is asked to."""
    if access is None or access.check(caller, operation, resource):
        return
    raise refusal(access, caller, operation, resource)


def refusal(
    access: Access, caller: Caller, operation: Operation, resource: Resource
) -> MillstreamError:
    """Return the error for a caller that may not do an operation."""
    error = access.denial(caller, operation, resource)
    return NotAuthenticated(_NO_LOGIN) if caller.principal == ANONYMOUS else error

"""Callers of HTTP requests: who sends a request, by its token or by the node that forwarded it.

    Authorization: Bearer ms_<id>_<secret>
    Sec-WebSocket-Protocol: millstream, millstream.token.ms_<id>_<secret>

The second form is for WebSockets of pages, since a browser lets them set no other header. A secret
is never part of an address: addresses are logged, kept in histories and sent to others.

A request without a token is that of the user whom the certificate of the client names, or else of
`User:ANONYMOUS`, who is asked to log in if that has not enough rights. A token that is not valid is
refused, whatever the request asks for.

A browser adds the certificate of its user to requests of all pages. So it does not count if a page
of another site sends the request, though that page may use the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.broker.access.access import Access
from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import ANONYMOUS, parse_principal
from millstream.broker.access.resources import Operation, Resource
from millstream.errors import InvalidRequest, MillstreamError, NotAuthenticated
from millstream.servers.http.routing.browser_safety import is_cross_site

CALLER = "millstream.caller"
"""In the scope of a request: its caller, once that was needed."""

CERTIFICATE_USER = "millstream.certificate_user"
"""In the scope of a request: the user that the certificate of the client belongs to, if it has
shown one."""

FORWARDED_CALLER = "millstream.forwarded_caller"
"""In the scope of a forwarded request: principal and token id, as the other node has sent them."""

SCHEME = "Bearer"

SUBPROTOCOL = "millstream"
"""The protocol of WebSockets, which the server chooses if a client offers it."""

TOKEN_SUBPROTOCOL = "millstream.token."  # noqa: S105 - what comes before a token.
"""What a client offers beside it to log in: this and its token."""

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
    token = _token_in(scope)
    if token is not None:
        return access.log_in_by_token(token, host)
    user = scope.get(CERTIFICATE_USER)
    if user is None or is_cross_site(scope["headers"]):
        return access.anonymous(host)
    return access.log_in_by_certificate(user, host)


def _token_in(scope: Any) -> str | None:
    """Return the token of a request, whether valid or not; `None` if it has none."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    offered = _offered_tokens(scope["headers"]) if scope["type"] == "websocket" else []
    if not values and not offered:
        return None
    if len(values) + len(offered) > 1:
        raise NotAuthenticated("a token must be sent once")
    if offered:
        return offered[0]
    text: str = values[0].decode("latin-1")
    scheme, _, token = text.partition(" ")
    if scheme.lower() != SCHEME.lower():
        raise NotAuthenticated(f"Authorization must have the scheme {SCHEME}")
    return token.strip()


def _offered_tokens(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the tokens among the subprotocols that a client offers for a WebSocket."""
    lists = [
        value.decode("latin-1") for name, value in headers if name == b"sec-websocket-protocol"
    ]
    offers = (offer.strip() for text in lists for offer in text.split(","))
    return [
        offer.removeprefix(TOKEN_SUBPROTOCOL)
        for offer in offers
        if offer.startswith(TOKEN_SUBPROTOCOL)
    ]


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

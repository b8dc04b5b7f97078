"""Which names a node answers to.

A web page can point a name of its own at 127.0.0.1, and a browser then takes the node for that
page's server: the page may read and delete as it likes. The browser still says which name it was
that the page used, so a node that only this machine can reach answers to this machine's names only.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.config.schema import is_loopback
from millstream.servers.http.routing.errors import error_response

HOSTS_REMEMBERED = 256
"""Clients say the same few names again and again; to read an address takes longer than a lookup."""


class LocalHostsMiddleware:
    """Refuses requests that were sent to another name than one of this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if is_local(_host_of(scope)):
            await self._app(scope, receive, send)
            return
        message = "asked for under another name than one of this machine, such as localhost"
        status = HTTPStatus.MISDIRECTED_REQUEST
        await error_response(status, status.name.lower(), message)(scope, receive, send)


def _host_of(scope: Scope) -> bytes:
    """Return the `Host` header; the first, though the connection lets no second one through."""
    for name, value in scope["headers"]:
        if name == b"host":
            return bytes(value)
    return b""


@lru_cache(HOSTS_REMEMBERED)
def is_local(host: bytes) -> bool:
    """Whether a `Host` header names this machine."""
    return is_loopback(name_of(host.decode("latin-1")))


def name_of(host: str) -> str:
    """Return the name in a `Host` header, which may have a port behind it."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]

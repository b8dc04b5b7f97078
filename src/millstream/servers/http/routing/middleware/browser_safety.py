"""What a browser may do with a node.

A page of another site can have its visitor's browser send requests to any node that the browser
reaches, though it may not read the answers. The browser says where such a request comes from, in
`Origin` or in `Sec-Fetch-Site`; it is refused here, whatever it asks for. Programs send neither.

Nobody else's page may read an answer (no CORS), show it in a frame, or take it for something that
it is not; and none is kept in a cache. A handler that knows better sets the header itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.servers.http.routing.errors import error_response

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Set on every answer that does not set them itself."""

_CROSS_SITE = (b"cross-site", b"same-site")
_DEFAULT_PORTS = (b":80", b":443")


class BrowserSafetyMiddleware:
    """Refuses what other sites have a browser send, and makes every answer safe to show."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def send_safely(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = list(message.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                headers += [header for header in HEADERS if header[0] not in names]
                message["headers"] = headers
            await send(message)

        # A browser that asks first what it may do is told, and nothing in that lets a page in.
        is_preflight = scope["type"] == "http" and scope["method"] == "OPTIONS"
        is_refused = not is_preflight and is_cross_site(scope["headers"])
        app = _refuse if is_refused else self._app
        await app(scope, receive, send_safely)


def is_cross_site(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page of another site had a browser send this.

    Following a link is no such request: the page cannot see what comes of it.
    """
    found = dict(headers)
    origin = found.get(b"origin")
    if origin is not None:
        return _authority(origin) != _without_port(found.get(b"host", b"").lower())
    if found.get(b"sec-fetch-site") not in _CROSS_SITE:
        return False
    is_link = (
        found.get(b"sec-fetch-mode") == b"navigate" and found.get(b"sec-fetch-dest") == b"document"
    )
    return not is_link


def _authority(origin: bytes) -> bytes:
    """Return the host and port of an origin; `null` and what is none of the web's has none."""
    scheme, _, authority = origin.lower().partition(b"://")
    return _without_port(authority) if scheme in (b"http", b"https") and authority else b"?"


def _without_port(authority: bytes) -> bytes:
    """Return an authority without the port that goes without saying."""
    for port in _DEFAULT_PORTS:
        authority = authority.removesuffix(port)
    return authority


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    message = "asked for by a page of another site, which may not do that"
    status = HTTPStatus.FORBIDDEN
    await error_response(status, status.name.lower(), message)(scope, receive, send)

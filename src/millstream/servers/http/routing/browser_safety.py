"""Protection against web pages of other sites.

A page of another site can have its visitor's browser send requests to every node that the browser
reaches, though it may not read the responses. The browser states the origin of such a request in
`Origin` or in `Sec-Fetch-Site`; it is refused, whatever it asks for. Programs send neither.

No other page may read a response (no CORS), show it in a frame, or have it interpreted as another
type; and none is cached. A handler can set these headers itself.
"""

from __future__ import annotations

from collections.abc import Iterable

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Set on every response that does not set them itself."""

_CROSS_SITE = (b"cross-site", b"same-site")
_DEFAULT_PORTS = (b":80", b":443")


def with_safe_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return response headers with those of `HEADERS` that they do not set themselves."""
    headers = list(headers)
    names = {name for name, _ in headers}
    return headers + [header for header in HEADERS if header[0] not in names]


def is_cross_site(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a page of another site had a browser send this request.

    Following a link is not such a request: the page cannot see the result.
    """
    by_name = dict(headers)
    origin = by_name.get(b"origin")
    if origin is not None:
        return _authority(origin) != _without_port(by_name.get(b"host", b"").lower())
    if by_name.get(b"sec-fetch-site") not in _CROSS_SITE:
        return False
    is_link = (
        by_name.get(b"sec-fetch-mode") == b"navigate"
        and by_name.get(b"sec-fetch-dest") == b"document"
    )
    return not is_link


def _authority(origin: bytes) -> bytes:
    """Return host and port of an origin; `null` and other schemes have none."""
    scheme, _, authority = origin.lower().partition(b"://")
    return _without_port(authority) if scheme in (b"http", b"https") and authority else b"?"


def _without_port(authority: bytes) -> bytes:
    """Return an authority without a default port."""
    for port in _DEFAULT_PORTS:
        authority = authority.removesuffix(port)
    return authority

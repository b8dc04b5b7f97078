"""What a browser may do with a node.

A page of another site can have its visitor's browser send requests to any node that the browser
reaches, though it may not read the answers. The browser says where such a request comes from, in
`Origin` or in `Sec-Fetch-Site`; it is refused here, whatever it asks for. Programs send neither.

Nobody else's page may read an answer (no CORS), show it in a frame, or take it for something that
it is not; and none is kept in a cache. A handler that knows better sets the header itself.
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
"""Set on every answer that does not set them itself."""

_CROSS_SITE = (b"cross-site", b"same-site")
_DEFAULT_PORTS = (b":80", b":443")


def with_safe_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return response headers with those of `HEADERS` that they do not set themselves."""
    headers = list(headers)
    names = {name for name, _ in headers}
    return headers + [header for header in HEADERS if header[0] not in names]


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

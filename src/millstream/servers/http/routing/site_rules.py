"""Which host names the server answers to, and whose pages may use it.

**Hosts.** A web page can point a name of its own at 127.0.0.1, and a browser then takes the node
for that page's server: the page could read and delete everything (DNS rebinding). The browser still
sends the name that the page used. So a node that only this machine can reach answers only to names
of this machine, and to those in `http.allowed_hosts`. A request without `Host` cannot come from a
browser, and an address in `Host` cannot have been pointed elsewhere.

**Origins.** A page of another site can have its visitor's browser send requests to every node that
the browser reaches. The browser states the page's origin, and the request is refused unless
`http.allowed_origins` has it. For these, the response lets the page read it (CORS). It never allows
credentials that a browser adds by itself, such as cookies.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus

from starlette.exceptions import HTTPException

from millstream.config.schema import is_loopback
from millstream.servers.http.routing.browser_safety import is_cross_site

ANY = "*"

HOSTS_CACHED = 256
"""Clients send the same few names again and again; parsing an address takes longer than a lookup.
"""

PREFLIGHT_S = 600
"""How long a browser may remember which methods and headers are allowed."""

SHOWN_LENGTH_MAX = 100
"""Characters of a name chosen by the client that are repeated in a message."""

_FIELD_NAMES = re.compile(rb"[A-Za-z0-9_-]+( *, *[A-Za-z0-9_-]+)*")

RawHeaders = Iterable[tuple[bytes, bytes]]


class SiteRules:
    """The rules of one server."""

    def __init__(
        self, *, is_local: bool = False, hosts: Sequence[str] = (), origins: Sequence[str] = ()
    ) -> None:
        """Create the rules; `is_local` says that only this machine can reach the server."""
        self._is_local = is_local
        self._is_any_host = ANY in hosts or not (is_local or hosts)
        self._hosts = frozenset(hosts)
        self._is_any_origin = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def check(self, headers: RawHeaders, *, is_preflight: bool = False) -> None:
        """Raise if a request is for another host, or comes from a page that is not allowed."""
        if not self._is_any_host:
            self._check_host(headers)
        # A preflight request is answered: without CORS headers it lets nobody in.
        if not (is_preflight or self._is_any_origin) and is_cross_site(headers):
            self._check_origin(headers)

    def _check_host(self, headers: RawHeaders) -> None:
        host = _field(headers, b"host")
        if host is None or self._is_allowed(name := name_of(host.decode("latin-1")).lower()):
            return
        allowed = ", ".join(["localhost", *sorted(self._hosts)])
        message = f"Host must be one of {allowed}, got {_shown(name)}"
        raise HTTPException(
            HTTPStatus.MISDIRECTED_REQUEST, f"{message}; http.allowed_hosts adds names"
        )

    def _is_allowed(self, name: str) -> bool:
        return name in self._hosts or (is_loopback_name if self._is_local else is_address)(name)

    def _check_origin(self, headers: RawHeaders) -> None:
        origin = _field(headers, b"origin")
        if origin in self._origins:
            return
        page = "a page" if origin is None else _shown(origin.decode("latin-1"))
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            "requests from pages of other sites are not allowed,"
            f" got one from {page}; http.allowed_origins adds origins",
        )

    def cors_headers(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """Return the headers that let the page that sent a request read the response."""
        if not self._origins:
            return []
        origin = _field(headers, b"origin")
        if self._is_any_origin:
            allowed = b"*"
        elif origin is not None and origin in self._origins:
            allowed = origin
        else:
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"Origin"),
        ]

    def preflight_headers(
        self, headers: RawHeaders, methods: Iterable[str]
    ) -> dict[str, str] | None:
        """Return what allows a request that a browser asks about; `None` if it asks nothing."""
        if not self._origins or _field(headers, b"access-control-request-method") is None:
            return None
        fields = _field(headers, b"access-control-request-headers") or b""
        allowed = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Max-Age": str(PREFLIGHT_S),
        }
        if _FIELD_NAMES.fullmatch(fields):
            allowed["Access-Control-Allow-Headers"] = fields.decode()
        return allowed


@lru_cache(HOSTS_CACHED)
def is_loopback_name(name: str) -> bool:
    """Return whether a name is `localhost` or a loopback address."""
    return is_loopback(name)


@lru_cache(HOSTS_CACHED)
def is_address(name: str) -> bool:
    """Return whether a name is an address or a name of this machine: no page can take it over."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return is_loopback(name)
    return True


def name_of(host: str) -> str:
    """Return the name in a `Host` header without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _field(headers: RawHeaders, name: bytes) -> bytes | None:
    """Return the first value of a header."""
    return next((value for field, value in headers if field == name), None)


def _shown(text: str) -> str:
    """Return text chosen by the client as a message may repeat it."""
    printable = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    return f'"{printable[:SHOWN_LENGTH_MAX]}"'

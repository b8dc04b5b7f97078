"""Parsing of the node URL that a client is given."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import InvalidConfig

API_PATH = "/v1"
"""Where the API begins below the address of a node; the client adds it."""

_PORTS = {"http": 80, "https": 443}


class NodeUrl(NamedTuple):
    """Host, port and path prefix of a node."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    """Path prefix of the API, for a node behind a reverse proxy."""

    @property
    def authority(self) -> str:
        """Host and port, as used in the `Host` header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"


def parse_node_url(url: str) -> NodeUrl:
    """Parse `http://host:port`. Raises `InvalidConfig` if `url` has another form."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid(url) from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not (is_plain and parts.scheme in _PORTS and parts.hostname and port != 0):
        raise _invalid(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidConfig(f"address {url!r} must not have a user name, query or fragment")
    if parts.path.rstrip("/").endswith(API_PATH):
        raise InvalidConfig(f"address must be without {API_PATH}, got {url!r}")
    return NodeUrl(
        parts.hostname,
        port or _PORTS[parts.scheme],
        is_tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
    )


def _invalid(url: str) -> InvalidConfig:
    return InvalidConfig(f"address must be http://host:port or https://host:port, got {url!r}")

"""Where a node is: the address that a client is given."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import InvalidConfig

_PORTS = {"http": 80, "https": 443}


class NodeUrl(NamedTuple):
    """Where to connect, and what to put before every path."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    """What stands before the paths of the door, where something between hides it behind one."""

    @property
    def authority(self) -> str:
        """Host and port as requests name them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"


def parse_node_url(url: str) -> NodeUrl:
    """Read `http://host:port`; raises `InvalidConfig` for what is not that."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        raise _wrong(url) from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not (is_plain and found.scheme in _PORTS and found.hostname and port != 0):
        raise _wrong(url)
    if "@" in found.netloc or found.query or found.fragment:
        raise InvalidConfig(f"address is {url!r}, and may have no name, query or fragment in it")
    return NodeUrl(
        found.hostname,
        port or _PORTS[found.scheme],
        is_tls=found.scheme == "https",
        prefix=found.path.rstrip("/"),
    )


def _wrong(url: str) -> InvalidConfig:
    return InvalidConfig(f"address is {url!r}, expected http://host:port or https://host:port")

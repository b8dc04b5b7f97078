"""Which names a node answers to.

A web page can point a name of its own at 127.0.0.1, and a browser then takes the node for that
page's server: the page may read and delete as it likes. The browser still says which name it was
that the page used, so a node that only this machine can reach answers to this machine's names only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from millstream.config.schema import is_loopback

HOSTS_REMEMBERED = 256
"""Clients say the same few names again and again; to read an address takes longer than a lookup."""


def is_local_request(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the first `Host` header names this machine; the connection allows only one."""
    for name, value in headers:
        if name == b"host":
            return is_local(value)
    return False


@lru_cache(HOSTS_REMEMBERED)
def is_local(host: bytes) -> bool:
    """Whether a `Host` header names this machine."""
    return is_loopback(name_of(host.decode("latin-1")))


def name_of(host: str) -> str:
    """Return the name in a `Host` header, which may have a port behind it."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]

"""Host names that a local node answers to.

A web page can point a name of its own at 127.0.0.1, and a browser then takes the node for that
page's server: the page could read and delete everything (DNS rebinding). The browser still sends
the name that the page used, so a node that only this machine can reach answers only to names of
this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from millstream.config.schema import is_loopback

HOSTS_REMEMBERED = 256
"""Clients send the same few names again and again; parsing an address takes longer than a lookup.
"""


def is_local_request(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the first `Host` header names this machine; the connection allows only one."""
    for name, value in headers:
        if name == b"host":
            return is_local(value)
    return False


@lru_cache(HOSTS_REMEMBERED)
def is_local(host: bytes) -> bool:
    """Return whether a `Host` header names this machine."""
    return is_loopback(name_of(host.decode("latin-1")))


def name_of(host: str) -> str:
    """Return the name in a `Host` header without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]

"""The address of a client, as it is logged, limited and compared with the hosts of ACLs."""

from __future__ import annotations

from typing import Any

from millstream.broker.access.acls import plain_address


def client_host(peer: Any) -> str:
    """Return the host in the address of a socket, in its one spelling; empty if there is none."""
    host = str(peer[0]) if peer else ""
    # Addresses of IPv4 have one spelling already, and most clients have one of these.
    return plain_address(host) if ":" in host else host

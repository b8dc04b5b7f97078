"""Which IP addresses a node may connect to for others: public ones. Pure.

An address that a name resolves to may be that of this machine, of a neighbour or of the service
that gives credentials to virtual machines. All that is not public is refused, in whatever form it
is written, unless the operator has allowed its network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        # Beside what the standard library takes for private, whatever release it is of.
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # Shared by carriers; some clouds have their metadata here.
        "127.0.0.0/8",
        "168.63.129.16/32",  # Metadata of Azure, although the address is public.
        "169.254.0.0/16",  # Link-local, and the metadata of most clouds.
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # Relays of 6to4.
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",  # Unspecified, loopback, and IPv4 in its oldest form.
        "::ffff:0:0/96",  # IPv4 in IPv6. Looked at as IPv4 before.
        "64:ff9b::/96",  # IPv4 behind NAT64.
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo, which has an IPv4 address in it, and others that are not public.
        "2001:db8::/32",
        "2002::/16",  # 6to4, which has an IPv4 address in it.
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",  # Unique local; the metadata of AWS among them.
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the networks that an operator has allowed."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_allowed_address(text: str, allowed: Sequence[Network]) -> bool:
    """Return whether a node may connect to an address, as a resolver has returned it."""
    try:
        # A scope, such as %eth0, belongs to link-local addresses, which are refused.
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is not None:
        address = mapped
    if any(_contains(network, address) for network in allowed):
        return True
    return address.is_global and not any(_contains(network, address) for network in _REFUSED)


def _contains(network: Network, address: Address) -> bool:
    return network.version == address.version and address in network

"""The nodes of a cluster that a client may use, and the one that it uses now.

Every node takes every request, so a client stays with one until that fails or refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.clients.http.core.address import NodeUrl, parse_node_url
from millstream.errors import InvalidConfig

ADDRESSES_MAX = 100
"""More addresses than this are a mistake."""


class NodeAddresses:
    """The addresses of a client, used in turn. May be shared by threads."""

    def __init__(self, addresses: Sequence[NodeUrl]) -> None:
        self.all = tuple(dict.fromkeys(addresses))
        self._index = 0

    def __len__(self) -> int:
        return len(self.all)

    @property
    def current(self) -> NodeUrl:
        return self.all[self._index]

    def move_on(self, failed: NodeUrl) -> None:
        """Use the next node from now on, unless another caller has left `failed` already."""
        if failed == self.current:
            self._index = (self._index + 1) % len(self.all)


def parse_node_urls(urls: str | Sequence[str]) -> NodeAddresses:
    """Parse one URL, several with commas between them, or a sequence of them.

    Raises `InvalidConfig` if there is none, or one of them has another form.
    """
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    if not 1 <= len(listed) <= ADDRESSES_MAX:
        raise InvalidConfig(f"addresses must be between 1 and {ADDRESSES_MAX}, got {len(listed)}")
    return NodeAddresses([parse_node_url(url.strip()) for url in listed])

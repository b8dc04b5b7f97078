"""The open connections of a server, counted by client address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

P = TypeVar("P")


class ConnectionSet(Generic[P]):
    """The protocols of all connections. Used on the event loop only."""

    def __init__(self) -> None:
        self._addresses: dict[P, str] = {}
        self._by_address: Counter[str] = Counter()
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[P]:
        return iter(self._addresses)

    def add(self, protocol: P, address: str) -> None:
        """Add a connection from an address."""
        self._addresses[protocol] = address
        self._by_address[address] += 1

    def discard(self, protocol: P) -> None:
        """Remove a connection, if it is in the set."""
        address = self._addresses.pop(protocol, None)
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not self._addresses and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def address_of(self, protocol: P) -> str:
        """Return the address of a connection in the set."""
        return self._addresses[protocol]

    def count_of(self, address: str) -> int:
        """Return the number of connections from an address."""
        return self._by_address.get(address, 0)

    async def wait_until_none(self) -> None:
        """Return when there is no connection."""
        while self._addresses:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

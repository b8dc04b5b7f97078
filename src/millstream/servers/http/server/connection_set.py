"""Which connections the HTTP door has, and how many from where."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class ConnectionSet(set[Any]):
    """The protocols of all connections, counted by the address of their client.

    Uvicorn's protocols add and remove themselves, before they know their client; `place` says who
    that is. One that becomes a WebSocket leaves as what it was and comes as what it is in one turn
    of the loop, so it is counted all the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._addresses: dict[Any, str] = {}
        self._by_address: Counter[str] = Counter()
        self._emptied: asyncio.Future[None] | None = None

    def place(self, protocol: Any, address: str) -> None:
        """Count one as coming from that address."""
        self.discard(protocol)
        super().add(protocol)
        self._addresses[protocol] = address
        self._by_address[address] += 1

    def add(self, protocol: Any) -> None:
        """Count one whose client is not known yet."""
        if protocol not in self:
            self.place(protocol, "")

    def remove(self, protocol: Any) -> None:
        """Count it no more."""
        self.discard(protocol)

    def discard(self, protocol: Any) -> None:
        """Count it no more; nothing happens where it was not counted."""
        if protocol not in self:
            return
        super().discard(protocol)
        address = self._addresses.pop(protocol)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not self and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def count_of(self, address: str) -> int:
        """How many come from that address."""
        return self._by_address.get(address, 0)

    async def wait_until_none(self) -> None:
        """Return when there is none."""
        while self:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

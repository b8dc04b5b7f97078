"""Producer ids: numbers that are never given out twice.

Whole blocks are reserved, durably, before the first number of a block is handed out. A crash loses
what was left of a block, and nothing else: there are enough.
"""

from __future__ import annotations

import asyncio

from millstream.errors import Busy, CorruptData, StorageFailed
from millstream.metadata.interface import ABSENT, Compare, Metadata

KEY = "producer-ids"
"""Holds the first id that no block contains, as decimal digits."""

BLOCK_SIZE = 1_000
"""As many as Kafka's brokers reserve at once: a crash wastes few, and few starts have to wait."""

PRODUCER_ID_MAX = 2**63 - 1

_ATTEMPTS_MAX = 10
"""How often others may come in between before the caller is told to try again."""


class ProducerIds:
    """Hands out producer ids, from memory as long as a block lasts."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._next = self._end = 0
        self._reserving = asyncio.Lock()

    async def take(self) -> int:
        """Return an id that nobody has had, and nobody else will."""
        while self._next == self._end:
            async with self._reserving:
                if self._next == self._end:  # Nobody was quicker.
                    self._next, self._end = await self._reserve()
        taken = self._next
        self._next += 1
        return taken

    async def _reserve(self) -> tuple[int, int]:
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._metadata.get(KEY)
            first = _read(entry.value) if entry else 0
            end = first + BLOCK_SIZE
            if end > PRODUCER_ID_MAX:
                raise StorageFailed(f"{KEY} is {first}, the last producer id is {PRODUCER_ID_MAX}")
            revision = await self._metadata.transact(
                compares=[Compare(KEY, entry.revision if entry else ABSENT)],
                puts={KEY: str(end).encode()},
            )
            if revision is not None:
                return first, end
        raise Busy(f"{KEY} was changed {_ATTEMPTS_MAX} times while a block was being reserved")


def _read(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= len(str(PRODUCER_ID_MAX))):
        raise CorruptData(f"{KEY} is {value[:20]!r}, a number is needed")
    return int(value)

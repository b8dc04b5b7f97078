"""Producer ids: numbers that are never assigned twice.

Blocks of ids are reserved, durably, before the first id of a block is assigned. A crash loses the
rest of a block, and nothing else: there are enough ids.

The counter is in metadata, which an operator may restore from a backup. So before the first block
is reserved after a start, the greatest id that is in use anywhere on the node is looked up, and no
id up to that one is assigned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.errors import Busy, CorruptData, StorageFailed
from millstream.metadata.interface import ABSENT, Compare, Metadata

logger = logging.getLogger(__name__)

KEY = "producer-ids"
"""Stores the first id that no block contains, as decimal digits."""

BLOCK_SIZE = 1_000
"""As many as Kafka's brokers reserve at once: a crash wastes few, and few callers have to wait."""

PRODUCER_ID_MAX = 2**63 - 1

_ATTEMPTS_MAX = 10
"""How often concurrent changes are retried before the caller gets an error."""


class ProducerIds:
    """Assigns producer ids, from memory while a block lasts."""

    def __init__(
        self, metadata: Metadata, find_seen: Callable[[], Awaitable[int]] | None = None
    ) -> None:
        """`find_seen` returns the greatest id in use, or -1. Without it, the counter decides."""
        self._metadata = metadata
        self._find_seen = find_seen
        self._next = self._end = 0
        self._reserving = asyncio.Lock()

    async def take(self) -> int:
        """Return an id that was never returned before."""
        while self._next == self._end:
            async with self._reserving:
                if (
                    self._next == self._end
                ):  # Another caller may have reserved a block in the meantime.
                    self._next, self._end = await self._reserve()
        taken = self._next
        self._next += 1
        return taken

    async def _reserve(self) -> tuple[int, int]:
        seen = -1
        if self._find_seen is not None:
            seen, self._find_seen = await self._find_seen(), None
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._metadata.get(KEY)
            first = _read(entry.value) if entry else 0
            if first <= seen:
                logger.error(
                    "%s is %d, but producer %d has written: the metadata was older than the logs",
                    KEY,
                    first,
                    seen,
                )
                first = seen + 1
            end = first + BLOCK_SIZE
            if end > PRODUCER_ID_MAX:
                raise StorageFailed(
                    f"producer ids are used up: {KEY} is {first}, the last id is {PRODUCER_ID_MAX}"
                )
            revision = await self._metadata.transact(
                compares=[Compare(KEY, entry.revision if entry else ABSENT)],
                puts={KEY: str(end).encode()},
            )
            if revision is not None:
                return first, end
        raise Busy(f"{KEY} was changed {_ATTEMPTS_MAX} times while a block was reserved")


def _read(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= len(str(PRODUCER_ID_MAX))):
        raise CorruptData(f"{KEY} must be a number, got {value[:20]!r}")
    return int(value)

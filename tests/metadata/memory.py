"""Metadata store that fails on command, for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from millstream.errors import StorageFailed
from millstream.metadata.counters import MetadataCounters
from millstream.metadata.interface import (
    Condition,
    Metadata,
    MetadataChange,
    MetadataEntry,
    MetadataList,
    Watch,
)
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer

__all__ = ["DyingMetadata", "MemoryMetadata", "MetadataServer"]


class DyingMetadata:
    """Fails at its N-th transaction, before or after that is durable, and from then on."""

    def __init__(self, inner: Metadata, step: int, *, is_made: bool) -> None:
        self.is_dead = False
        self._inner = inner
        self._step = step
        self._is_made = is_made

    @property
    def failure(self) -> StorageFailed | None:
        return StorageFailed("died on purpose") if self.is_dead else None

    @property
    def revision(self) -> int:
        return self._inner.revision

    @property
    def counters(self) -> MetadataCounters:
        return self._inner.counters

    async def get(self, key: str) -> MetadataEntry | None:
        return await self._inner.get(key)

    async def list(self, prefix: str) -> MetadataList:
        return await self._inner.list(prefix)

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        self._step -= 1
        if self._step <= 0:
            if self._step == 0 and self._is_made:
                await self._inner.transact(compares=compares, puts=puts, deletes=deletes)
            self.is_dead = True
            raise StorageFailed("died on purpose")
        return await self._inner.transact(compares=compares, puts=puts, deletes=deletes)

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        return self._inner.watch(prefix, callback)

    async def close(self) -> None:
        await self._inner.close()

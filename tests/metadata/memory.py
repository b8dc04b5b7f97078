"""Metadata store in memory, for tests: fails on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from millstream.errors import StorageFailed
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    Metadata,
    MetadataChange,
    MetadataEntry,
    Watch,
    check_transaction,
)


class MemoryMetadata:
    """Passes the suite for every `Metadata`."""

    def __init__(self, entries: dict[str, MetadataEntry] | None = None, revision: int = 0) -> None:
        self.entries = entries if entries is not None else {}
        self.revision = revision
        self._watches: list[MemoryWatch] = []
        self._is_closed = False
        self.failure: StorageFailed | None = None

    def reopened(self) -> MemoryMetadata:
        return MemoryMetadata(self.entries, self.revision)

    async def get(self, key: str) -> MetadataEntry | None:
        await self._turn()
        return self.entries.get(key)

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        await self._turn()
        return [self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)]

    async def transact(
        self,
        *,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        puts = puts or {}
        check_transaction(puts, deletes)
        if self._is_closed:
            raise StorageFailed("memory is closed")
        task = asyncio.ensure_future(self._transact(compares, puts, deletes))
        return await asyncio.shield(task)

    async def _transact(
        self, compares: Sequence[Compare], puts: Mapping[str, bytes], deletes: Collection[str]
    ) -> int | None:
        await self._turn()
        for key, revision in compares:
            found = self.entries.get(key)
            if (found.revision if found else ABSENT) != revision:
                return None
        self.revision += 1
        changes: dict[str, bytes | None] = {
            **dict.fromkeys(self.entries.keys() & set(deletes)),
            **puts,
        }
        for key, value in sorted(changes.items()):
            if value is None:
                del self.entries[key]
            else:
                self.entries[key] = MetadataEntry(key, value, self.revision)
            for watch in self._watches:
                watch.notify(MetadataChange(key, value, self.revision))
        return self.revision

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        watch = MemoryWatch(prefix, callback)
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        self._is_closed = True

    async def _turn(self) -> None:
        if self._is_closed:
            raise StorageFailed("memory is closed")
        await asyncio.sleep(0)


class MemoryWatch:
    def __init__(self, prefix: str, callback: Callable[[MetadataChange], None]) -> None:
        self._prefix = prefix
        self._callback: Callable[[MetadataChange], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def notify(self, change: MetadataChange) -> None:
        if self._callback is not None and change.key.startswith(self._prefix):
            self._callback(change)


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

    async def get(self, key: str) -> MetadataEntry | None:
        return await self._inner.get(key)

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        return await self._inner.list(prefix)

    async def transact(
        self,
        *,
        compares: Sequence[Compare] = (),
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

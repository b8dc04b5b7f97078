"""Locks by key, for changes that must not be interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millstream.errors import Stopping

T = TypeVar("T")


@dataclass(slots=True)
class _KeyedLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    """Changes that hold the lock or wait for it."""


class KeyedLocks:
    """Runs changes; those with the same key one after the other.

    A change that was started is completed even if its caller stops waiting.
    """

    def __init__(self) -> None:
        self._locks: dict[str, _KeyedLock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run(self, key: str, change: Coroutine[Any, Any, T]) -> T:
        """Run a change after all that were started before with the same key."""
        if self._is_closed:
            change.close()
            raise Stopping("the node is stopping and accepts no more changes")
        task = asyncio.get_running_loop().create_task(self._run_locked(key, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Reject further changes, and wait for those that were started."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run_locked(self, key: str, change: Coroutine[Any, Any, T]) -> T:
        entry = self._locks.setdefault(key, _KeyedLock())
        entry.users += 1
        try:
            async with entry.lock:
                return await change
        finally:
            entry.users -= 1
            if entry.users == 0:
                del self._locks[key]

"""Locks by key, for changes that must not be interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millstream.errors import Stopping

logger = logging.getLogger(__name__)

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
        return await asyncio.shield(self._start(key, change))

    def start(self, key: str, change: Coroutine[Any, Any, None]) -> None:
        """Run a change for which nobody waits. Its error is logged; nothing runs after `close`."""
        if self._is_closed:
            change.close()
        else:
            self._start(key, change).add_done_callback(_log_error)

    def _start(self, key: str, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(self._run_locked(key, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a change failed: %s", error, exc_info=error)

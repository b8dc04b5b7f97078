"""Background tasks of one object, such as a log, and a way to wait for its next change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that no caller can cancel, so that they run to their end. Belongs to one loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._changed: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no task is running."""
        return not self._running

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task; its end counts as a change."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def changed(self) -> asyncio.Future[None]:
        """Return a future that ends with the next change. Any number of callers may wait."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._changed)

    def notify(self) -> None:
        """Wake the callers of `changed`."""
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self.notify()

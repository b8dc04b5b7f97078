"""Executor for blocking work in the event loop's thread pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class LoopThreads:
    """Runs blocking work in the event loop's thread pool."""

    width = 1

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(None, work)

    def close(self) -> None:
        """Do nothing: the threads belong to the event loop."""

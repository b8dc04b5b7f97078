"""Blocking work in the threads of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class LoopThreads:
    """Runs blocking work in the threads of the event loop."""

    width = 1

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start `work` in a thread."""
        return asyncio.get_running_loop().run_in_executor(None, work)

    def close(self) -> None:
        """Leave the threads to the loop."""

"""Background work without threads, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TURNS_MAX = 4
"""How many turns of the loop work may take to begin: enough for others to overtake it."""


class SeededBackground:
    """Runs work on the event loop itself, some turns later.

    One seed always gives the same order, so what goes wrong once goes wrong again. Work is done
    whole: what may happen in between is for the file system to decide.
    """

    def __init__(self, seed: int, *, width: int = 2) -> None:
        self.width = width
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret.

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Do `work` in one of the next turns of the loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._step(work, future, self._chance.randrange(TURNS_MAX))
        return future

    def close(self) -> None:
        """Nothing to wait for: work that was begun is done."""

    def _step(self, work: Callable[[], T], future: asyncio.Future[T], turns: int) -> None:
        if turns > 0:
            asyncio.get_running_loop().call_soon(self._step, work, future, turns - 1)
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, like a thread would.
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

"""Executor without threads, with an order of work that a seed determines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TURNS_MAX = 4
"""Upper bound for the turns of the loop before work starts: enough for others to overtake it."""


class SeededBackground:
    """Runs work on the event loop itself, some turns later.

    A seed always gives the same order, so failures can be reproduced. Work runs without
    interruption.
    """

    def __init__(self, seed: int, *, width: int = 2) -> None:
        self.width = width
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret.

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run `work` in one of the next turns of the loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._step(work, future, self._rng.randrange(TURNS_MAX))
        return future

    def close(self) -> None:
        """Do nothing: there are no threads to wait for."""

    def _step(self, work: Callable[[], T], future: asyncio.Future[T], turns: int) -> None:
        if turns > 0:
            asyncio.get_running_loop().call_soon(self._step, work, future, turns - 1)
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - passed to the awaiting caller, as threads do.
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

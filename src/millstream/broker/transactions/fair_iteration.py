"""Long work in pieces, so that the event loop is free in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

ITEMS_PER_TURN = 256
"""How much is done in one go: a few milliseconds, where each costs some ten microseconds."""


async def iterate_fairly(
    items: Iterable[T], weight: Callable[[T], int] = lambda _: 1
) -> AsyncIterator[T]:
    """Yield items, and yield to the event loop after every `ITEMS_PER_TURN` of them, by weight."""
    done = 0
    for item in items:
        yield item
        done += weight(item)
        if done >= ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)

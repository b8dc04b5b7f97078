"""Long work in pieces, so that the event loop is free in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

PIECE = 256
"""How much is done in one go: a few milliseconds, where each costs some ten microseconds."""


async def paced(items: Iterable[T], weight: Callable[[T], int] = lambda _: 1) -> AsyncIterator[T]:
    """Yield items one by one; after each `PIECE` of them, by weight, let others have the loop."""
    done = 0
    for item in items:
        yield item
        done += weight(item)
        if done >= PIECE:
            done = 0
            await asyncio.sleep(0)

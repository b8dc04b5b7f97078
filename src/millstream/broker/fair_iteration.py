"""Iteration in slices, so that the event loop can do other work in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

ITEMS_PER_TURN = 256
"""Items in one slice: a few milliseconds if each takes about ten microseconds."""


async def iterate_fairly(
    items: Iterable[T], weight: Callable[[T], int] = lambda _: 1
) -> AsyncIterator[T]:
    """Yield the items; after every `ITEMS_PER_TURN` by weight, let the event loop run."""
    done = 0
    for item in items:
        yield item
        done += weight(item)
        if done >= ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)

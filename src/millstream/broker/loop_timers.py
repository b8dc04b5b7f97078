"""Timers of the running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.clock import Timer


class LoopTimers:
    """Timers of the running event loop, for use on that loop."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `seconds`."""
        return asyncio.get_running_loop().call_later(seconds, callback)

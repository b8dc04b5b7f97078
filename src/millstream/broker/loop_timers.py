"""Timers of the running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.clock import Timer


class LoopTimers:
    """Has the event loop call back; use it on the loop."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, when `seconds` have passed."""
        return asyncio.get_running_loop().call_later(seconds, callback)

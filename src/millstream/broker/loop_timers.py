"""Timers of the running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.clock import Timer
from millstream.tracing import untraced


class LoopTimers:
    """Timers of the running event loop, for use on that loop."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `seconds`."""
        # A timer may set the next one: it must not stay in the trace of a request forever.
        return asyncio.get_running_loop().call_later(seconds, callback, context=untraced())

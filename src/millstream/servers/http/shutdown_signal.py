"""Shutdown notification for long polls and streams.

A long poll or a live stream registers before it waits, and unregisters when it is done:

    shutdown.watch(wake)
    try:
        ...
    finally:
        shutdown.unwatch(wake)

When the server stops, it responds with what it has and ends. All other requests in flight have the
drain time to finish.
"""

from __future__ import annotations

from collections.abc import Callable

Callback = Callable[[], None]


class ShutdownSignal:
    """Whether the server is stopping. Used on the event loop only.

    The number of watchers is bounded by that of connections: each has one request in flight.
    """

    def __init__(self) -> None:
        self.is_closing = False
        self._watching: dict[Callback, None] = {}

    def watch(self, callback: Callback) -> None:
        """Call `callback` once when the server stops, or at once if it is stopping already.

        It must not raise, and should do no more than wake a task.
        """
        if self.is_closing:
            callback()
        else:
            self._watching[callback] = None

    def unwatch(self, callback: Callback) -> None:
        """Remove a callback, if it is registered."""
        self._watching.pop(callback, None)

    def begin(self) -> None:
        """Call all callbacks; further calls do nothing."""
        self.is_closing = True
        while self._watching:
            callback, _ = self._watching.popitem()
            callback()

"""That the door closes, told to those who would keep their client waiting.

A long poll or a live stream registers before it waits, and lets go of that when it is done:

    closing.watch(wake)
    try:
        ...
    finally:
        closing.unwatch(wake)

It then answers with what it has, and ends. What is under way besides has the drain time to finish.
"""

from __future__ import annotations

from collections.abc import Callable

Callback = Callable[[], None]


class ShutdownSignal:
    """Whether the door closes. Used on the event loop only.

    Who watches is bounded by the connections that there may be: each has a request under way.
    """

    def __init__(self) -> None:
        self.is_closing = False
        self._watching: dict[Callback, None] = {}

    def watch(self, callback: Callback) -> None:
        """Have `callback` called once, when the door closes; at once where it does already.

        It must not raise, and should do no more than wake somebody.
        """
        if self.is_closing:
            callback()
        else:
            self._watching[callback] = None

    def unwatch(self, callback: Callback) -> None:
        """Have it called no more; nothing happens where it was not to be."""
        self._watching.pop(callback, None)

    def begin(self) -> None:
        """Tell everyone; further calls do nothing."""
        self.is_closing = True
        while self._watching:
            callback, _ = self._watching.popitem()
            callback()

"""A response that is not ready yet, while the next request of the connection may start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DeferredResponse:
    """Result of a handler whose request took effect, or its place in line, but has no response yet.

    It is a future that needs no turn of the event loop: finishing it sends the response. A handler
    that returns a coroutine instead delays the requests behind it.
    """

    __slots__ = ("_answer", "_cancel", "_is_done", "_then")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._then: Callable[[Any], None] | None = None
        self._cancel = cancel
        self._is_done = False
        self._answer: Any = None

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with the response, at once if it is ready."""
        if self._is_done:
            callback(self._answer)
        else:
            self._then = callback

    def finish(self, answer: Any) -> None:
        """Set the response. Only the first call has an effect."""
        if self._is_done:
            return
        self._is_done, self._answer = True, answer
        if self._then is not None:
            self._then(answer)

    @property
    def is_done(self) -> bool:
        """Whether it was finished or cancelled."""
        return self._is_done

    def cancel(self) -> bool:
        """Drop the response; return whether that also stops the work for it.

        Work that cannot be cancelled, such as an append in flight, runs to its end.
        """
        if self._cancel is None or self._is_done:
            return False
        self._is_done, self._then = True, None
        self._cancel()
        return True

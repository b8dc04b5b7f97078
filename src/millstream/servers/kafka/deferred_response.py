"""An answer that will come, while the next request of the connection may begin already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DeferredResponse:
    """What a handler returns whose request took effect, or its place in line, but has no answer.

    It is a future without a turn of the loop: whoever finishes it has the answer sent. A handler
    that returns a coroutine instead holds up the requests behind it.
    """

    __slots__ = ("_answer", "_cancel", "_is_done", "_then")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._then: Callable[[Any], None] | None = None
        self._cancel = cancel
        self._is_done = False
        self._answer: Any = None

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with the answer, at once where there is one already."""
        if self._is_done:
            callback(self._answer)
        else:
            self._then = callback

    def finish(self, answer: Any) -> None:
        """Give the answer; what comes after the first is not looked at."""
        if self._is_done:
            return
        self._is_done, self._answer = True, answer
        if self._then is not None:
            self._then(answer)

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or no one wants it any more."""
        return self._is_done

    def cancel(self) -> bool:
        """No one wants the answer any more; returns whether that ends the work for it too.

        What cannot be called off, as an append under way, runs to its end.
        """
        if self._cancel is None or self._is_done:
            return False
        self._is_done, self._then = True, None
        self._cancel()
        return True

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
            answer, self._answer = self._answer, None
            callback(answer)
        else:
            self._then = callback

    def finish(self, answer: Any) -> None:
        """Set the response. Only the first call has an effect.

        It is not kept, nor is anything else: a cycle of references would keep the records of the
        response in memory until the next garbage collection.
        """
        if self._is_done:
            return
        then, self._then, self._cancel, self._is_done = self._then, None, None, True
        if then is not None:
            then(answer)
        else:
            self._answer = answer

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
        cancel, self._then, self._cancel, self._is_done = self._cancel, None, None, True
        cancel()
        return True

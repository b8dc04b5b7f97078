"""Threads for calls to a cold store, which may hang forever.

They are not those of anything else, and nobody waits for them: their queue is bounded, closing does
not join them, and a thread that does not come back is replaced, a limited number of times.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from millstream.errors import TierUnavailable

T = TypeVar("T")

STUCK_SECONDS = 30.0
"""After this time, a call counts as hanging, and does not keep others from being made."""

REPLACED_MAX = 16
"""Number of threads that may hang at the same time, beside those that work."""


class TierThreads:
    """Runs calls in daemon threads, at most `width` of them at a time if none hangs."""

    def __init__(
        self,
        width: int,
        *,
        queue_max: int,
        name: str,
        on_start: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.width = width
        self._queue_max = queue_max
        self._name = name
        self._on_start = on_start
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._running: dict[threading.Thread, float] = {}
        """When each call in progress began."""
        self._idle = 0
        self._count = 0
        self._is_closed = False

    @property
    def hanging(self) -> int:
        """Number of calls that have not come back for a long time."""
        with self._changed:
            return self._count_hanging()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Start `work`, and return its future; raise `TierUnavailable` if too much is waiting."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise TierUnavailable("the node is stopping")
            if len(self._calls) >= self._queue_max:
                raise TierUnavailable(
                    f"{len(self._calls)} requests wait for the cold store, which is the limit"
                )
            self._calls.append((work, future))
            hanging = min(self._count_hanging(), REPLACED_MAX)
            if not self._idle and self._count < self.width + hanging:
                self._add_thread()
            self._changed.notify()
        return future

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start `work`, and return a future of the running loop."""
        return asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Start nothing more, and leave running calls to themselves."""
        with self._changed:
            self._is_closed = True
            calls = list(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        for _, future in calls:
            future.cancel()

    def _count_hanging(self) -> int:
        since = self._monotonic() - STUCK_SECONDS
        return sum(began < since for began in self._running.values())

    def _add_thread(self) -> None:
        self._count += 1
        name = f"{self._name}-{self._count}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        if self._on_start is not None:
            self._on_start()
        thread = threading.current_thread()
        while True:
            with self._changed:
                self._idle += 1
                while not self._calls and not self._is_closed:
                    self._changed.wait()
                self._idle -= 1
                if self._is_closed or self._count > self.width + REPLACED_MAX:
                    return
                work, future = self._calls.popleft()
                self._running[thread] = self._monotonic()
            _call(work, future)
            del work, future
            with self._changed:
                del self._running[thread]
                if self._count > self.width + self._count_hanging():
                    self._count -= 1  # It came back after all, and another does its work.
                    return


def _call(work: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - passed on to the caller.
        future.set_exception(error)
    else:
        future.set_result(result)

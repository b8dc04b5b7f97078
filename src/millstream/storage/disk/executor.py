"""Threads for blocking work, behind an interface that a test can control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking work away from the event loop."""

    @property
    def width(self) -> int:
        """Number of calls that run at the same time."""
        ...

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start `work`, and return a future of its result, on the running loop."""
        ...

    def close(self) -> None:
        """Wait for all work to end. No more may be started."""
        ...


class ThreadExecutor:
    """Runs work in a fixed number of threads, which are started when they are first needed.

    Cheaper than the standard pool, whose futures cost as much as a short sync takes: here a call is
    one queue entry on the way there and one callback on the way back.
    """

    def __init__(
        self, count: int, *, name: str, on_start: Callable[[], None] | None = None
    ) -> None:
        """`on_start` is called by each thread before its first work."""
        self.width = count
        self._on_start = on_start
        self._name = name
        self._queue: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            SimpleQueue()
        )
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((work, future))
        if len(self._threads) < self.width:
            self._add_thread()
        return future

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _add_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        if self._on_start is not None:
            self._on_start()
        while (call := self._queue.get()) is not None:
            work, future = call
            # The references to the work, and with them files that it uses, are dropped before the
            # caller learns that it is done: it may expect the files to be closed then.
            del call
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - passed on to the caller.
                del work
                future.get_loop().call_soon_threadsafe(_fail, future, error)
            else:
                del work
                future.get_loop().call_soon_threadsafe(_finish, future, result)
                del result
            del future


def _finish(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

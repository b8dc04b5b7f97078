"""One blocking interface for both HTTP clients, so that one suite covers both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any, Self

import uvloop

from millstream.clients.http.aio.client import AsyncClient
from millstream.clients.http.sync.client import Client


class Waiting:
    """Blocking wrapper around an asynchronous object."""

    def __init__(self, home: Blocking, thing: Any) -> None:
        self._home = home
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            args = tuple(_bare(one) for one in args)
            return self._home.wait(found, *args, **options)

        return call

    def __iter__(self) -> Iterator[Any]:
        items = self._home.start(self._thing)
        while True:
            try:
                yield self._home.wait(items.__anext__)
            except StopAsyncIteration:
                return

    def __next__(self) -> Any:
        try:
            return self._home.wait(self._thing.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        self._home.wait(self._thing.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._home.wait(self._thing.__aexit__, *error)


def _bare(thing: Any) -> Any:
    if isinstance(thing, list):
        return [_bare(one) for one in thing]
    return thing._thing if isinstance(thing, Waiting) else thing


class Blocking(Waiting):
    """An `AsyncClient` on an event loop in a separate thread."""

    def __init__(self, url: str, *, pause: Any = None, **options: Any) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def pause_there(seconds: float) -> None:
            if pause is None:
                await asyncio.sleep(seconds)
            else:
                pause(seconds)

        async def make() -> AsyncClient:
            return AsyncClient(url, pause=pause_there, **options)

        super().__init__(self, self.run(make()))

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self, thing: Any) -> Any:
        async def start() -> Any:
            return aiter(thing)

        return self.run(start())

    def wait(self, work: Any, *args: Any, **options: Any) -> Any:
        async def call() -> Any:
            found = work(*args, **options)
            try:
                return (await found) if inspect.isawaitable(found) else found
            except StopAsyncIteration as end:
                return end

        found = self.run(call())
        if isinstance(found, StopAsyncIteration):
            raise found
        return self._wrap(found)

    def _wrap(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._wrap(one) for one in found]
        is_ours = type(found).__name__.startswith("Async")
        return Waiting(self, found) if is_ours else found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.run(self._thing.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


KINDS = {"blocking": Client, "awaiting": Blocking}
"""Client constructors by kind."""
